"""What measures: the benches behind `archipelago bench`, their baselines and stand-ins.

Only `cli` comes in. A run never imports this room: whatever a bench needs of a run it gets as any
user would, or over an actor of its own (`stub_actor`, `baseline_actor`).

    parity                held-out loss of islands against data-parallel at equal tokens
    baseline              the learning rate and momentum that are best for data-parallel
    data_parallel         the process that trains the same model data-parallel
    parity_modes          all modes in virtual time at equal tokens: `bench parity --lock-step`
    recovery              how long it takes until who was killed is back
    faults                what is left of a run in which something dies every so often
    calibrate             what the simulator says of this machine, beside real runs
    calibrate_simulation  a window in virtual time, with a machine's times
    calibrate_tape        the figures that are read off a tape, real or simulated
    child_run             a run in processes of its own, and what it leaves to be read
    raylets               a Ray cluster of several nodes on this machine
    overhead              what the system costs islands that train anyway
    baseline_actor        an island's actor that trains with the others or alone, as it is told
    scale                 what one syncer costs, and how fast it answers, by number of learners
    stub_learner          a learner without a model, of which hundreds share a core
    stub_material         what the learners without a model have in common: pace, deltas, a link
    stub_actor            the actor that holds many stub learners
    embedded_core         a syncer and a shard on an embedded Ray, and nobody else
    large                 do costs follow what happened, however long a run is?
    long_tape             a tape as a long run leaves it, played once and kept
    joins                 many learners join a large model over a thin link; then its shard is
                          killed
    joiner                a learner that joins and then only holds the model
    hosts                 two hosts with a thin link between them: network namespaces
    memory                how much memory each process takes, as formulas
    merge                 how near a merge comes to the speed of memory
    merge_workload        what is merged, summed and copied for that
    merge_memory          the memory of a shard that merges
    wire                  what each encoding costs, in bytes, in time and in what is learned
    accelerator           one accelerator: each part in turn, as a process; works without Ray
    accelerator_child     a part that runs in a process of its own, as the bench sees it
    accelerator_parts     a part in its process, and the file with its figures
    accelerator_device    the measured models, the device's memory, and clocks
    accelerator_step      the inner step with hand-ins and adoptions, and without
    accelerator_loopback  a learner whose contributions come back to it, unmerged
    accelerator_wire      cut, encode and adopt on the device, beside the host path
    accelerator_study     data-parallel, H = 8 and H = 24 in virtual time
    accelerator_figures   rows, gaps, and how many steps there is time for
    goals                 what the figures are meant to be, and whether they are
    stats                 medians with their intervals, and the demo's configuration
    tables                writes what benches print into docs/benchmarks.md
    procfs                CPU seconds and memory of processes, read off /proc
"""
