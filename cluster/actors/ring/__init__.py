"""The processes of the data-parallel modes: the conductor's actor and the islands' actors.

Modules:

    conductor     conducts rings of islands that sum gradients: what these call
    actor         what fleet and people call: the actor in the syncer's place, a `Conductor`
    ray_ports     what a conductor reaches: the islands of its rings, and where they meet
    island_actor  the actor of an island in a ring
    ray_link      its way to the conductor, the fleet and the other islands
"""
