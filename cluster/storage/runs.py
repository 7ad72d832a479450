"""Run directories: the files of a run for people, and how another terminal finds them."""

from __future__ import annotations

import json
import logging
import operator
import os
import tomllib
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.names import namespace_of
from cluster.storage.binding_settings import changes
from cluster.storage.depot import Depot
from cluster.storage.files import json_bytes, write, write_json
from cluster.storage.fleet_file import FLEET_FILE, load_fleet_memory, save_fleet_memory
from cluster.storage.folder import Folder
from cluster.storage.format import Damaged
from cluster.storage.open_depot import depot_of, region_depots
from cluster.storage.ownership import lives_here
from cluster.storage.pids import born, is_alive
from cluster.storage.store_check import store_problems, unusable
from coordinator.errors import UserMistake

if TYPE_CHECKING:
    from cluster.config.schema import Config

log = logging.getLogger("archipelago.runs")
AUTH_MODE = "RAY_AUTH_MODE"
"""A variable that Ray reads at import: whether its cluster requires a token."""
CONFIG = "config.toml"
"""The configuration of the run."""
LIVE = "live.json"
"""The file with the address of the run while it is running."""
SUMMARY = "summary.json"
"""The final figures of the run."""
FROM_STORED = "from-stored.json"
"""Names the owner that resumes with `--from-stored`, until that is done."""
TARGET = "prometheus.json"
"""The address of the run's HTTP port; also as RUN.json in the folder of targets, for Prometheus."""
TOKEN = "token"
"""The token that is needed to see the run from another machine."""


@dataclass(frozen=True, slots=True)
class Live:
    """The address of a live run: its Ray cluster, and the names of its actors there."""

    run: str
    namespace: str
    address: str
    pid: int
    auth: str | None = "disabled"  # None: unknown; Ray keeps the token itself
    born: int | None = None  # when its process began, in clock ticks; None: unknown

    def prepare(self) -> None:
        """Set up authentication for the run's cluster; call this before Ray is imported."""
        if self.auth is not None:
            os.environ.setdefault(AUTH_MODE, self.auth)


def name_of(config: Config, config_path: Path, now: datetime) -> str:
    """Return the configured name, or one made from the file's name and the time."""
    return config.run.name or f"{config_path.stem}-{now:%Y%m%d-%H%M%S}"


def home_of_job(config: Config, config_path: Path, now: datetime) -> Path:
    """Return the directory of a submitted run: Ray deletes a job's own folder with the job."""
    return Path.home() / "archipelago" / config.run.dir / name_of(config, config_path, now)


def choose(config: Config, config_path: Path, run_dir: Path | None, now: datetime) -> Path:
    """Return the run's directory: `run_dir`, or one named after the run, its file and the time.

    Errors: `UserMistake` if it or its place in `durability.dir` is in use, or cannot be used.
    """
    chosen = run_dir or Path(config.run.dir) / name_of(config, config_path, now)
    problems: list[str] = []
    if chosen.exists() and (not chosen.is_dir() or any(chosen.iterdir())):
        state = "holds a run already" if (chosen / CONFIG).exists() else "is not empty"
        problems.append(
            f"run directory {chosen} {state}; choose another one with --run-dir, "
            "or another name with --set run.name=NAME"
        )
    problems += store_problems(config, chosen)
    if problems:
        raise UserMistake("\n".join(problems))
    return chosen


def resume(config: Config, run_dir: Path | None) -> Path:
    """Return the directory of a run that died and should continue, by --run-dir or by its name.

    Errors: `UserMistake` if there is none, it is running, it has ended, or its configuration
    differs; islands and monitor may differ, but each group keeps its region and batch size.
    """
    chosen = resumed_dir(config, run_dir)
    depot = depot_of(config, chosen)
    try:
        if not depot.has(CONFIG):
            why = f"is not the directory of a run that was begun: it has no {CONFIG}"
            raise UserMistake(f"--resume: {depot} {why}")
        ended_depots = [place for place in (depot, Folder(chosen)) if place.has(SUMMARY)]
        old = begun(depot)
        for store in (depot, *region_depots(config, chosen).values()):
            store.probe()
        owner = lives_here(depot)
    except OSError as error:
        raise UserMistake(unusable(config, error)) from error
    if (live := live_of(chosen)) is not None:
        raise UserMistake(f"--resume: run {chosen} is live, as process {live.pid}")
    if owner is not None:
        raise UserMistake(f"--resume: run {chosen} is live, as {owner}")
    if ended_depots:
        raise UserMistake(f"--resume: run {chosen} has ended; see {SUMMARY} in {ended_depots[0]}")
    if changed := changes(old, config):
        raise UserMistake(
            f"--resume: run {chosen} was configured otherwise, and keeps its configuration: "
            + "; ".join(changed)
        )
    return chosen


def resumed_dir(config: Config, run_dir: Path | None) -> Path:
    """Return the directory of the run to resume.

    Errors: `UserMistake` if neither the directory nor the name was given.
    """
    if run_dir is None and config.run.name is None:
        raise UserMistake("--resume: say which run, with --run-dir DIR or --set run.name=NAME")
    return run_dir or Path(config.run.dir) / str(config.run.name)


