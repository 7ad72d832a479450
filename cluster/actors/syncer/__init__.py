"""The syncer's process: its actor, its calls to shards and islands, its snapshots.

Modules:

    actor            the actor of the syncer: one event loop around `syncer.shell`
    snapshot_writer  how the syncer writes its snapshots, one at a time
    ray_ports        what the syncer reaches: `syncer.ports` over Ray
"""
