"""The benchmarks behind `archipelago bench`, with their baselines and stand-ins.

Only `cli` imports this package, and no run does. A benchmark uses a run as any user would, or
through an actor of its own (`stub_actor`, `baseline_actor`).

    parity                held-out loss of islands against data-parallel at equal tokens
    baseline              the learning rate and momentum that are best for data-parallel
    data_parallel         the process that trains the same model data-parallel
    parity_modes          all modes in virtual time at equal tokens: `bench parity --lock-step`
    recovery              the time until a killed process is back
    faults                the throughput that is left when processes are killed regularly
    fault_levels          goodput by level of failure, in three modes: `bench faults --levels`
    fault_levels_plan     its levels, and the plan of kills of each
    fault_levels_files    its figures, read from the looks and events of a run
    fault_levels_simulated  the goodput that the simulator predicts from the same kills
    fault_levels_written  its files: JSON, CSV and pictures
    calibrate             the simulator's prediction for this machine, beside real runs
    calibrate_simulation  a window in virtual time, with the times of a machine
    calibrate_tape        the figures that are read from a tape, real or simulated
    child_run             a run in processes of its own, and the files that it leaves
    run_story             the events of a run that has ended, with their times
    raylets               a Ray cluster of several nodes on this machine
    overhead              the cost of the system for islands that train anyway
    baseline_actor        an island's actor that trains with the others or alone, on request
    scale                 the cost and latency of one syncer, by number of learners
    load_window           a window at one rate of reports, and the search for the highest rate
    empty_actor           the same reports to an actor that does nothing: the limit of Ray's calls
    stub_learner          a learner without a model; hundreds of them share a core
    stub_lanes            one fetch of a fragment at a time, and the newest offer waits
    stub_material         the shared parts of stub learners: pace, deltas, a link
    stub_actor            the actor that holds many stub learners
    embedded_core         a syncer and shards on an embedded Ray, and nothing else
    large                 whether costs are independent of the length of a run
    long_tape             a tape as a long run leaves it, played once and cached
    joins                 many learners join a large model over a thin link; then its shard is
                          killed
    joiner                a learner that joins and then only holds the model
    hosts                 two hosts with a thin link between them: network namespaces
    memory                the memory of each process, as formulas
    merge                 the speed of a merge, compared with the speed of memory
    merge_workload        the merges, sums and copies that `merge` times
    merge_memory          the memory of a shard that merges
    wire                  the cost of each encoding, in bytes, in time and in loss
    accelerator           one accelerator: each part in a process, in turn; works without Ray
    accelerator_child     the bench's handle on a part that runs in a process of its own
    accelerator_parts     a part in its process, and the file with its figures
    accelerator_device    the measured models, the device's memory, and clocks
    accelerator_step      the inner step with hand-ins and adoptions, and without
    accelerator_loopback  a learner whose contributions come back to it, unmerged
    accelerator_wire      cut, encode and adopt on the device, beside the host path
    accelerator_study     data-parallel, H = 8 and H = 24 in virtual time
    accelerator_figures   rows, gaps, and the number of steps there is time for
    wan                   methods over thin, long links between regions on this machine
    wan_points            its links, models and steps, and what the planner predicts
    wan_decoupled         the decoupled side: a real syncer and shards, paced stand-ins
    wan_samples           merges, queues and the bytes of a link during a measurement
    wan_ring              the other methods: a ring all-reduce over plain TCP
    wan_cut               a real run while one region is cut off, or slow
    wan_bytes             the bytes of an audit beside those of the interfaces
    wan_bulk              objects at the full rate of all links, while nodes must stay alive
    wan_run               a run, or a driver of the cluster, over the regions of a network
    goals                 the targets of the figures, and whether they are reached
    stats                 medians with their intervals, and the demo's configuration
    tables                writes the output of the benchmarks into docs/lab/benchmarks.md
    procfs                CPU seconds and memory of processes, read from /proc
"""
