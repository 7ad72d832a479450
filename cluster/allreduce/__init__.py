"""Data-parallel islands: they sum their gradients at every step, in a ring that forms anew when one
of them dies, returns, joins or leaves.

`actors` and `checks` come in. Who is in the ring, from which step it turns and when it pauses is
decided by `ring` alone, as the rules of `coordinator` decide for islands that are decoupled.

    ring            who sums with whom, from where, and when all pause: a pure state
    ring_messages   the events that the rules of `ring` take in, and the effects that they return
    shell           the conductor's shell: events in, nothing of Ray
    ring_effects    the effects of the rules, carried out
    ring_places     the places in rings that islands wait for
    ring_lives      the lives of islands: granted, and watched until they end
    meeting_point   opens the meeting point of a ring, in several attempts
    ports           what a conductor reaches
    final_state     how the result is fetched from the islands that have it
    records         its memory and its snapshots: the newest of each, one at a time
    store           its depot, away from its event loop
    accounts        bytes, merges and gaps of rings, for the measures
    step            the compiled step: gradients, their mean over the ring, the update
    wire            in which pieces gradients travel, and how many bytes that is
    rendezvous      where the processes of a ring find each other (JAX's coordination service)
    member          one island in rings, one after another: state, data, time
    member_batches  the share that a member has of each batch
    member_reports  what a member reports of its progress and its time
    pace            slows an island that is to be slow
    saved_state     snapshots of a ring's state in the depot, and what the conductor must remember
    journal         the journal of events, as it is written
    report          status and summary of such a run, with the same keys as any other's
"""
