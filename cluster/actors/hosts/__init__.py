"""Islands of several hosts as actors: a group of actors that live and die together.

Modules:

    host_group  hosts that compute as one, as actors: the first one starts the others
    actor       the actor of a host that is not the first
    ray_gang    the other hosts of an island, as the first one reaches them
"""
