"""The processes of a run, as actors of Ray around the plain classes of the rooms below.

`fleet`, `launch` and `bench` come in. All that knows that there is Ray is here and with them: a
typed handle for each untyped one, errors told apart by type, nothing retried by Ray.

    directory        handles of a run's actors, looked up by name
    start            how each actor is started, found and ended, with its options
    call_errors      what Ray raises where a call should have been answered, told apart by type
    learner_link     what a learner reaches: syncer, shards and fleet, over Ray
    donor_moments    the moments that a donor gives to a learner that joins
    blocking_calls   the calls of a process that block until they are answered
    fault_injection  what a process does to itself when a fault is injected
    bring_up         the bring-up of a restarted process from the depot
    restart          how a process of the core ends so that Ray restarts it
"""
