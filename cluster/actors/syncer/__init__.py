"""The syncer's process: its actor, its calls to shards and islands, its snapshots.

Modules:

    actor            the actor of the syncer: the calls of learners, fleet and people
    process          the process: it recovers the syncer from the depot
    admission        the check of which processes may join as islands
    shard_keeper     the watch over the shards, and the recovery of shards that died
    records          a syncer's tape, notes and snapshots, until the end of the run
    snapshot_writer  the writing of the syncer's snapshots, one at a time
    ray_ports        the implementation of `syncer.ports` over Ray
"""
