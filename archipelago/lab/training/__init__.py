"""Virtual time with real training: no Ray, no sleeping, no threads, and the same bits for a seed.

`study`, `bench` and `cli` may come in; a run never imports this room. The syncer's shell and the
rules, the learner's state, the inner step, the encoders, both ends of the wire and the shard are
those of a run on Ray. Only time, machines and the network between them are numbers.

    train           a configuration in its mode, from the beginning to what it comes to
    virtual_file    a file with a configuration and a table [virtual], checked
    __main__        `python -m cluster.virtual FILE.toml`: one run, as JSON
    supported       what virtual time can play, and what it cannot
    retrain         a run that was on Ray, with the leases of its tape
    timing          how long things take: a step, a word, a merge, a byte
    compiled_parts  what is compiled, once for all islands and cells that can share it
    loss_curve      held-out loss along the way, and what a run comes to
    average         moving averages of the global model, judged at the end
    evaluations     what was seen of the global model on the way
    world           islands, syncer and shard: the modes "decoupled", "diloco" and "streaming"
    network         words and bytes between processes and the syncer
    process         a process of an island, with one life after another in it
    learner         one life: `islands.learner_state`, carried by callbacks, with a model
    ports           what the syncer reaches: the real shard, and learners
    faults          a fault plan, as far as it has a meaning here
    data_parallel   one process, the summed batch: the mode "data-parallel", and its steps alone
    lease_source    which data an island reads, if a tape says so
"""
