"""The configuration of a run: TOML, checked once at the door, printed and hashed.

Everybody above may come in: what is past this door need not be checked again. Where a problem lies
is said the way `--set` takes it: `sync.every`, `islands.0.count`.

    load             reads the file and the overrides, returns a `Config` or every problem at once
    override         `--set a.b=c`, applied to the tables
    schema           `Config`, with the tables of durability and monitoring; names all other tables
    table            the base class of a table
    training_tables  the tables of what is trained and how
    machine_tables   the tables of islands, the evaluator and their meshes
    fault_tables     the tables of faults, and of the policy for islands that fail
    values           what a single field may hold
    modes            what `run.mode` fixes, proposes and refuses
    field_check      a check between fields, and the fields that it reads
    checks           the list of all checks between fields, and some of them
    machine_checks   checks between fields of slices, hosts and meshes
    sync_checks      checks between fields of `[sync]`, and between these and other tables
    problem_text     what is wrong, in words
    toml             values and tables as TOML writes them
    rule             a configuration as `coordinator.state.Rule`
    fault_kinds      the one table of what can be broken on purpose
    slices           what a TPU topology means: chips, hosts
    machines         a cluster file: chips, regions, links, what shall be trained on them
    admission        who may be an island of a run, by its name and its group
"""
