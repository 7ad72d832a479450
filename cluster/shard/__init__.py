"""The shard's process: it holds fragments, takes contributions in, merges, publishes.

`actors`, `checks` (replay), `launch` (the door) and `bench` come in. No Ray here; the arithmetic is
`coordinator`'s.

    shard        the arrays of some fragments: receive, merge, stage, publish, recover
    build        a shard and its outer optimizer, as a configuration has them
    outer_optax  any optax transformation as outer optimizer
    fates        what became of contributions, for learners that are asked for more
"""
