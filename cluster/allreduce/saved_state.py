"""The durable state of a ring: snapshots in the depot, and the conductor's memory.

ring/state-00000025.safetensors   parameters and moments after 25 steps, leaf by leaf
ring.json                         the rules' state and the measures, at most a second old
ring.jsonl                        the tape: one line an event, with its effects

States and memory carry a checksum. If a state is damaged, the one before it is used; if the memory
is damaged, it is made again from the state.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

from numpy.typing import NDArray
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.numpy import load

from cluster.allreduce.ring import Ring, RingStage
from cluster.allreduce.ring_messages import TrainingPosition
from cluster.storage.depot import Depot
from cluster.storage.files import json_text
from cluster.storage.format import Damaged
from cluster.storage.sealed import LENGTH, OURS, SUFFIX, seal, unseal_all

log = logging.getLogger("archipelago.store")
FOLDER = "ring"
_STATE = re.compile(r"state-[0-9]{8,}\.safetensors")
UNNAMED = ""
"""The layout in the states' metadata: none, since they hold the leaves of the trees as they are."""
MEMORY = "ring.json"
TAPE = "ring.jsonl"
Leaves = Sequence[NDArray[Any]]


@dataclass(frozen=True, slots=True)
class RingState:
    """A training state on the host."""

    held: TrainingPosition
    """The position of the state."""
    params: Leaves
    """The leaves of the parameters, in the order of their tree."""
    moments: Leaves | None
    """The leaves of the optimizer's moments, in the order of their tree; None if they are zero."""

    @property
    def bytes(self) -> int:
        """The size of all leaves in bytes."""
        return sum(leaf.nbytes for leaf in (*self.params, *(self.moments or ())))


def name_of(held: TrainingPosition) -> str:
    """Return the name of a state's file in the depot."""
    return f"{FOLDER}/state-{held.step:08d}{SUFFIX}"


def save_state(depot: Depot, state: RingState, keep: int) -> None:
    """Store a state, and remove all but the newest `keep` states.

    Errors: `OSError`.
    """
    arrays = {f"p{i:05d}": leaf for i, leaf in enumerate(state.params)}
    arrays |= {f"m{i:05d}": leaf for i, leaf in enumerate(state.moments or ())}
    metadata = {"held": json_text(asdict(state.held)), "moments": str(state.moments is not None)}
    depot.write(name_of(state.held), *seal(arrays, UNNAMED, metadata))
    for name in _states(depot)[:-keep]:
        depot.remove(name)


def load_state(depot: Depot) -> RingState | None:
    """Return the newest undamaged state; None if there is no state at all.

    Errors: `Damaged` if there are states and all are damaged.
    """
    return _newest(depot, [])


def _newest(depot: Depot, damaged: list[str]) -> RingState | None:
    """Return the newest undamaged state; add the errors of newer ones to `damaged`.

    Errors: `Damaged` if there are states and all are damaged.
    """
    for name in reversed(_states(depot)):
        try:
            return _load(depot, name)
        except Damaged as error:
            log.error("%s; the state before is used", error)
            damaged.append(str(error))
    if damaged:
        raise Damaged(f"{depot} has no good state of the ring: {'; '.join(damaged)}")
    return None


def _states(depot: Depot) -> list[str]:
    """Return the names of the states, oldest first; ignore files with other names."""
    return sorted(f"{FOLDER}/{name}" for name in depot.names(FOLDER) if _STATE.fullmatch(name))


def _load(depot: Depot, name: str) -> RingState:
    """Read a state and check it.

    Errors: `Damaged`.
    """
    try:
        content = depot.read(name)
        length = int.from_bytes(content[:LENGTH], "little")
        metadata = json.loads(content[LENGTH : LENGTH + length])["__metadata__"]
        if {*OURS} & metadata.keys():  # one damaged name does not switch the checksum off
            arrays, metadata = unseal_all(depot, name, UNNAMED)
        else:  # an old file, from before states had a checksum
            arrays = load(content)
        held = TrainingPosition(**json.loads(metadata["held"]))
        has_moments = metadata["moments"] == "True"
    except FileNotFoundError as error:
        raise Damaged(f"{name} is not there") from error
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{name} in {depot} is not as it was written: {error}") from error
    if name_of(held) != name:
        raise Damaged(f"{name} in {depot} is another file under this name: {name_of(held)}")
    params = [arrays[key] for key in sorted(arrays) if key.startswith("p")]
    moments = [arrays[key] for key in sorted(arrays) if key.startswith("m")]
    return RingState(held, params, moments if has_moments else None)


