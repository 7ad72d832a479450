"""The code of an island's host: the process around a learner, its task and data; the evaluator.

`actors`, `fleet`, `bench` and `launch` (to refuse a task before anything starts) import this layer.
JAX is imported here and in `islands`; elsewhere in `cluster` only by benches and by an optax outer
step.

    island_process  a process that runs a learner on its own thread, and ends if that breaks
    assembly        construction of a learner from the configuration, slow parts first
    border          the border of a region: the one check of what its islands send
    loop_problems   the check of a task with a training loop of the user's own
    environment     environment variables of a process that computes
    notice_watch    notices that a host will be taken away: SIGTERM, and its cloud's
    cloud_notices   the formats of the clouds' notices, and the requests for them
    device_encoder  the encoder of deltas, compiled on the devices
    step_timing     the time of a step, measured before a run starts
    evaluator       the initial model, and the held-out loss of the public fragments
    evaluator_answers  the types of its answers, without JAX
    contribution_effect  the effect of one contribution on the held-out loss
    region_corpus   the check of a region's corpus, inside its border, before a run starts
    region_judge    the held-out loss on the text of a region, inside its border
"""
