"""The learner: JAX and data, no Ray; it knows only the vocabulary of the coordinator.

Modules:

    task              what a user brings: how to start, what to minimise, on which batches
    model             the transformer that comes along
    corpus            real text as a stream of tokens with a cursor
    corpus_reader     how a corpus is read from files, and what is refused
    sources           where tokens come from: text, folders, Parquet, the standard library
    token_files       a corpus in files that are mapped, written once for each machine
    permutation       an order that is never written down
    prefetch          a batch is made while the step before it is computed
    trainable         what of a task could not be trained, found from its shapes
    inner             the compiled training step
    optimizer         AdamW and Muon: which way a step goes
    mesh_shape        how many devices an island has along each axis, and what fits
    mesh              an island's devices as a mesh, and where its arrays lie
    adopt             how a fragment leaves the parameters, and how a newer one comes in
    flat_form         leaves to the flat form of a fragment, and back
    sharded_form      ... over several devices, window by window
    windows           which rows of which leaves are moved at a time
    encoder           a delta on its way out: encoded on the host or on the device
    exchange          both ends of a learner's wire: error feedback up, the public chain down
    moments           how first moments are shared with a fragment
    learner           one island's learner: joins, hands in, takes offers, gives moments
    learner_life      one life of it as a value
    life_start        the rule of how a life begins: moments kept, shared, given, or none
    life_setup        what a life needs before its first step, fetched and put in place
    learner_state     what it owes and says in that life: pure, carried by three shells
    step_boundary     what follows at a step boundary: hand-ins and adoptions
    learner_messages  what a carrier tells that state, and what it is told to do
    replica           its copy of the model: what steps, hand-ins and adoptions do to it
    trainer           the training thread: steps, hands over, adopts
    step_timing       how long steps take
    message_thread    the talking thread: one message at a time
    mailbox           the state that those threads share, and the lock that guards it
    thread_queues     their queues: what was asked and offered, and what each has to do
    thread_tasks      what is in those queues: words with their data
    life_history      the lives it has had, and whether another may begin
    donations         its moments, copied for a learner that joins
    link              its way to the coordinator, as a protocol; its settings
    catch_up          asking for a publication that was missed, until it comes
"""
