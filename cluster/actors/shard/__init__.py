"""A shard's process: its actor, and what it answers to learners that join.

Modules:

    actor             the actor of a shard: it calls the learners, merges, stores and publishes
    host_parts        a shard's questions to the hosts of an island of several
    public_fragments  what a shard answers to learners that ask for fragments or differences
"""
