"""A run in virtual time: from its configuration to what it comes to, in whichever mode."""

from __future__ import annotations

from cluster.config.schema import Config
from cluster.config.values import Mode
from cluster.host.evaluator import Evaluator
from cluster.virtual import single
from cluster.virtual.curve import Learned, LossCurve
from cluster.virtual.possible import refused
from cluster.virtual.timing import Timing
from cluster.virtual.world import World
from coordinator.errors import UserMistake


def train(config: Config, timing: Timing, look_every: int) -> Learned:
    """Train to the end; `look_every`: syncer steps from one look at the model to the next, 0: none.

    One seed gives the same bits. Errors: `UserMistake` if virtual time cannot have this run, with
    every reason; `RunFailed` if it comes to nothing.
    """
    if problems := refused(config):
        raise UserMistake("\n".join(problems))
    curve = LossCurve(Evaluator(config), look_every)
    match config.run.mode:
        case Mode.DATA_PARALLEL | Mode.ELASTIC:
            return single.train(config, timing, curve)
        case Mode.DECOUPLED | Mode.DILOCO | Mode.STREAMING:
            return World(config, timing, curve).run()
