"""An outer optimizer, `sync.outer.target = "archipelago.examples.outer_optimizer:outer"`."""

import optax


def outer(learning_rate: float = 0.5) -> optax.GradientTransformation:
    """Return Nesterov momentum with a limit on the length of the step."""
    return optax.chain(
        optax.clip_by_global_norm(10.0),
        optax.sgd(learning_rate, momentum=0.9, nesterov=True),
    )
