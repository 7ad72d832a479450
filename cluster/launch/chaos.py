"""`archipelago chaos`: break a live run on purpose, from another terminal."""

from __future__ import annotations

import random
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from cluster.config.schema import Attack
from cluster.launch.client import reached
from cluster.status import RunStatus
from cluster.storage.runs import Live
from coordinator.errors import RunFailed, Unreachable, UserMistake

ANY = "*"
"""In a plan: whichever of the live islands chance takes."""
SLOWER = 4.0
"""What is slowed down by chance takes so many times as long."""
_PLAN = TypeAdapter(dict[str, list[Attack]])


class Struck(NamedTuple):
    """What was done, seconds after the beginning; `refused`: why not, if it was not."""

    at_s: float
    kind: str
    island: str
    refused: str | None


def read_plan(path: Path) -> list[Attack]:
    """A TOML file of `[[faults]]`: `after_s`, `kind`, `island`, and `factor` or `for_s`.

    Errors: `UserMistake` with every problem at once.
    """
    try:
        plan = _PLAN.validate_python(tomllib.loads(path.read_text()))
    except OSError as error:
        raise UserMistake(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserMistake(f"{path} is not valid TOML: {error}") from error
    except ValidationError as error:
        said = [f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in error.errors()]
        raise UserMistake(f"{path}: " + "; ".join(said)) from error
    if plan.keys() != {"faults"}:
        raise UserMistake(f"{path}: it must hold a list of tables [[faults]], and nothing else")
    return sorted(plan["faults"], key=lambda attack: attack.after_s)


def at_random(seed: int, every_s: float, for_s: float, kinds: Sequence[str]) -> list[Attack]:
    """Every so often one of these kinds, on whichever island."""
    dice = random.Random(seed)
    times = [every_s * number for number in range(1, int(for_s / every_s) + 1)]
    plain = [{"kind": dice.choice(kinds), "island": ANY, "after_s": at_s} for at_s in times]
    return [Attack.model_validate({**each, "factor": SLOWER}) for each in plain]


def strike(live: Live, plan: Sequence[Attack], seed: int) -> Iterator[Struck]:
    """Carry a plan out, as far as the run lasts.

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
                refused = str(error)  # such as a fleet that was killed a moment ago
            except RunFailed:
                return  # it is over
            yield Struck(time.monotonic() - began_s, attack.kind, island, refused)


def _live(status: RunStatus) -> list[str]:
    return [each["island"] for each in status["islands"] if each["state"] == "live"]
