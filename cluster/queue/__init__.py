"""The queue of a cluster: many runs share its machines by priority, under the quotas of owners.

One detached actor asks all fleets and all waiting jobs, has `coordinator.cluster_queue` decide, and
carries that out. It keeps nothing that it could not ask for again: quotas are in Ray's store.

    actor    the actor, and how it is started
    desk     its content: the waiting jobs, the looks, and the table of the queue
    facts    the facts of one look as claims of the rule; pure
    ray_side  the queue's view of Ray: nodes, placement groups, fleets, quotas
    quotas   the file of quotas
    place    the place of a submitted job in the queue, from its question to its start
    line     the connection of that job to the actor
    queue_status  the table of the queue, for the command
"""
