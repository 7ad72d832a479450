"""The syncer's process: it carries events to the rules and effects from them, in order, durably.

`actors` and the laboratory import this package. There is no Ray here, and there are no arrays:
other processes are reached over `Ports`, the tape over `Log`.

    shell            feeds events to the rules, writes the tape, has effects carried out in order
    effect_queue     effects that wait until the tape is durable up to their event
    effects          carries effects out; the outcome of each is an event
    ports            protocols of what the shell reaches: shards, learners, disk, tape
    collect          requests to many learners through one shard in few calls
    shard_liveness   which shards are alive; calls of one that died fail
    restore          the state in which a restarted syncer continues: snapshot, then tape
    resume_point     the snapshot, and the place on the tape, that a restart resumes from
    damage_report    which stored files could not be used, and which versions are stored
    journal          `notes.jsonl`: facts that a summary needs and no event carries
    measures         counters of events and vitals
    island_measures  how far each island has come, when it advanced, what it delivered
    run_time         the time of all islands: where it went, and why one is slow
    island_time      the life of one island by activity
    badput           the vocabulary of lost time
    slow_islands     the rule by which an island counts as slow
    link_measures    transfers over each link, from the events of the rules
    link_counts      the usual rate of a link, its utilisation, and what deviates from it
    payload_bytes    the bytes of payloads, up and down
    merge_measures   rounds and merges: how long, how old, how large, in which direction
    counts           the counters, as data that outlives the process
    report           status, view and summary, computed from the counts
    durability_text  the text about what is not durable at present
    clock            a clock that never goes back
"""
