"""The processes of the data-parallel modes: the conductor's actor and the islands' actors.

Modules:

    conductor     an actor that conducts rings of islands that sum gradients; the islands call it
    actor         the actor in the syncer's place: a `Conductor` that fleet and people call too
    ray_ports     a conductor's access to islands and meeting points, over Ray
    island_actor  the actor of an island in a ring
    ray_link      an island's link to the conductor, the fleet and the other islands
"""
