"""What runs on an island's host: the process around a learner, its task and data; the evaluator.

`actors`, `fleet`, `bench` and `launch` (to refuse a task before anything starts) come in. JAX is
imported here and in `islands`; elsewhere in `cluster` only by benches and by an optax outer step.

    island_process  runs a learner on a thread of its own, and ends when that breaks
    assembly        builds a learner out of the configuration: what takes long first
    environment     what a process that computes is started with
    evaluator       the initial model, and the held-out loss of the public fragments
"""
