"""The learner: JAX and data, no Ray; it imports only the vocabulary of the coordinator.

The package `data` reads corpora, `gemma` has Gemma 3 and Gemma 4, `adapters` the models of
libraries, and `hosts` the islands of several hosts.

Modules:

    task              the user's task: initial parameters, loss and batches
    stream_like       the protocol of a source of training data
    stream_checks     the check of a task's own source before a run, with its first batch
    pickled_task      a task's function as text, for tasks that are defined in a notebook
    model             the built-in transformer
    built_in_init     its initial parameters, all or single leaves
    text_model        the next tokens of a trained language model, and the choice among them
    multiple_choice   the answers of such a model to multiple-choice questions
    cached_decoder    a decoder that keeps what a model has computed of earlier tokens
    model_decoder     the built-in transformer one token at a time
    initial_model     initial parameters from a file or a checkpoint in place of `init`
    parameter_files   arrays by name, read one at a time from safetensors files
    orbax_checkpoint  Orbax checkpoints, read and written
    corpus            real text as a stream of tokens with a cursor
    corpus_reader     how a corpus is read from files, and which files are refused
    sources           the sources of tokens: text, folders, tables, buckets, the standard library
    source_tokenizer  the tokenizer of a source, or the one that all sources of a mixture have
    source_use        the check whether a task reads its held-out data from `data.source`
    source_tokens     the tokens of a file of a source, some at a time
    token_files       a corpus in memory-mapped files, written once for each machine
    permutation       a shuffled order computed on the fly, never stored
    prefetch          a batch is made while the step before it is computed
    task_helpers      short ways to a task: of text, or of inputs with targets
    dataset_task      a task whose examples are in a dataset with random access, such as Grain's
    state_tree        the arguments of a loss; parameters and state in one tree
    named_arguments   the named arguments of a loss, placed on an island's devices
    frozen_file       frozen arrays from a file whose content is known
    masked_loss       the mean loss over the tokens that it counts: of a batch, and of batches
    losses            the forms of a user's loss, and the one form that the step calls
    gradients         the gradient of a step's loss, whole or summed over parts of the batch
    randomness        the random key of each training step
    training_batch    a batch as a step gets it, and which rows of it a host reads
    trainable         the checks of a task's shapes before it is trained
    inner             the compiled training step
    loss_scale        a loss scale for float16 that adapts itself
    precision         a loss in bfloat16 or float16 beside float32 parameters; remat
    training_step     the step of a learner as a protocol: compiled, or by a loop of the user's own
    own_loop          the island as such a loop has it: `join` and its handle
    loop_thread       the thread of the loop, which takes turns with the learner
    loop_inner        the training step that gives the loop a turn
    loop_task         tasks that such a loop trains, with a model that need not be of JAX
    parameter_tree    the form of the parameters, with which those of a loop are compared
    foreign_arrays    arrays of NumPy and PyTorch beside those of JAX
    optimizer         AdamW and Muon: the direction of a step, and its rate
    optimizer_target  an optimizer of the user's own, on the learner's clock
    optimizer_checks  the checks of such an optimizer before it trains
    schedules         cosine and wsd: the schedules of the rate
    user_lines        the file and line of the user's code, first in a message about it
    package_extras    the command that installs an extra: optional packages of this project
    user_code         the user's code behind "module:attribute", found and called
    own_wire          a codec of the user's own as the wire of fragments
    own_wire_checks   the checks of such a codec before anything starts
    user_functions    calls of a user's function by a shard or a learner
    guarded_task      the functions of a user's task, with the line of their errors
    nested_leaves     leaves by their paths as nested dictionaries
    mesh_shape        how many devices an island has along each axis, and what fits
    mesh              an island's devices as a mesh, and the placement of its arrays
    adopt             how a fragment leaves the parameters, and how a newer one comes in
    flat_form         leaves to the flat form of a fragment, and back
    sharded_form      the flat form over several devices, window by window
    windows           which rows of which leaves are moved at a time
    encoder           the encoding of a delta, on the host or on the device
    exchange          both ends of a learner's wire: error feedback up, the public chain down
    moment_search     which leaves of an optimizer's state are first moments
    moments           how first moments are shared with a fragment
    learner           one island's learner: joins, hands in, takes offers, gives moments
    learner_life      one life of a learner as a value
    life_start        the rule of how a life begins: moments kept, shared, given, or none
    life_setup        the setup of a life before its first step: fetch, then put in place
    learner_state     the learner's protocol in one life: a pure state machine, with three shells
    step_boundary     the work of a step boundary: hand-ins and adoptions
    learner_messages  the inputs and outputs of that state machine, and the learner's terms
    replica           a learner's copy of the model, under steps, hand-ins and adoptions
    trainer           the training thread: steps, hands over, adopts
    step_timing       how long steps take
    time_budget       each second of an island's life in one activity
    activity_clock    the clock of a process's activities, and its loss spikes
    loss_spikes       the usual rule for spikes of a training loss; pure
    message_thread    the talking thread: one message at a time
    mailbox           the state that those threads share, and the lock that guards it
    thread_queues     their queues: requests and offers, and the tasks of each thread
    thread_tasks      the tasks in those queues: words with their data
    life_history      the lives of a learner so far, and whether another may begin
    donations         copies of a learner's optimizer moments for one that joins
    link              the learner's way to the coordinator, as a protocol; its settings
    catch_up          the retries for a publication that was missed
"""
