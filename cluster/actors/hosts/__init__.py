"""Islands of several hosts as actors: a group of actors that live and die together.

Modules:

    host_group  hosts that compute as one, as actors: the first one starts the others
    actor       ... of an island: its way to them, and what each of them is
"""
