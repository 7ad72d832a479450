"""Held-out loss along the way, and the figures of a virtual run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from archipelago.lab.training.average import Averages
from archipelago.lab.training.evaluations import METRICS, REGION_PREFIX, Evaluation
from archipelago.lab.training.question_sets import QuestionSets
from cluster.config.schema import Config
from cluster.storage.model_file import fingerprint
from cluster.workers.evaluator import Evaluator
from coordinator.fragments import Flat


def regional(config: Config) -> dict[str, Evaluator]:
    """Return an evaluator for each region with data of its own."""
    groups = {group.region: group for group in config.islands if group.region is not None}
    return {name: Evaluator(config.within(groups[name])) for name in config.regions}


@dataclass(frozen=True, slots=True)
class Learned:
    """The result of a virtual run."""

    figures: dict[str, object]
    """The keys of `summary.json`, with `wall_s` in virtual seconds, and `mode`."""
    curve: list[Evaluation]
    """The evaluations during training."""


@dataclass(slots=True)
class LossCurve:
    """Evaluations of the global model, always on the same windows."""

    evaluator: Evaluator
    every: int
    """Steps between two evaluations; 0: only at the end."""
    averages: Averages = field(default_factory=lambda: Averages([]))
    looks: list[Evaluation] = field(default_factory=list[Evaluation])
    of_regions: Mapping[str, Evaluator] = field(default_factory=dict[str, Evaluator])
    """Evaluators on the held-out text of each region with data of its own."""
    questions: QuestionSets = field(default_factory=QuestionSets)
    """Questions that the final model answers."""

    def due(self, t: int) -> bool:
        """Return whether the next evaluation is due at step t."""
        return self.every > 0 and t // self.every > (
            self.looks[-1].t // self.every if self.looks else 0
        )

    def look(self, t: int, time_s: float, tokens: int, flats: Sequence[Flat]) -> None:
        """Evaluate the model at this step."""
        self.looks.append(Evaluation(t, time_s, tokens, self.evaluator.sample(flats)))

    def ended(
        self,
        config: Config,
        t: int,
        time_s: float,
        measured: dict[str, object],
        flats: Sequence[Flat],
    ) -> Learned:
        """Evaluate the final model; `measured` holds all other figures."""
        tokens = measured["tokens_trained"]
        assert isinstance(tokens, int)
        if self.every > 0:
            self.look(t, time_s, tokens, flats)
        figures = measured | {
            "mode": config.run.mode.value,
            "initial_heldout_loss": self.evaluator.initial_loss,
            "heldout_loss": self.evaluator.loss(flats),
            METRICS: self.evaluator.metrics,
            **{
                f"{REGION_PREFIX}{name}": each.loss(flats) for name, each in self.of_regions.items()
            },
            **self.averages.ended(t, flats, self.evaluator.loss),
            **self.questions.ended(config, self.evaluator.layout, flats),
            "wall_s": time_s,
            "global_sha256": fingerprint(flats),
        }
        return Learned(figures, self.looks)
