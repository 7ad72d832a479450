"""The shard's process: it holds fragments, takes contributions in, merges, publishes.

`actors`, `launch` (its preflight) and the laboratory come in; the simulator plays `shard`, what is
below that, and `fates`, and has integers for the rest. No Ray here; the arithmetic is
`coordinator`'s.

    shard           what a shard decides and keeps: receive, merge, stage, store, publish,
                    recover
    shard_fragment  one fragment there: its public version, the staged one, those before
    inbox           contributions that wait for a merge, measured when they arrived
    retention       which public fragments a shard keeps, and which versions it stores
    arithmetic      what it has done for it, as protocols: arithmetic and files
    arrays          the arithmetic on arrays
    files           the files, in the run's depot; or none
    storing_thread  when a version is stored, and the thread that does it beside gate and merge
    build           a shard and its outer optimizer, as a configuration has them
    outer_optax     any optax transformation as outer optimizer
    arrivals        how long publications were on their way
    fates           what became of contributions, for learners that are asked for more
"""
