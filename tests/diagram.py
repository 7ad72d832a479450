"""Draw the tables and diagrams of docs/explanation/protocol.md from simulated schedules.

    python -m tests.diagram [--schedules N]        rewrites them

A *move* is (state, event, outcome): of a learner when an event is about it or it falls silent, of a
fragment's round when an event is about it or changes it. Only observed moves are drawn. The tables
of learner, shard and fleet are those of `tests.state_moves`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from archipelago.lab.simulation.plan import draw
from archipelago.lab.simulation.world import SimWorld
from coordinator.advance import advance
from coordinator.membership import Status
from coordinator.protocol import (
    Adopted,
    Arrived,
    Drain,
    Effect,
    Event,
    Join,
    LeaseWanted,
    Left,
    Life,
    Lost,
    Merged,
    Missing,
    Reached,
    Refused,
    Report,
    Resume,
    ShardBack,
    ShardLost,
    Stop,
    Stored,
    Tick,
    Unsound,
    Void,
)
from coordinator.state import FragmentState, Stage, State, initial

PAGE = Path(__file__).resolve().parents[1] / "docs" / "explanation" / "protocol.md"
SCHEDULES, SEED = 1300, "diagram"
NOBODY, NO_ROUND, SILENCE = "nobody", "no round", "silence"
STAYS, VOID, REFUSED = "stays", "void", "refused"
ANSWERS = (STAYS, VOID, REFUSED)
"""The outcomes that are not states."""


class Move(NamedTuple):
    state: str
    event: str
    outcome: str


class Machine(NamedTuple):
    """One table and its diagram: its place on the page, its rows and its columns.

    `answers`: outcomes that are not states; without any other outcome there is no diagram.
    """

    name: str
    states: tuple[str, ...]
    events: tuple[str, ...]
    begins: str
    answers: tuple[str, ...] = ANSWERS

    @property
    def fence(self) -> tuple[str, str]:
        return f"<!-- {self.name}: drawn by tests/diagram.py -->", f"<!-- end of {self.name} -->"


LEARNER = Machine(
    "a learner's states",
    (NOBODY, *Status),
    (
        *(
            kind.__name__
            for kind in (
                Join, Report, Arrived, Missing, Adopted, LeaseWanted, Drain, Left, Lost, Resume,
            )
        ),
        SILENCE,
    ),
    NOBODY,
)  # fmt: skip
ROUND = Machine(
    "a round's stages",
    (NO_ROUND, *Stage),
    tuple(
        kind.__name__
        for kind in (
            Report, Arrived, Missing, Merged, Unsound, Stored, Reached, Tick, Join, Adopted,
            LeaseWanted, Drain, Left, Lost, Stop, Resume, ShardLost, ShardBack,
        )
    ),
    NO_ROUND,
)  # fmt: skip


# --- observation -----------------------------------------------------------------------------


def seen(schedules: int) -> dict[Machine, set[Move]]:
    """Return the moves of each machine in that many schedules."""
    from tests import state_moves as moves

    found = {machine: set[Move]() for machine in (LEARNER, ROUND, *moves.MACHINES)}
    with moves.watched(found):
        for number in range(schedules):
            world = SimWorld(draw(f"{SEED}/{number}"))
            world.run()
            state = initial(world.plan.rule)
            for now_s, event in world.seat.tape:
                before, (state, effects) = state, advance(world.plan.rule, state, event, now_s)
                found[LEARNER].update(_learners(before, event, state, effects))
                found[ROUND].update(_rounds(before, event, state))
    return found


def _learners(
    before: State, event: Event, after: State, effects: Sequence[Effect]
) -> Iterator[Move]:
    kind = type(event).__name__
    if isinstance(event, Join | Drain):
        island, life = event.island, None
    else:
        life = _life(event)
        island = None if life is None else life.island
    for name in {*before.members, *after.members, *([island] if island else [])}:
        old, new = before.members.get(name), after.members.get(name)
        was, is_ = (NOBODY if m is None else m.status.value for m in (old, new))
        if new is not None and was != is_ and new.why.startswith("silent"):
            yield Move(was, SILENCE, is_)
        elif isinstance(event, Resume) and old is not None:
            yield Move(was, kind, STAYS if was == is_ else is_)
        elif name == island and (life is None or (old is not None and old.life == life)):
            void = any(isinstance(e, Void) and e.life == life for e in effects)
            refused = any(isinstance(e, Refused) for e in effects)
            same = old is not None and new is not None and old.life == new.life and was == is_
            answer = VOID if void else REFUSED if refused else STAYS
            yield Move(was, kind, answer if same or was == is_ == NOBODY else is_)


def _life(event: Event) -> Life | None:
    match event:
        case Report(life) | Missing(life) | Adopted(life) | LeaseWanted(life):
            return life
        case Left(life) | Lost(life):
            return life
        case Arrived(contribution):
            return contribution.id.life
        case _:
            return None


def _rounds(before: State, event: Event, after: State) -> Iterator[Move]:
    kind = type(event).__name__
    subjects: tuple[int, ...] = ()
    match event:
        case Merged(p) | Unsound(p) | Stored(p) | Reached(p) | Missing(_, p) | Adopted(_, p):
            subjects = (p,)
        case Arrived(contribution):
            subjects = (contribution.id.fragment,)
        case ShardLost(fragments) | ShardBack(fragments):
            subjects = fragments
        case _:
            pass
    for p, (old, new) in enumerate(zip(before.fragments, after.fragments, strict=True)):
        was, is_ = _stage(old), _stage(new)
        if isinstance(event, Resume) and old.round is not None:
            yield Move(was, kind, is_)
        elif was != is_ or p in subjects:
            yield Move(was, kind, STAYS if was == is_ else is_)


def _stage(fragment: FragmentState) -> str:
    return NO_ROUND if fragment.round is None else fragment.round.stage.value


# --- drawing and reading ---------------------------------------------------------------------


def drawn(machine: Machine, moves: set[Move]) -> str:
    """Return a table, and a diagram of the moves that change the state."""
    outcomes: dict[tuple[str, str], set[str]] = defaultdict(set)
    edges: dict[tuple[str, str], set[str]] = defaultdict(set)
    for state, event, outcome in moves:
        outcomes[state, event].add(outcome)
        if outcome not in machine.answers:
            edges[state, outcome].add(event)
    words = (*machine.answers, *machine.states, *machine.events)
    order = {word: place for place, word in enumerate(words)}
    lines = [f"| | {' | '.join(machine.states)} |", "|---|" + "---|" * len(machine.states)]
    for event in machine.events:
        cells = [
            ", ".join(sorted(outcomes[state, event], key=order.__getitem__)) or "–"
            for state in machine.states
        ]
        if any(outcomes[state, event] for state in machine.states):
            lines.append(f"| {event} | {' | '.join(cells)} |")
    if not edges:
        return "\n".join(lines)
    lines += ["", "```mermaid", "stateDiagram-v2"]
    there = [s for s in machine.states if s != machine.begins and any(s in edge for edge in edges)]
    lines += [f'    state "{s}" as {_name(s)}' for s in there if _name(s) != s]
    for (state, outcome), events in sorted(edges.items(), key=lambda e: [order[w] for w in e[0]]):
        by = ", ".join(sorted(events, key=order.__getitem__))
        one, other = ("[*]" if s == machine.begins else _name(s) for s in (state, outcome))
        lines.append(f"    {one} --> {other} : {by}")
    return "\n".join([*lines, "```"])


def _name(state: str) -> str:
    """Return the state's name as an identifier for diagrams."""
    return re.sub(r"\W+", "_", state)


def read(machine: Machine, page: str) -> set[Move]:
    """Return the moves in the page's table."""
    begin, end = machine.fence
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.partition(begin)[2].partition(end)[0].splitlines()
        if line.startswith("|")
    ]
    states = rows[0][1:]
    return {
        Move(state, event, outcome)
        for event, *cells in rows[2:]
        for state, cell in zip(states, cells, strict=True)
        for outcome in cell.split(", ")
        if outcome != "–"
    }


def rewritten(page: str, moves: Mapping[Machine, set[Move]]) -> str:
    """Return the page with these machines redrawn."""
    for machine, seen_moves in moves.items():
        begin, end = machine.fence
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}\n{drawn(machine, seen_moves)}\n{end}{after}"
    return page


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--schedules", type=int, default=SCHEDULES)
    found = seen(parser.parse_args().schedules)
    page = PAGE.read_text(encoding="utf-8")
    new = rewritten(page, found)
    PAGE.write_text(new, encoding="utf-8")
    print("as it was" if new == page else f"{PAGE.name} is rewritten: read the diff")
    return 0


if __name__ == "__main__":
    sys.exit(main())
