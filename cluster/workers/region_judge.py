"""The evaluation of the global model on held-out text of one region, inside the region's border.

Exceptions leave as their class and a code if the region keeps its texts, like those of an island.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from cluster.config.region_tables import Leaving
from cluster.config.schema import Config
from cluster.workers.border import Border
from cluster.workers.contribution_effect import SampledContribution, effect_of
from cluster.workers.evaluator_answers import Judged, RegionLoss
from coordinator.fragments import Flat
from coordinator.protocol import Version

if TYPE_CHECKING:
    from cluster.workers.evaluator import Evaluator

log = logging.getLogger("archipelago.evaluator")


class RegionJudge:
    """An evaluator whose answers are numbers, or the class and code of an exception."""

    def __init__(
        self,
        config: Config,
        border: Border,
        newest: Callable[[], tuple[int, Sequence[tuple[Version, Flat]]] | None],
        of: Callable[[Sequence[Version]], list[Flat]],
        take: Callable[[], SampledContribution | None] = lambda: None,
    ) -> None:
        """Prepare; this reads nothing yet.

        - `config`: as `Config.evaluated_in` returns it.
        - `newest`: returns the syncer step and the public fragments with their versions; None while
          they are away.
        - `of`: returns the fragments in these versions.
        - `take`: returns a contribution of the region that is part of the model, or None.
        """
        self._config, self._border, self._newest, self._flats = config, border, newest, of
        self._take = take
        self._made: Evaluator | None = None

    @property
    def judged(self) -> Judged:
        """The progress so far; also readable during an evaluation."""
        return Judged(0, 0.0) if self._made is None else self._made.judged

    def sample(self, measures: bool = False) -> RegionLoss | str | None:
        """Return the loss of the present model over the windows of an evaluation during the run.

        `measures`: whether to measure the effect of a contribution of the region, too.
        Return None if the syncer or a shard is just coming back, and the reason of a failure in
        words that may leave the region.
        """
        return self._passed(partial(self._sampled, measures))

    def loss(self, versions: Sequence[Version]) -> RegionLoss | str | None:
        """Return the loss of these versions of all fragments.

        Return the reason of a failure in words that may leave the region.
        """
        return self._passed(lambda: RegionLoss(0, self._evaluator.loss(self._flats(versions))))

    @property
    def _evaluator(self) -> Evaluator:
        if self._made is None:
            from cluster.workers.evaluator import Evaluator  # imports JAX only when needed

            self._made = Evaluator(self._config)
        return self._made

    def _sampled(self, measures: bool) -> RegionLoss | None:
        evaluator = self._evaluator  # it reads the text first, then asks for the newest model
        sampled = self._take() if measures else None
        if (found := self._newest()) is None:
            return None
        t, model = found
        loss, wire = evaluator.sample([flat for _, flat in model]), self._config.sync.wire_up
        return RegionLoss(t, loss, effect_of(sampled, model, loss, wire, evaluator.sample))

    def _passed(self, evaluate: Callable[[], RegionLoss | None]) -> RegionLoss | str | None:
        """Return an answer that may leave the region.

        No exception leaves this method: Ray would send its text and its traceback to the fleet.
        """
        try:
            return self._border.passes(Leaving.REPORT, evaluate())
        except BaseException as error:  # noqa: BLE001 - its text must not reach Ray
            words = self._border.error_text(error)
        log.error("the model could not be evaluated: %s", words)
        return words
