"""An island's process: runs a learner on a thread of its own, and ends when that breaks."""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.config import Config
from coordinator.errors import Rejected
from coordinator.protocol import Island

if TYPE_CHECKING:  # JAX is imported on the learner's thread, where a failure can be reported
    from islands.learner import Learner, Link

log = logging.getLogger("archipelago.island")


class IslandProcess:
    """What an island's actor holds. If the learner breaks the process ends, and Ray restarts it."""

    def __init__(
        self,
        config: Config,
        island: Island,
        link: Callable[[], Link],
        delay_s: Callable[[], float],
        last_words: Callable[[str], None],
    ) -> None:
        """Cannot fail: an actor whose constructor raises is never restarted.

        `delay_s` is asked how long to wait before anything is begun: one that failed again and
        again shall not keep its machine busy with failing.
        """
        self._config, self._island = config, island
        self._link, self._delay_s, self._last_words = link, delay_s, last_words
        self.learner: Learner | None = None
        threading.Thread(target=self._live, name="train", daemon=True).start()

    def _live(self) -> None:
        try:
            time.sleep(self._delay_s())
            from cluster.island import build

            self.learner = build(self._config, self._island, self._link())
            self.learner.run()
        except Rejected as error:
            log.warning("%s", error)
        except BaseException:
            log.exception("island %s broke; its process ends and will be restarted", self._island)
            try:
                self._last_words(traceback.format_exc())
            finally:
                logging.shutdown()
                os._exit(1)
