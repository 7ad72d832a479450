"""The syncer's process: it carries events to the rules and effects from them, in order, durably.

`actors` comes in, and the laboratory. No Ray here, and no arrays: other processes are reached over
`Ports`, the tape over `Log`.

    shell            feeds events to the rules, writes the tape, has effects carried out in order
    effect_queue     effects that wait until the tape is durable up to their event
    effects          carries effects out: what comes of each is an event
    ports            what the shell reaches: shards, learners, disk, tape
    collect          many learners asked through one shard in few calls
    shard_liveness   which shards are there; calls of one that died fail
    restore          where a syncer that comes back goes on: snapshot, then tape
    resume_point     the snapshot, and the place on the tape, that a restart resumes from
    damage_report    which stored files could not be used, and which versions are stored
    journal          `notes.jsonl`: what a summary needs and no event says
    measures         takes in events and vitals, and counts
    island_measures  how far each island has come, when it advanced, what it delivered
    merge_measures   rounds and merges: how long, how old, how large, where they pointed
    counts           what is counted, as data that outlasts the process
    report           status, view and summary, read off the counts
    clock            seconds that never fall
"""
