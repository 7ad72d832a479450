"""The rules of Decoupled DiLoCo: pure Python and NumPy, without Ray, clock, disk or sockets.

Modules:

    protocol        ids, versions, events and effects: the vocabulary of the protocol
    message_checks  validation of messages from islands, before they are used
    advance         (rule, state, event, now) -> (state, effects): every decision
    state           the syncer's state, one frozen value, and its invariants
    lives           join, report, drain, lose: a restart is a new incarnation
    membership      the status of each learner, and its silence timeout
    roster          all members, with sorted views of them for every event
    rounds          a round until it closes: due, asked, waiting, abandoned
    merge_outcomes  a round after it closes: merged, stored, published; or the merge undone
    quorum          whether a round may close, and why
    grace           the grace window: how long a round with its quorum still waits
    schedule        which fragment is due at which syncer step
    orders          the merge order for a shard: contributions and their weights
    contributions   contributions admitted, refused with the reason, or overwritten
    gate            the check of a contribution before it can be merged
    norms           recent norms, and the limit above which one is an outlier
    medians         the median of all numbers but one, from numbers that are sorted once
    direction_gate  whether a learner points against all the others
    suspects        the consequences of that: quarantine and trial
    ledger          the fate of every token trained
    leases          which learner reads which piece of the corpus
    merge           contributions -> one delta (mean, RDA), tile by tile
    own_merge       a merge rule of the user's own, as a function that is passed in
    rda             radial-directional averaging: how the delta of each piece is made
    alignment       cosines between the contributions of a merge
    tiles           how the work on a fragment is split, independent of threads
    outer           the outer step: SGD with Nesterov momentum, in place
    interval        H and P of `sync.every = "auto"`, from link, step time and bytes
    own_fragmenting  a fragmenting of the user's own: which piece is in which fragment
    fragments       cut a parameter tree into balanced fragments, and sew it back
    own_fragmenting pieces assigned to fragments by a function that is passed in
    codec           a fragment on the wire: f32, bf16, int8, int4, int2, e3m0
    weighted_sum    the weighted sum of several payloads, decoded a tile at a time
    scratch         a thread's scratch arrays, for reuse
    parts           ranges of a fragment, one for each host of an island
    kernels         the compiled loops over elements: decode blocks and add, outer step
    array_sums      the compiled loops that add f32 and bf16 arrays
    inner_products  the compiled loops that sum squares and products
    rounding        quantization: a scale for each block, the nearest code
    claims          bounds on what a learner can have done: its leases, its time, its tokens
    chain           the last deltas of a fragment, for learners that missed some
    recovery        the restart of the syncer or of a shard
    tape            events as plain data and back; replay(tape) == state
    cluster_queue   many runs, one cluster: which run starts, which waits, which islands are taken
    queue_claims    the runs that the queue decides about, and its answers
    queue_table     one such decision in the making: room and quota, promised in order of rank
    machine_room    free machines and unused quotas, as a ledger
    plain_sums      sums of floats with the same bits on every version of Python
    errors          every exception of ours, and what to do about it
    frozen          fast replacement of fields in frozen dataclasses
"""
