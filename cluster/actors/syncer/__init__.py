"""The syncer's process: its actor, its calls to shards and islands, its snapshots.

Modules:

    actor            the actor of the syncer: the calls of learners, fleet and people
    process          the process: it brings the syncer up from the depot
    admission        which processes may join as islands
    shard_keeper     watches over the shards, and has those that died come back
    records          a syncer's tape, notes and snapshots, to the end of the run
    snapshot_writer  how the syncer writes its snapshots, one at a time
    ray_ports        what the syncer reaches: `syncer.ports` over Ray
"""
