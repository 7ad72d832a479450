"""What a ring comes back from: snapshots of its state in the depot, and the conductor's memory.

ring/state-00000025.safetensors   parameters and moments after 25 steps, leaf by leaf
ring.json                         the rules' state and the measures, of a second ago at most
ring.jsonl                        the tape: one line an event, with what followed from it
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.numpy import load, save

from cluster.allreduce.ring import Effect, Event, Held, Ring
from cluster.storage.depot import Depot
from cluster.storage.files import json_text
from cluster.storage.format import Damaged

FOLDER = "ring"
MEMORY = "ring.json"
TAPE = "ring.jsonl"
Leaves = Sequence[NDArray[Any]]


@dataclass(frozen=True, slots=True)
class RingState:
    """A training state on the host: leaves of the parameters and of the optimizer's moments, in the
    order of their trees; no moments: they are zero."""

    held: Held
    params: Leaves
    moments: Leaves | None

    @property
    def bytes(self) -> int:
        return sum(leaf.nbytes for leaf in (*self.params, *(self.moments or ())))


def name_of(held: Held) -> str:
    return f"{FOLDER}/state-{held.step:08d}.safetensors"


def save_state(depot: Depot, state: RingState, keep: int) -> None:
    """Keep it, and let go of all but the newest `keep` ones.

    Errors: `OSError`.
    """
    arrays = {f"p{i:05d}": np.ascontiguousarray(leaf) for i, leaf in enumerate(state.params)}
    arrays |= {f"m{i:05d}": np.ascontiguousarray(m) for i, m in enumerate(state.moments or ())}
    told = {"held": json_text(asdict(state.held)), "moments": str(state.moments is not None)}
    depot.write(name_of(state.held), save(arrays, told))
    for name in sorted(depot.names(FOLDER))[:-keep]:
        depot.remove(f"{FOLDER}/{name}")


def load_state(depot: Depot) -> RingState | None:
    """The newest that is there; None if there is none.

    Errors: `Damaged`.
    """
    names = sorted(each for each in depot.names(FOLDER) if each.endswith(".safetensors"))
    if not names:
        return None
    name = f"{FOLDER}/{names[-1]}"
    content = depot.read(name)
    try:
        told = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
        arrays = load(content)
        held = Held(**json.loads(told["held"]))
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{name} in {depot} is not as it was written: {error}") from error
    params = [arrays[key] for key in sorted(arrays) if key.startswith("p")]
    moments = [arrays[key] for key in sorted(arrays) if key.startswith("m")]
    return RingState(held, params, moments if told["moments"] == "True" else None)


@dataclass(frozen=True, slots=True)
class Memory:
    """What outlasts the conductor's process. `now_s`: when it was written; `measures`: their own
    memory; `lives`: incarnations granted so far; `events`: on the tape."""

    ring: Ring
    now_s: float
    measures: Any
    lives: int
    events: int


_RING = TypeAdapter(Ring)
MEMORY_S = 1.0
"""Between two times that the memory is kept: what is younger dies with the process."""


class Journal:
    """The tape of a run, and its memory, as they are written."""

    def __init__(self, depot: Depot, events: int, check: Callable[[], None]) -> None:
        """`check`: is the run ours still?"""
        self._depot, self._check, self.events = depot, check, events
        self._lines, self._kept_s = depot.lines(TAPE), float("-inf")

    def note(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        """One line of the tape."""

        def plain(what: Event | Effect) -> dict[str, Any]:
            return {"kind": type(what).__name__, **asdict(what)}

        line = [self.events, now_s, plain(event), [plain(each) for each in effects]]
        self._lines.write(json_text(line))
        self.events += 1

    def remember(self, memory: Callable[[], Memory], now_s: float, *, always: bool) -> None:
        """Keep what outlasts the process, now and then, or now.

        Errors: `OSError`; what `check` raises.
        """
        if always or now_s - self._kept_s >= MEMORY_S:
            self._check()
            self._kept_s = now_s
            save_memory(self._depot, memory())

    def close(self) -> None:
        self._lines.flush()
        self._lines.close()


def save_memory(depot: Depot, memory: Memory) -> None:
    plain = {f.name: getattr(memory, f.name) for f in fields(memory)}
    plain["ring"] = _RING.dump_python(memory.ring, mode="json")
    depot.write(MEMORY, json.dumps(plain).encode())


def load_memory(depot: Depot) -> Memory | None:
    """None if there is none.

    Errors: `Damaged`.
    """
    try:
        plain: dict[str, Any] = json.loads(depot.read(MEMORY))
        return Memory(ring=_RING.validate_python(plain.pop("ring")), **plain)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{MEMORY} in {depot} cannot be read: {error}") from error
