"""An island's process.

Modules:

    actor          the actor of an island: its process, and the run's calls to it
    learner_calls  the calls that an island answers from its learner
    payload_waits  the waits for payloads of publications, bounded for later offers
    call_threads   the threads of an island for each kind of call, and the fence around each call
"""
