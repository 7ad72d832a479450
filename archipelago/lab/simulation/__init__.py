"""The simulator: real rules and real shell in virtual time, with a network that loses and delays.

`cli` and `bench` may come in; a run never imports this room. Time is virtual and all chance comes
from one seed, so that a schedule that breaks an invariant is played again from its number.

    world            a cluster with no machines; plays a plan to its end
    plan             what a simulated run is like and what breaks in it, drawn from one seed
    from_config      `archipelago simulate CONFIG.toml`: a plan from a configuration
    fuzz             `archipelago simulate --fuzz`: many plans, judged
    fuzz_schedule    one schedule of a fuzz, and the sum over many
    fuzz_failures    how a failure is told and kept, and how its tape is made short
    event_loop       an event loop whose clock is a number
    site             what all parts of a simulated cluster share
    network          links between islands and the rest, with all that they do to messages
    learner_process  a process of an island, with one life after another in it
    process          the process of an island whose learners have no model
    hosts            the other hosts of an island: each hands in its part by itself
    learner          one life of a learner without a model: the real one's state, carried by
                     callbacks
    lease_reader     its data: leases, and the windows that it reads of them
    poison           what a poisoned one hands in instead
    lies             what a lying one says: its words with one number that is another one
    syncer           the syncer's place: shell, tape, death, return
    payloads         what is sent instead of encoded arrays
    integer_shard    what stands in for a shard's arithmetic and files: integers
    shards           where the shards live and die, each of them as it runs
    fate_checks      is what learners are told of their contributions true?
    ports            what the syncer reaches of the simulated world
    faults           what breaks when the plan says so, and how it is mended
    shard_faults     the death of one shard, and its return
    stray_words      events that reach the syncer too late, again, or by mistake
"""