def begun(depot: Depot) -> Config:
    """Return the last configuration of the run that is there.

    Errors: `UserMistake` if it cannot be read.
    """
    from cluster.config.load import parse

    try:
        plain = tomllib.loads(depot.read(CONFIG).decode())
    except ValueError as error:
        raise UserMistake(
            f"{CONFIG} in {depot} cannot be read: {error}; put the configuration back that the "
            "run began with, and resume again"
        ) from error
    return parse(plain, origin=f"{CONFIG} in {depot}")


def reopen(run_dir: Path, config: Config, owner: int = 0, *, from_stored: bool = False) -> None:
    """Prepare the run for a new fleet, with the islands of this configuration if they have changed.

    `from_stored`: the syncer of this owner starts from the newest stored version of each fragment.
    """
    depot = depot_of(config, run_dir)
    if from_stored:
        depot.write(FROM_STORED, json_bytes({"owner": owner}))
    try:
        kept = load_fleet_memory(depot)
    except Damaged as error:  # the fleet's memory is lost
        log.error("%s", error)
        depot.move(FLEET_FILE, f"{FLEET_FILE}.damaged")
        return
    if kept is None:
        return  # the fleet died before it had begun
    kept["outcome"], kept["withheld"] = None, {}
    if begun(depot).islands != config.islands:
        kept["desired"] = sorted(config.island_names)
    save_fleet_memory(depot, kept)
    leave(depot, run_dir, CONFIG, config.toml().encode())


def asked_for_stored(depot: Depot, owner: int) -> bool:
    """Return whether this owner resumes the run with `--from-stored`, and has not done so yet."""
    try:
        return json.loads(depot.read(FROM_STORED)) == {"owner": owner}
    except FileNotFoundError:
        return False
    except ValueError as error:
        log.warning("%s is ignored: %s", FROM_STORED, error)
        return False


def leave(depot: Depot, run_dir: Path, name: str, content: bytes) -> None:
    """Write a file to the run directory, and to the depot if that is elsewhere."""
    write(run_dir / name, content)
    if depot != Folder(run_dir):
        depot.write(name, content)


def live_as(run_dir: Path, namespace: str, address: str, auth: str) -> Live:
    """Return how to reach a run whose fleet is this process."""
    pid = os.getpid()
    return Live(run_dir.name, namespace, address, pid, auth, born(pid))


def announce(run_dir: Path, live: Live) -> None:
    """Write how to reach the run."""
    write_json(run_dir / LIVE, asdict(live))


def retire(run_dir: Path) -> None:
    """Delete the file with the address of the run."""
    (run_dir / LIVE).unlink(missing_ok=True)


def find(run: str | None, root: Path = Path("runs")) -> Path:
    """Return the directory of a run by path or name; by default that of the newest run.

    Live runs come first.

    Errors: `UserMistake` if there is no such run.
    """
    if run is not None:
        candidates = list(dict.fromkeys([Path(run), root / run]))  # one, if the path is absolute
        for candidate in candidates:
            if (candidate / CONFIG).exists():
                return candidate
        tried = " or ".join(map(str, candidates))
        why = (
            f"there is no {CONFIG} in {tried}; for one in a cluster give its name, and "
            "--address HOST:PORT"
        )
        raise UserMistake(f"no run {run!r}: {why}")
    known = sorted(root.glob(f"*/{CONFIG}"), key=lambda path: path.stat().st_mtime)
    if not known:
        raise UserMistake(f"there is no run in {root}/; say which one, by its directory")
    live = [path.parent for path in known if live_of(path.parent) is not None]
    return live[-1] if live else known[-1].parent


def here(run: str | None) -> Path:
    """Return the directory of a run on this machine, by path or name, or of the newest.

    Errors: `UserMistake` if there is no such run.
    """
    roots = [Path("runs"), Path.home() / "archipelago" / "runs"]
    known = [root for root in roots if run is None or (root / run / CONFIG).exists()]
    return find(run, *known[:1])


def reach(run: str | None, address: str | None) -> Live | Path:
    """Return how to reach a run: by its directory, or by its name in a cluster.

    A path such as `runs/first` is a directory. A name belongs to the cluster of `address`, or of
    RAY_ADDRESS unless there is a run directory of that name in the current one.

    If the run in a directory is over, the result is the directory; also, if only RAY_ADDRESS names
    a cluster, for a submitted run.

    Errors: `UserMistake` if there is no such run here, and no cluster was named.
    """
    cluster = address or os.environ.get("RAY_ADDRESS")
    if cluster is not None and run is not None and not _is_directory(run, address):
        if address is None and (ended := submitted_dir(run)) and (ended / SUMMARY).exists():
            return ended
        return Live(run, namespace_of(run), cluster, pid=0, auth=None)
    run_dir = here(run)
    return live_of(run_dir) or run_dir


def _is_directory(run: str, address: str | None) -> bool:
    """Return whether this is a run directory rather than a name; no name is also a path."""
    is_path = Path(run).name != run
    return is_path or (address is None and (Path(run) / CONFIG).exists())


def submitted_dir(run: str) -> Path | None:
    """Return the directory of a submitted run; None if it is not on this machine."""
    run_dir = Path.home() / "archipelago" / "runs" / run
    return run_dir if (run_dir / CONFIG).exists() else None


def live_of(run_dir: Path) -> Live | None:
    """Return how to reach the run; None if it is over, or its process is gone."""
    try:
        live = Live(**json.loads((run_dir / LIVE).read_text()))
        operator.index(live.pid)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        log.warning("%s is ignored: %r", run_dir / LIVE, error)
        return None
    return live if is_alive(live.pid, live.born) else None
