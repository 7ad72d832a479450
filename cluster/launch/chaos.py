"""`archipelago chaos`: inject faults into a live run from another terminal."""

from __future__ import annotations

import random
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from cluster.config.problem_text import problem_of
from cluster.config.schema import Attack
from cluster.launch.client import reached
from cluster.status import RunStatus
from cluster.storage.runs import Live
from coordinator.errors import RunFailed, Unreachable, UserMistake

ANY = "*"
"""The island of a planned fault that stands for a random live island."""
SLOWER = 4.0
"""The `factor` of random faults: "slow" makes each step take this many times as long."""
_PLAN = TypeAdapter(dict[str, list[Attack]])


class Struck(NamedTuple):
    """One injected fault, or one that was refused."""

    at_s: float
    """Seconds since the start of the plan."""
    kind: str
    island: str
    refused: str | None
    """The reason why the fault was not injected; None if it was."""


def read_plan(path: Path) -> list[Attack]:
    """Read a plan: a TOML file of `[[faults]]`, returned in the order of `after_s`.

    Each fault has `after_s`, `kind`, `island`, and `factor` or `for_s`.

    Errors: `UserMistake` with every problem at once.
    """
    try:
        plan = _PLAN.validate_python(tomllib.loads(path.read_text()))
    except OSError as error:
        raise UserMistake(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserMistake(f"{path} is not valid TOML: {error}") from error
    except ValidationError as error:
        raise UserMistake(f"{path}: " + "; ".join(map(_problem, error.errors()))) from error
    if plan.keys() != {"faults"}:
        raise UserMistake(f"{path}: it must hold a list of tables [[faults]], and nothing else")
    return sorted(plan["faults"], key=lambda attack: attack.after_s)


def _problem(mistake: ErrorDetails) -> str:
    """Return the message about one mistake in a plan."""
    where, key = ".".join(map(str, mistake["loc"])), mistake["loc"][-1]
    if mistake["type"] == "extra_forbidden":
        of_steps = "; at_step is for faults.plan of a configuration, a plan has after_s"
        return f"{where}: is not known{of_steps if key == 'at_step' else ''}"
    if mistake["type"] == "missing":
        seconds = ": the seconds from the start of the command" if key == "after_s" else ""
        return f"{where}: is missing{seconds}"
    return str(problem_of(mistake))


def at_random(seed: int, every_s: float, for_s: float, kinds: Sequence[str]) -> list[Attack]:
    """Draw a plan of faults, one every `every_s` for `for_s` seconds: random kinds and islands."""
    dice = random.Random(seed)
    times = [every_s * number for number in range(1, int(for_s / every_s) + 1)]
    faults = [{"kind": dice.choice(kinds), "island": ANY, "after_s": at_s} for at_s in times]
    return [Attack.model_validate({**each, "factor": SLOWER}) for each in faults]


def strike(live: Live, plan: Sequence[Attack], seed: int) -> Iterator[Struck]:
    """Carry a plan out, until the run is stopping or over; yield each fault after its attempt.

    Errors: `UserMistake` if the run is not there.
    """
    dice, began_s = random.Random(seed), time.monotonic()
    with reached(live) as ask:
        for attack in plan:
            time.sleep(max(0.0, began_s + attack.after_s - time.monotonic()))
            island, refused = attack.island, None
            try:
                status: RunStatus = ask(lambda fleet: fleet.status.remote())
                if status["phase"] in ("stopping", "finished"):
                    return
                if island == ANY:
                    if not (alive := _live(status)):
                        raise Unreachable("no island is live at present")
                    island = dice.choice(alive)
                harm = {**attack.model_dump(exclude={"after_s"}), "island": island}
                ask(lambda fleet, harm=harm: fleet.harm.remote(harm))
            except (UserMistake, Unreachable) as error:
                refused = str(error)  # for example, the fleet was killed a moment ago
            except RunFailed:
                return  # the run is over
            yield Struck(time.monotonic() - began_s, attack.kind, island, refused)


def _live(status: RunStatus) -> list[str]:
    """Return the islands whose learner is live."""
    return [each["island"] for each in status["islands"] if each["state"] == "live"]
