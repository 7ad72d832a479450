"""Count the honest islands on trial where each region reads its own language, at two speeds.

    python examples/studies/prepare_languages.py build/languages
    python examples/studies/honest_islands.py [--runs 10] [--controls 1] [--steps 200]

Six islands train byte-tiny in virtual time, one in each region. Every second one has a quarter of
the speed. The seeds are new and printed, and `--seeds 7 8` repeats them. For each run the script
prints:

- the islands that were quarantined or on trial at any time
- the most merges in a row in which one island pointed against the others. At RUN of them an island
  is quarantined, if all live islands are of one region; with several regions it is only counted
- the contributions that the gate refused, with the reason for the first one, and the largest norm
  per step that arrived, as a multiple of the median of the others' newest ones of that fragment

Controls show that the counts can fail. In each, the island `fr` is at fault from step FROM on:

- against: its deltas have a flipped sign, with a region and a language for each island
- on trial: the same, with all six languages on every island, in one region
- long: its deltas are a thousand times too long, with a region and a language for each island

The script exits with 1 if an honest island was quarantined or on trial, if one was counted up to
RUN in a run without a fault, or if a control shows nothing. A single refusal has no such
consequence; three in a row are a quarantine.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from archipelago.lab.training.loss_curve import LossCurve
from archipelago.lab.training.timing import Timing
from archipelago.lab.training.world import TrainingWorld
from cluster.config.load import parse
from cluster.config.schema import Config
from cluster.workers.environment import take_one_thread
from cluster.workers.evaluator import Evaluator
from coordinator.direction_gate import RUN
from coordinator.protocol import Arrived, Discard, Effect, Event, Fate, Fragment, Island

LANGUAGES = ("de", "es", "fr", "ja", "pl", "ru")
SLOW = 0.25
"""The speed of every second island; the others have 1."""
AT_FAULT, FROM = Island("fr-0"), 60
"""The island at fault, and the step of its fault."""
FLIPPED, LONG = -1.0, 1000.0
"""Factors on the deltas of the island at fault."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run: its data, its fault, and what the run must show."""

    name: str
    factor: float | None = None
    """Factor on the deltas of the island at fault; None: all islands are honest."""
    regions: bool = True
    """Whether each island has a region with a language of its own."""
    must_reach: bool = False
    """Whether the island at fault must point against the others RUN times in a row."""
    must_be_quarantined: bool = False
    """Whether the island at fault must be quarantined."""


HONEST = Case("honest")
CONTROLS = (
    Case("against", FLIPPED, must_reach=True),
    Case("on trial", FLIPPED, regions=False, must_be_quarantined=True),
    Case("long", LONG, must_be_quarantined=True),
)


@dataclass(slots=True)
class Counts:
    """Counts and norms of the islands of a run."""

    suspects: set[Island] = field(default_factory=set[Island])
    """Islands that were quarantined or on trial at any time."""
    against: dict[Island, int] = field(default_factory=dict[Island, int])
    """The most merges in a row in which each island pointed against the others."""
    refused: dict[Island, int] = field(default_factory=dict[Island, int])
    """Contributions that the gate refused, of islands that had any."""
    why: str = ""
    """The reason for the first refusal; empty if there was none."""
    longest: dict[Island, float] = field(default_factory=dict[Island, float])
    """The largest norm per step, as a multiple of the median of the others' newest ones."""


