"""An island's process.

Modules:

    actor          the actor of an island: its process, and the calls that the run makes of it
    learner_calls  the answers that an island gives with what its learner has
    call_threads   the threads of an island for calls of each kind, and the fence around each
"""