@dataclass(frozen=True, slots=True)
class RingMemory:
    """The durable memory of a conductor, which survives its process."""

    ring: Ring
    """The state of the rules."""
    now_s: float
    """The time at which it was written, in seconds on the conductor's clock."""
    measures: Any
    """The memory of the measures, as plain data; None if it is lost."""
    lives: int
    """The number of incarnations granted so far."""
    events: int
    """The number of events on the tape."""


_RING = TypeAdapter(Ring)


def save_memory(depot: Depot, memory: RingMemory) -> None:
    """Replace the conductor's memory in the depot.

    Errors: `OSError`.
    """
    plain = {f.name: getattr(memory, f.name) for f in fields(memory)}
    plain["ring"] = _RING.dump_python(memory.ring, mode="json")
    plain = json.loads(json.dumps(plain))
    depot.write(MEMORY, json.dumps({**plain, "sha256": _digest(plain)}).encode())


def _digest(plain: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def load_memory(depot: Depot) -> RingMemory | None:
    """Return the conductor's memory; None if there is none.

    Errors: `Damaged`.
    """
    try:
        plain: dict[str, Any] = json.loads(depot.read(MEMORY))
        digest = plain.pop("sha256", None)  # earlier versions wrote none
        if digest not in (None, _digest(plain)):
            raise ValueError("it is not as it was written")
        return RingMemory(ring=_RING.validate_python(plain.pop("ring")), **plain)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{MEMORY} in {depot} cannot be read: {error}") from error


class RingComeback(NamedTuple):
    """The durable state from which a conductor restarts."""

    memory: RingMemory | None
    """The memory; None at the beginning of a run."""
    state: RingState | None
    """The newest undamaged state; None if the run has no model yet."""
    damage: str | None
    """The files that could not be used, in words; None if all could."""


def read_back(depot: Depot) -> RingComeback:
    """Read the newest undamaged state, and a memory that fits it.

    Errors: `Damaged` if there has been a state and none can be used.
    """
    damaged: list[str] = []
    state = _newest(depot, damaged)
    try:
        memory = load_memory(depot)
    except Damaged as error:
        log.error("%s; it is rebuilt from the newest state", error)
        damaged.append(str(error))
        memory = None
    known = None if memory is None else memory.ring.kept
    if state is None:
        if damaged or (known is not None and known.step > 0):
            detail = "" if known is None else f", and the last one was {name_of(known)}"
            raise Damaged("; ".join([f"{depot} has no state of the ring{detail}", *damaged]))
        return RingComeback(memory, None, None)
    if memory is None and (damaged or state.held.step > 0):
        memory = _rebuilt(depot, state)
        damaged = damaged or [f"{MEMORY} is missing; it is rebuilt from the newest state"]
    if known is not None and state.held < known and not damaged:
        damaged = [f"{name_of(known)} is not there; {name_of(state.held)} is used"]
    if memory is not None:
        memory = replace(memory, ring=_fitting(memory.ring, state.held))
    return RingComeback(memory, state, "; ".join(damaged) or None)


def _rebuilt(depot: Depot, state: RingState) -> RingMemory:
    """Return a memory that is made from the state alone.

    Every life has left an event on the tape. So the number of events is at least the newest
    incarnation, and no incarnation is granted twice.
    """
    try:
        events = depot.grown(TAPE).content.count(b"\n")
    except FileNotFoundError:
        events = 0
    return RingMemory(
        Ring(held=state.held, kept=state.held), 0.0, None, lives=events, events=events
    )


def _fitting(ring: Ring, kept: TrainingPosition) -> Ring:
    """Return the rules' state with this newest snapshot; a run that lost its end is not over."""
    over = ring.stage is RingStage.OVER and ring.held <= kept
    stage = ring.stage if over or ring.stage is not RingStage.OVER else RingStage.GATHERING
    return replace(ring, kept=kept, stage=stage)
