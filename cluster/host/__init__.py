"""What runs on an island's host: the process around a learner, its task and data; the evaluator.

`actors`, `fleet`, `bench` and `launch` (to refuse a task before anything starts) come in. JAX is
imported here and in `islands`; elsewhere in `cluster` only by benches and by an optax outer step.

    process      runs a learner on a thread of its own, and ends when that breaks
    build        builds a learner out of the configuration: what takes long first
    environment  what a process that computes is started with
    gang         the hosts of one island: who they are, and how orders get to them
    news         the threads on which they hear of publications and discarded contributions
    held_port    a port that is held for a server that begins later
    evaluator    the initial model, and the held-out loss of the public fragments
"""
