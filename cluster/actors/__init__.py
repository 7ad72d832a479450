"""The processes of a run as Ray actors, around the plain classes of the layers below.

`fleet`, `launch` and `bench` import this layer. Only these layers use Ray. Here each untyped Ray
handle gets a typed wrapper, errors are distinguished by type, and Ray retries nothing.

    directory        handles of a run's actors, looked up by name
    start            start, look-up and end of each actor, with its Ray options
    call_errors      classification by type of the errors that Ray raises for a call
    learner_link     a learner's link to syncer, shards and fleet, over Ray
    donor_moments    the optimizer moments that a donor gives to a joining learner
    blocking_calls   calls that block until they are answered, with a timeout or with retries
    fault_injection  the faults that a process can inject into itself
    bring_up         the recovery of a restarted process from the depot
    restart          the exit of a syncer or shard process so that Ray restarts it
"""
