"""What runs on an island's host: the process around a learner, its task and data; the evaluator.

`actors`, `launch` (to refuse a task before anything starts) and `bench` come in. JAX is imported
here and in `islands`, and nowhere else of `cluster`.
"""
