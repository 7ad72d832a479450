"""The simulator: real rules and real shell in virtual time, with a network that loses and delays.

`archipelago.lab.virtual` is the engine; this package has integers as its payload, and the faults.
`cli` and `bench` may import this package; a run never does. Time is virtual, and one seed
determines everything random, so that a schedule that breaks an invariant can be repeated from its
number.

    world            a cluster without machines; plays a plan to its end
    plan             the shape and the faults of a simulated run, drawn from one seed
    from_config      `archipelago simulate CONFIG.toml`: a plan from a configuration
    fuzz             `archipelago simulate --fuzz`: many plans, judged
    fuzz_schedule    one schedule of a fuzz, and the sum over many
    fuzz_failures    the report of a failure, its file, and its shortest tape
    site             the state that all parts of a simulated cluster share
    network          links between islands and the rest, which lose and delay messages
    process          the process of an island whose learners have no model
    hosts            the other hosts of an island: each hands in its own part
    learner          one life of a learner without a model
    lease_reader     the data of a learner: leases, and the windows that it reads of them
    poison           the hand-ins of a poisoned learner
    lies             the messages of a lying learner: one number is changed
    syncer           the syncer's place: shell, tape, death, return
    payloads         the stand-ins for encoded arrays
    integer_shard    the stand-in for a shard's arithmetic and files: integers
    shards           the shards, each with its real code on integers
    fate_checks      a check that learners receive the true outcomes of their contributions
    ports            the syncer's ports to the simulated world
    faults           the faults of a plan, and their repair
    shard_faults     the death of one shard, and its return
    stray_messages    events that reach the syncer too late, again, or by mistake
"""
