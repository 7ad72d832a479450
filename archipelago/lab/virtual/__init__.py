"""The virtual-time engine: a run without machines, generic in its payload.

The syncer's shell, the rules, the learner's state and the shard's state machine run unchanged, on
one event loop with a virtual clock. This package has what is around them. A payload is what a
learner hands in and a shard publishes: integers in `archipelago.lab.simulation` and the planner,
arrays in `archipelago.lab.training`. They add what a step computes, how long a message takes, and
which faults strike.

    event_loop   an event loop with a virtual clock
    learner      one life of a learner: `islands.learner_state`, carried by callbacks
    process      a process of an island, with one learner after another in it
    site         the clock, the islands' places and the syncer, which all parts share
    network      messages between processes and syncer; the start and the end of processes
    shards       the places where shards live, die and come back, each with its real code
    ports        the syncer's ports: it reaches shards and learners through them
"""
