"""A shard's process: its actor, and its answers to learners that join.

Modules:

    actor             the actor of a shard: the calls of syncer, learners and evaluator
    process           the shard's arithmetic and storage, each on its own threads
    hand_ins          requests to islands for contributions, and the checks of their answers
    offers            offers of published versions to islands
    host_parts        requests to the hosts of an island of several hosts
    public_fragments  answers to learners that ask for fragments or differences
"""