class CountingWorld(TrainingWorld):
    """A run that counts what happens to its islands."""

    def __init__(self, config: Config) -> None:
        """Build the run."""
        super().__init__(config, Timing(jitter=0.1), LossCurve(Evaluator(config), 0))
        self.counts = Counts()
        self._norms: dict[tuple[Fragment, Island], float] = {}

    def append(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        """Count one event and its effects."""
        super().append(now_s, event, effects)
        counts = self.counts
        for island, member in self.syncer.state.members.items():
            if member.trial or member.quarantines:
                counts.suspects.add(island)
            counts.against[island] = max(counts.against.get(island, 0), member.against)
        if isinstance(event, Arrived):
            self._measure(event)
        for effect in effects:
            if isinstance(effect, Discard) and effect.fate is Fate.GATE:
                island = effect.contribution.id.life.island
                counts.refused[island] = counts.refused.get(island, 0) + 1
                counts.why = counts.why or f"{island} at step {self.syncer.state.t}: {effect.why}"

    def _measure(self, event: Arrived) -> None:
        """Compare a norm with the others' newest ones of its fragment."""
        id_, norm = event.contribution.id, event.contribution.norm_per_step
        fragment, sender = id_.fragment, id_.life.island
        others = [n for (p, i), n in self._norms.items() if p == fragment and i != sender]
        if others and (median := statistics.median(others)) > 0:
            longest = self.counts.longest
            longest[sender] = max(longest.get(sender, 0.0), norm / median)
        self._norms[fragment, sender] = norm


def config_of(case: Case, seed: int, steps: int, languages: Path) -> Config:
    """Return the configuration of a run."""
    islands = list[dict[str, object]]()
    for number, name in enumerate(LANGUAGES):
        region = {"region": name} if case.regions else {}
        islands.append({"group": name, "speed": SLOW if number % 2 else 1.0, **region})
    mixture = [{"source": str(languages / name), "weight": 1.0} for name in LANGUAGES]
    leaving = ["delta", "moments", "report", "corpus"]
    tables: dict[str, object] = {
        "run": {"steps": steps, "seed": seed},
        "task": {"preset": "byte-tiny"},
        "data": {"mixture": mixture},
        "sync": {"every": 8, "fragments": 8},
        "islands": islands,
    }
    if case.regions:
        tables["regions"] = {
            name: {"data": str(languages / name), "may_leave": leaving} for name in LANGUAGES
        }
    if case.factor is not None:
        fault = {"at_step": FROM, "island": AT_FAULT, "kind": "scale", "factor": case.factor}
        tables["faults"] = {"plan": [fault]}
    return parse(tables, origin="honest_islands", overrides=())


def problems_of(case: Case, counts: Counts) -> list[str]:
    """Return what a run shows that it must not, or does not show that it must."""
    names = [Island(f"{name}-0") for name in LANGUAGES]
    honest = [each for each in names if case is HONEST or each != AT_FAULT]
    found = [f"{each} was quarantined" for each in honest if each in counts.suspects]
    if case is HONEST:
        found += [f"{each} reached {RUN}" for each in honest if counts.against.get(each, 0) >= RUN]
    if case.must_reach and counts.against.get(AT_FAULT, 0) < RUN:
        found.append(f"{AT_FAULT} did not reach {RUN}")
    if case.must_be_quarantined and AT_FAULT not in counts.suspects:
        found.append(f"{AT_FAULT} was not quarantined")
    return found


def line_of(case: Case, seed: int, counts: Counts, loss: object, problems: list[str]) -> str:
    """Return the line of a run."""
    most = max(counts.against, key=lambda each: counts.against[each])
    longest = max(counts.longest, key=lambda each: counts.longest[each])
    return (
        f"{case.name}, seed {seed}: quarantined or on trial: "
        f"{', '.join(sorted(counts.suspects)) or 'none'}; most merges against in a row: "
        f"{counts.against[most]} ({most}) of {RUN}; refused: {sum(counts.refused.values())}"
        f"{counts.why and f' ({counts.why})'}; "
        f"longest: {counts.longest[longest]:.1f} ({longest}); loss {loss:.3f}"
        f"{'' if not problems else '  MISSED: ' + ', '.join(problems)}"
    )


def main(words: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10, help="runs without a fault")
    parser.add_argument("--controls", type=int, default=1, help="runs of each control")
    parser.add_argument("--steps", type=int, default=200, help="steps of a fast island")
    parser.add_argument("--languages", type=Path, default=Path("build/languages"))
    parser.add_argument("--seeds", type=int, nargs="*", default=[], help="default: new ones")
    options = parser.parse_args(words)
    for name in LANGUAGES:
        if not (options.languages / name).is_dir():
            parser.error(
                f"{options.languages / name} is missing: run `python examples/studies/"
                f"prepare_languages.py {options.languages}` first"
            )
    if options.steps <= FROM:
        parser.error(f"--steps {options.steps}: the faults of controls begin at step {FROM}")
    take_one_thread()
    cases = [HONEST] * options.runs + [each for each in CONTROLS for _ in range(options.controls)]
    missed, suspects = 0, 0
    for number, case in enumerate(cases):
        given = options.seeds[number : number + 1]
        seed = given[0] if given else random.SystemRandom().randrange(10**6)
        world = CountingWorld(config_of(case, seed, options.steps, options.languages))
        loss = world.run().figures["heldout_loss"]
        problems = problems_of(case, world.counts)
        missed += bool(problems)
        suspects += len(world.counts.suspects) if case is HONEST else 0
        print(line_of(case, seed, world.counts, loss, problems), flush=True)
    print(
        f"{options.runs} honest runs: {suspects} islands quarantined or on trial; {missed} missed"
    )
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
