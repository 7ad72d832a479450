"""The rules of Decoupled DiLoCo: pure Python and NumPy, no Ray, no clock, no disk, no socket.

Modules:

    protocol        ids, versions, events, effects: all that is ever said
    message_checks  the checks of messages from islands, before they are used
    advance         (rule, state, event, now) -> (state, effects): every decision
    state           the syncer's whole mind, one frozen value, and what must hold of it
    lives           join, report, drain, lose: a restart is a new incarnation
    membership      who is live, joining, draining, lost, and after how much silence
    roster          all members, and what is asked of all of them at every event
    rounds          a round until it closes: due, asked, waited for, given up
    merge_outcomes  ... and after it: merged, stored, published; or the merge undone
    quorum          may this round close, and why
    grace           how long a round that has its quorum still waits
    schedule        which fragment is due at which syncer step
    orders          what a shard is ordered to merge, and with which weights
    contributions   admitted, refused with the reason, or overwritten
    gate            is this fit to be merged?
    norms           the norms of late, and which one is too large to be believed
    direction_gate  does a learner point against all the others?
    suspects        what follows from that: quarantine and trial
    ledger          every token trained has a fate
    leases          who reads which piece of the corpus
    merge           contributions -> one delta (mean, RDA), tile by tile
    rda             radial-directional averaging: how the delta of each piece is made
    alignment       where the contributions of a merge point beside each other
    tiles           how the work on a fragment is cut, whoever does it
    outer           the outer step: SGD with Nesterov momentum, in place
    fragments       cut a parameter tree into balanced fragments, and sew it back
    codec           a fragment on the wire: f32, bf16, int8, int4, int2, e3m0
    weighted_sum    several payloads decoded and added up, a tile at a time
    scratch         a thread's scratch arrays, to be used again
    parts           a fragment in ranges, one to each host of an island
    kernels         the compiled loops over elements: decode and add, step, in cache
    inner_products  the compiled loops that sum squares and products
    rounding        encode: a scale for each block, the nearest code
    claims          what a learner can have done: its leases, its time, its tokens
    chain           the last differences of a fragment, for learners that missed some
    recovery        the syncer or a shard comes back
    tape            events as plain data and back; replay(tape) == state
    errors          everything that is refused, and what to do then
    frozen          new values from old ones, fast
"""
