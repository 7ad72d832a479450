"""Islands of several hosts as actors: a group of actors that live and die together.

Modules:

    host_group  hosts that compute as one, as actors: the first one starts the others
    actor       a host of an island that is not the first
    ray_gang    the other hosts of an island, as its first host has them
"""
