"""A shard's process: its actor, and what it answers to learners that join.

Modules:

    actor             the actor of a shard: what syncer, learners and evaluator call
    process           the shard's arithmetic and storing, on threads of their own
    hand_ins          asks islands for contributions, checks the answers and holds them
    offers            tells islands of published versions
    host_parts        a shard's questions to the hosts of an island of several
    public_fragments  what a shard answers to learners that ask for fragments or differences
"""
