"""Draw the boards for the documentation, from a real run with faults and a real Prometheus.

    python -m tests.board_pictures docs/pictures/boards

It trains a small model on three islands of this machine for some minutes, kills one of them, and
has another one send NaN. `make board-pictures` runs it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.live.cli import TINY, finish, last_status, place, until
from tests.live.prometheus import prometheus_of

SHOWN_S = 150.0
"""Seconds of training that the pictures show."""
RUN = "three-islands"
KILL_AT, NAN_AT = 60, 160
"""The syncer steps of the faults."""
FAULTS = (
    f'[{{at_step = {KILL_AT}, kind = "kill", island = "local-1"}},'
    f' {{at_step = {NAN_AT}, kind = "nan", island = "local-2"}}]'
)
EXPECTED = "tokens,loss,low,high\n1,5.5,4.5,6.5\n300000,3.0,2.6,3.4\n1000000000,1.5,1.2,1.8\n"
"""A curve of losses; its band is wide at first."""


def main(folder: Path) -> int:
    """Write the pictures, and return the exit code of the command that draws them."""
    with place() as here:
        curve = here.folder / "curve.csv"
        curve.write_text(EXPECTED)
        run_dir = here.folder / RUN
        settings = (
            "run.steps=1000000", "islands.0.count=3", "islands.0.step_s=0.2",
            f"monitor.expected={curve}", f"faults.plan={FAULTS}",
            f"monitor.targets={here.folder / '.archipelago' / 'targets'}",
        )  # fmt: skip
        sets = [word for each in settings for word in ("--set", each)]
        process = here.start("run", str(TINY), "--json", "--run-dir", str(run_dir), *sets)
        with prometheus_of(here.folder, run=RUN) as prometheus:
            until(lambda: last_status(run_dir).get("t", 0) > 0 or process.poll() is not None)
            began_s = time.monotonic()
            until(lambda: time.monotonic() > began_s + SHOWN_S or process.poll() is not None)
            drawn = here.run(
                "dashboards", "--pictures", str(folder.resolve()), "--run", RUN,
                "--prometheus-url", prometheus.url, "--last", f"{time.monotonic() - began_s:.0f}",
            )  # fmt: skip
            print(drawn.out, drawn.err, sep="")
        here.run("stop", str(run_dir))
        ended = finish(process)
        if ended.code != 0:
            print(ended.err, file=sys.stderr)
    return drawn.code or ended.code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
