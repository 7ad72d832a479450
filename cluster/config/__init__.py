"""The configuration of a run: TOML that is validated once on entry, printed and hashed.

Every module above may import from here. Code behind this point does not validate again. A problem
names its place in the notation of `--set`: `sync.every`, `islands.0.count`.

    load             reads the file and the overrides, returns a `Config` or every problem at once
    other_files      recognises files that another command reads
    override         `--set a.b=c`, applied to the tables
    schema           `Config`, with the tables of durability and monitoring; names all other tables
    table            the base class of a table
    run_table        the table `[run]`, and the budget of a run
    training_tables  the tables of what a run trains and how
    machine_tables   the tables of islands, the evaluator and their meshes
    fault_tables     the tables of fault injection, and of the policy for islands that fail
    values           the types of single fields, and their validators
    tracker_names    the names of trackers in `monitor.track`
    modes            the values that `run.mode` fixes, proposes and refuses
    field_check      a check between fields, and the fields that it reads
    checks           the list of all checks between fields, and some of them
    machine_checks   checks between fields of slices, hosts and meshes
    loop_checks      checks of a run that trains with a loop of the user's own
    optimizer_checks  checks between fields of `[optimizer]`
    sync_checks      checks between fields of `[sync]`, and between these and other tables
    problem_text     the wording of a problem
    toml             values and tables in TOML notation
    rule             converts a configuration to `coordinator.state.Rule`
    data_tables      the tables of the training data
    monitor_tables   the law of the expected loss, `[monitor.law]`
    data_checks      checks between the fields of the training data
    region_tables    the tables of regions: their data, and what may leave them
    region_checks    checks of regions, and of the corpora that they share
    interval_inputs  the inputs of `sync.every = "auto"`, and its resolved form
    fault_kinds      the table of all kinds of fault injection
    slices           the chips and hosts of a TPU topology
    machines         a cluster file: chips, regions, links, and the training job for them
    admission        checks whether a learner may join, by its name and its group
"""
