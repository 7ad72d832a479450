"""Virtual time with real training: no Ray, no sleeping, no threads, and the same bits for a seed.

`study`, `bench` and `cli` may import this package; a run never does. The syncer's shell and the
rules, the learner's state, the inner step, the encoders, both ends of the wire and the shard are
those of a run on Ray. Only time, machines and the network between them are simulated, by the engine
in `archipelago.lab.virtual`.

    train           trains a configuration in its mode, from its start to its result
    virtual_file    a file with a configuration and a table [virtual], checked
    __main__        `python -m archipelago.lab.training FILE.toml`: one run, as JSON
    supported       the runs that virtual time supports
    retrain         a run that was on Ray, with the leases of its tape
    virtual_interval  H and P of `sync.every = "auto"`, from the durations of virtual time
    timing          durations: of a step, a message, a merge, a byte
    compiled_parts  the compiled parts, shared by all islands and cells that can
    loss_curve      held-out loss along the way, and the figures of a run
    average         moving averages of the global model, judged at the end
    question_sets   multiple-choice questions that the final model answers
    evaluations     one evaluation of the global model on the way
    world           islands, syncer and shard: the modes "decoupled", "diloco" and "streaming"
    network         links between islands and the rest, where bytes take their time
    process         the process of an island whose learners have a model
    learner         one life of a learner with a model
    ports           the syncer's ports: the real shard, and learners
    faults          a fault plan, as far as it has a meaning here
    data_parallel   one process, the summed batch: the mode "data-parallel", and its steps alone
    lease_source    the data that an island reads, if a tape determines it
"""
