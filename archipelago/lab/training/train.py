"""A run in virtual time, in any mode, from its configuration to its result."""

from __future__ import annotations

from collections.abc import Sequence

from archipelago.lab.training import data_parallel as single
from archipelago.lab.training.average import Averages
from archipelago.lab.training.loss_curve import Learned, LossCurve, regional
from archipelago.lab.training.question_sets import QuestionSets
from archipelago.lab.training.supported import refused
from archipelago.lab.training.timing import Timing
from archipelago.lab.training.virtual_interval import with_virtual_interval
from archipelago.lab.training.world import TrainingWorld
from cluster.config.schema import Config
from cluster.config.values import Mode
from cluster.workers.evaluator import Evaluator
from coordinator.errors import UserMistake


def train(
    config: Config,
    timing: Timing,
    look_every: int,
    average_shares: Sequence[float] = (),
    tasks: Sequence[str] = (),
) -> Learned:
    """Train to the end; `look_every` syncer steps lie between two evaluations (0: none).

    `average_shares` are the time constants of moving averages of the global model, as shares of T.
    `tasks` are files of multiple-choice questions that the final model answers. One seed gives the
    same bits.

    Errors: `UserMistake` with every reason if virtual time does not support this run; `RunFailed`
    if the run fails.
    """
    if problems := refused(config):
        raise UserMistake("\n".join(problems))
    questions = QuestionSets.of(tasks)
    questions.check(config)
    config = with_virtual_interval(config, timing)
    averages = Averages.of(average_shares, config.run.steps)
    curve = LossCurve(
        Evaluator(config), look_every, averages, of_regions=regional(config), questions=questions
    )
    match config.run.mode:
        case Mode.DATA_PARALLEL | Mode.ELASTIC:
            return single.train(config, timing, curve)
        case Mode.DECOUPLED | Mode.DILOCO | Mode.STREAMING:
            return TrainingWorld(config, timing, curve).run()
