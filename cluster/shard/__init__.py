"""The shard's process: it holds fragments, receives contributions, merges and publishes.

`actors`, `launch` (its preflight) and the laboratory import this package. The simulator runs
`shard`, everything below it, and `fates`; it has integers in place of the rest. No module here
imports Ray, and the numerical work is done by `coordinator`.

    shard           what a shard decides and keeps: receive, merge, stage, store, publish,
                    recover
    shard_fragment  one fragment: its public version, the staged one, and earlier ones
    inbox           contributions that wait for a merge, measured when they arrived
    contribution_samples  merged contributions that are kept for the evaluators, one at a time
    retention       which public fragments a shard keeps, and which versions it stores
    arithmetic      protocols of the arithmetic and of the files that a shard uses
    arrays          the arithmetic on arrays
    method          how a run merges: rules, wires and outer optimizer, and those of state
    contribution_writer  where merged contributions are kept: a thread for each depot
    files           the files in the run's depot, or no files at all
    storing_thread  when a version is stored, and the thread that stores it, beside gate and merge
    build           a shard and its outer optimizer, built from a configuration
    rebuild         the fragments of a run, rebuilt from its tape and the kept contributions
    own_code        all checks of the user's own code in a merge before the start
    own_gate        the user's own gate of contributions
    own_merge       the user's own merge rule, loaded and tried before the start
    own_sources     digests of that code, which a replay compares
    outer_optax     any optax transformation as outer optimizer
    arrivals        how long publications took to reach the learners
    fates           what became of contributions, for learners that are asked for more
"""
