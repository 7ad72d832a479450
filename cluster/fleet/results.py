"""What a run leaves for people at its end: its model and its summary."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.fleet.outcome import SUMMARY_KEYS, Outcome
from cluster.fleet.services import Services
from cluster.storage import runs
from cluster.storage.depot import Depot
from cluster.storage.files import json_bytes, write
from cluster.storage.folder import Folder
from cluster.storage.model_file import ModelFiles
from coordinator.fragments import Layout

log = logging.getLogger("archipelago.fleet")


@dataclass(frozen=True, slots=True)
class Results:
    """Where they go: the run directory, and the depot if that is elsewhere and will have them."""

    run_dir: Path
    depot: Depot

    def leave(
        self,
        services: Services,
        layout: Layout,
        measured: dict[str, object],
        *,
        check: Callable[[], None],
        began: float,
        asked: Callable[[], str | None],
    ) -> Outcome:
        """Save the public model, have it judged, sum up.

        `measured`: the syncer's figures. `check`: is the run ours still? `began`: in seconds since
        1970. `asked`: who wants it to end; if nobody does as yet, who comes to want that while the
        model is judged has the end without the verdict.

        Errors: `Unavailable`; what `check` raises.
        """
        files = ModelFiles(self.run_dir, layout)
        try:
            for version, flat in services.public():
                files.add(version, flat)
            check()  # what another one trains on has no model yet
            for path in files.publish():
                self._copy(path)
        finally:
            files.discard()
        figures = dict.fromkeys(SUMMARY_KEYS) | measured
        figures["global_sha256"] = files.fingerprint
        self._sum_up(figures, began)  # whoever does not wait for the verdict has all but that
        before = asked()
        losses, missing = services.judging.verdict(files.versions, lambda: asked() != before)
        summary = self._sum_up(figures | losses, began)
        return Outcome(summary, asked=asked(), missing=missing)

    def _sum_up(self, figures: Mapping[str, object], began: float) -> dict[str, object]:
        summary = {key: figures[key] for key in SUMMARY_KEYS} | {"wall_s": time.time() - began}
        self._write(runs.SUMMARY, json_bytes(summary))
        return summary

    def _write(self, name: str, content: bytes) -> None:
        write(self.run_dir / name, content)
        self._copy(self.run_dir / name)

    def _copy(self, path: Path) -> None:
        """To the depot, if that is elsewhere."""
        if self.depot == Folder(self.run_dir):
            return
        try:
            self.depot.copy(path)
        except OSError as error:
            log.error("%s is not in %s: %s", path.name, self.depot, error)
