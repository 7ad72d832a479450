"""Data-parallel islands, which sum their gradients at every step in a ring.

The ring forms again when an island dies, returns, joins or leaves. `actors` and `checks` import
from here. `ring` alone decides the members of the ring, its first step and its pauses, as the rules
of `coordinator` do for decoupled islands.

    ring            the rules: the members of a ring, its first step, its pauses; pure functions
    ring_messages   the events for the rules of `ring`, and the effects that they return
    shell           the conductor's shell, which feeds events to the rules; free of Ray
    ring_effects    carries out the effects of the rules
    ring_places     the islands that wait for a place in a ring
    ring_lives      grants the lives of islands and watches them until they end
    meeting_point   opens the meeting point of a ring, with retries
    ports           the conductor's interface to islands and meeting points
    final_state     fetches the result from the islands that have it
    records         writes the conductor's memory and snapshots: the newest of each, one at a time
    store           the conductor's depot, off its event loop
    accounts        bytes, merges and gaps of rings, for the measures
    step            the compiled step: gradients, their mean over the ring, the update
    wire            the buckets in which gradients travel, and their size in bytes
    rendezvous      the meeting point of a ring's processes (JAX's coordination service)
    member          one island in a sequence of rings: state, data, time
    member_batches  the share of each batch that a member trains on
    member_reports  a member's reports of its progress and its time
    pace            slows an island down on purpose
    saved_state     snapshots of a ring's state in the depot, and the conductor's durable memory
    journal         the writer of the log of events
    report          status and summary of such a run, with the same keys as in other modes
"""
