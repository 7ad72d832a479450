"""Narrated scenarios: a text of events; below each event, indented, the answers of the rules.

    # A straggler is waited for, but only inside the grace window.
    rule quorum=2 grace=5
    0    join a b
         grant a#1: clock +0, at v0, reads 0 and 1
         ...

The rule comes first; a value that it leaves out is the one in `RULE`. One line for each moment
follows: the time in seconds and the event. `a` is the present life of island a, `a#1` a given life;
`f0` is a fragment.

    join a b [layout=x] [tokens=100] [region=eu]
                                        each island asks for a life and trains that many tokens
                                        a step
    steps a=3 b=2 [took=1]              each reports its steps so far, and the seconds of one
    arrive a f0 0-3 [base=v0] [norm=1] [layout=x] [tokens=300] [as=other]
                                        the shard holds a's contribution to f0 of steps 0, 1, 2
    missing a f0                        a's hand-in of f0 will not arrive
    loses a f0                          a may have sent its hand-in of f0, but it is lost
    merged f0 [v1] [moved=1] [cosines=0.2,none,-0.3]
                                        the shard has merged the next version, or a given one;
                                        the norm of its step, the cosines of the contributions
    unsound f0 [v1] [norm=nan]          the merged version cannot be published
    stored f0 [v1] [durable=no]         the shard has stored it; `done f0`: merged and stored
    adopt a f0 3-5                      a adopts the present version after its step 5; it
                                        overwrites the training from step 3 on
    lost a, want a, drain a, left a 7   a died, wants a lease, must leave, left after 7 steps
    tick, stop                          time passes; the run must end
    resume [v0 v2]                      the syncer and the shard are back, at the public versions
                                        or at the given ones, one for each fragment
    show t|round f0|tokens f0|pool|a    the syncer's view

A learner reads one window of its leases a step. `InvariantJudge` (`archipelago/lab/checks`) checks
every event.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import groupby

from archipelago.lab.checks.facts import Truth
from archipelago.lab.checks.judge import InvariantJudge
from coordinator.advance import advance
from coordinator.membership import live
from coordinator.protocol import (
    Adopted,
    Arrived,
    Ask,
    Contribution,
    ContributionId,
    Discard,
    Drain,
    Effect,
    Event,
    Finish,
    Fragment,
    Granted,
    Incarnation,
    Island,
    Join,
    Lease,
    LeaseGranted,
    LeaseWanted,
    Left,
    Life,
    Lost,
    Merge,
    Merged,
    Missing,
    Progress,
    Publish,
    Reached,
    Reference,
    Refused,
    Region,
    Release,
    Report,
    Resume,
    ShardBack,
    ShardLost,
    Shift,
    Stop,
    Store,
    Stored,
    Tick,
    Unsound,
    Version,
    Void,
    Wake,
)
from coordinator.state import State, initial
from tests.coordinator.given import LAYOUT
from tests.coordinator.given import rule as make_rule

RULE = {
    "every": 4, "fragments": 1, "steps": 100, "quorum": 1, "grace": None, "overlap": 2,
    "staleness": 8, "lease": 1000, "follows": 0,
}  # fmt: skip
INDENT = " " * 5
TOKENS = 100
MEASURED = 10_000
"""The number of elements on which a scenario's directions were measured."""


def retold(text: str) -> str:
    """Return the scenario with the present answers of the rules."""
    told = [line for line in text.splitlines() if not line.startswith(INDENT)]
    story, lines = None, []
    for line in told:
        lines.append(line)
        if line.startswith("rule"):
            story = Story(dict(word.split("=") for word in line.split()[1:]))
        elif line and not line.startswith("#"):
            assert story is not None, "a scenario begins with its rule"
            lines += [INDENT + answer for answer in story.happens(line)]
    return "\n".join(lines) + "\n"


class Story:
    """The rules' state, and the leases and lives of the scenario's learners."""

    def __init__(self, told: dict[str, str]) -> None:
        assert told.keys() <= RULE.keys(), f"a rule has {list(RULE)}, not {list(told)}"
        said = RULE | {key: float(value) for key, value in told.items()}
        numbers = {key: int(value) for key, value in said.items() if value is not None}
        self.rule = make_rule(
            every=numbers["every"],
            fragments=numbers["fragments"],
            steps=numbers["steps"],
            quorum=numbers["quorum"],
            grace_s=said["grace"],
            overlap=numbers["overlap"],
            overlap_follows=bool(numbers["follows"]),
            max_staleness=numbers["staleness"],
            lease_windows=numbers["lease"],
        )
        self.state: State = initial(self.rule)
        self.judge = InvariantJudge(self.rule, Truth())
        self.lives: dict[Island, Life] = {}
        self.leases: dict[Life, list[Lease]] = {}
        self.tokens: dict[Island, int] = {}

    def happens(self, line: str) -> Iterator[str]:
        """Carry out one line and yield the answers."""
        time, verb, *words = line.split()
        options = dict(word.split("=") for word in words if "=" in word)
        names = [word for word in words if "=" not in word]
        if verb == "show":
            yield self.show(*names)
            return
        effects: list[Effect] = []
        for event in self.events(verb, names, options):
            before = self.state
            self.state, answers = advance(self.rule, before, event, float(time))
            self.judge.saw(before, event, self.state, answers, float(time))
            for effect in answers:
                self.learn(effect)
            effects += answers
        yield from told(effects)

    def events(self, verb: str, names: list[str], options: dict[str, str]) -> Iterator[Event]:
        match verb, names:
            case "join", islands:
                for island in map(Island, islands):
                    self.tokens[island] = int(options.get("tokens", TOKENS))
                    region = Region(options["region"]) if "region" in options else None
                    yield Join(island, "group", options.get("layout", LAYOUT), region)
            case "steps", []:
                step_s = float(options.pop("took", 1))
                for name, steps in options.items():
                    life = self.life(name)
                    yield Report(life, self.progress(life, int(steps)), step_s)
            case "arrive", [name, p, span]:
                yield Arrived(self.contribution(self.life(name), fragment(p), span, options))
            case "missing", [name, p]:
                yield Missing(self.life(name), fragment(p), "no answer")
            case "loses", [name, p]:
                yield Missing(self.life(name), fragment(p), "no answer", lost=True)
            case "merged", [p, *number]:
                yield self.merged(p, self.next_version(p, *number), options)
            case "unsound", [p, *number]:
                norm = float(options.get("norm", "nan"))
                yield Unsound(fragment(p), self.next_version(p, *number), norm)
            case "stored", [p, *number]:
                durable = options.get("durable") != "no"
                yield Stored(fragment(p), self.next_version(p, *number), durable)
            case "done", [p]:
                version = self.next_version(p)
                yield self.merged(p, version, options)
                yield Stored(fragment(p), version, durable=True)
            case "reached", [p]:
                version = self.state.fragments[fragment(p)].version
                after_s = tuple((self.life(name), float(s)) for name, s in options.items())
                yield Reached(fragment(p), version, after_s)
            case "adopt", [name, p, span]:
                yield self.adoption(self.life(name), fragment(p), span)
            case "lost", [name]:
                yield Lost(self.life(name), "died")
            case "want", [name]:
                yield LeaseWanted(self.life(name))
            case "drain", [name]:
                yield Drain(Island(name), "asked to")
            case "left", [name, steps]:
                life = self.life(name)
                yield Left(life, self.progress(life, int(steps)))
            case "tick", []:
                yield Tick()
            case "stop", []:
                yield Stop("asked to")
            case "shard", ["lost", *names]:
                yield ShardLost(tuple(map(fragment, names)))
            case "shard", ["back", *names]:
                yield ShardBack(tuple(map(fragment, names)))
            case "resume", said:
                public = [each.version for each in self.state.fragments]
                versions = tuple(map(named, said) if said else public)
                yield Resume(self.state.generation + 1, versions)
            case _:
                raise ValueError(f"what is {verb} {' '.join(names)}?")

    def life(self, name: str) -> Life:
        island, _, number = name.partition("#")
        return (
            Life(Island(island), Incarnation(int(number))) if number else self.lives[Island(island)]
        )

    def progress(self, life: Life, steps: int) -> Progress:
        leases = self.leases.get(life, [Lease(0)])
        left, cursor = steps, leases[0]
        for lease in leases:
            cursor = Lease(lease.number, min(lease.start + left, self.rule.lease_windows))
            left -= cursor.start - lease.start
            if left == 0:
                break
        return Progress(steps, steps * self.tokens[life.island], cursor)

    def contribution(
        self, life: Life, p: Fragment, span: str, options: dict[str, str]
    ) -> Contribution:
        start, stop = map(int, span.split("-"))
        base = options.get("base")
        id_ = ContributionId(life, p, start, stop)
        return Contribution(
            id=id_,
            base=named(base) if base else self.state.fragments[p].version,
            since_step=start,
            tokens=int(options.get("tokens", (stop - start) * self.tokens[life.island])),
            norm=float(options.get("norm", 1)) * (stop - start),
            bytes=64,
            fingerprint=options.get("layout", LAYOUT),
            progress=self.progress(life, stop),
            reference=Reference(options.get("as", str(id_))),
        )

    def merged(self, p: str, version: Version, options: dict[str, str]) -> Merged:
        said = [word for word in options.get("cosines", "").split(",") if word]
        cosines = tuple(None if word == "none" else float(word) for word in said)
        norm = float(options["moved"]) if "moved" in options else None
        return Merged(fragment(p), version, norm, cosines, MEASURED if cosines else 0)

    def adoption(self, life: Life, p: Fragment, span: str) -> Adopted:
        start, stop = map(int, span.split("-"))
        tokens = (stop - start) * self.tokens[life.island]
        version = self.state.fragments[p].version
        return Adopted(life, p, version, start, tokens, self.progress(life, stop))

    def next_version(self, p: str, said: str = "") -> Version:
        known = self.state.fragments[fragment(p)]
        following = known.version.number + known.void + 1
        return named(said) if said else Version(self.state.generation, following)

    def learn(self, effect: Effect) -> None:
        """Record what a learner takes from the syncer's answer."""
        match effect:
            case Granted(life, _, _, leases):
                self.lives[life.island] = life
                self.leases[life] = list(leases)
            case LeaseGranted(life, lease):
                self.leases[life].append(lease)
            case _:
                pass

    def show(self, what: str, p: str = "f0") -> str:
        match what:
            case "t":
                lively = " ".join(f"{m.life}={m.clock}" for m in live(self.state.members).values())
                return f"t = {self.state.t}, {self.state.phase}; clocks {lively or 'none'}"
            case "round":
                state = self.state.fragments[fragment(p)]
                inbox = f", inbox {ids(c.id for c in state.inbox)}" if state.inbox else ""
                stage = f"{state.round.stage}, {state.round.why}" if state.round else "none"
                return f"{p} {state.version}: round {stage}{', due' if state.due else ''}{inbox}"
            case "tokens":
                row = self.state.ledger.rows[fragment(p)]
                waste = "".join(f", {tokens} {fate}" for fate, tokens in row.discarded.items())
                outstanding = self.state.ledger.outstanding(fragment(p))
                return (
                    f"{p}: {self.state.ledger.trained} trained = {row.merged} merged{waste}, "
                    f"{row.lost} lost, {outstanding} outstanding"
                )
            case "pool":
                said: list[str] = []
                for region, pool in self.state.leases.items():
                    back = ", ".join(map(piece, pool.returned)) or "nothing"
                    where = f"{region}: " if region else ""
                    said.append(f"{where}{back} came back, {pool.fresh} is the next fresh lease")
                return "; ".join(said)
            case island:
                m = self.state.members[Island(island)]
                held = ", ".join(map(piece, m.held)) or "nothing"
                return f"{m.life} {m.status}: {m.why}; clock {m.clock}, holds {held}"


def named(word: str) -> Version:
    """Return the version called `v2`, or `v1.2` for the syncer's generation 1."""
    *generation, number = word.removeprefix("v").split(".")
    return Version(int(generation[0]) if generation else 0, int(number))


def fragment(word: str) -> Fragment:
    return Fragment(int(word.removeprefix("f")))


def piece(lease: Lease) -> str:
    return f"{lease.number}+{lease.start}" if lease.start else f"{lease.number}"


def interval(id_: ContributionId) -> str:
    return f"{id_.life}[{id_.from_step},{id_.to_step})"


def ids(items: Iterable[ContributionId]) -> str:
    return " ".join(map(interval, items)) or "nothing"


def told(effects: list[Effect]) -> Iterator[str]:
    """Yield one line for each effect; one line for all learners asked for the same fragment."""
    for asked, group in groupby(effects, lambda e: e.fragment if isinstance(e, Ask) else None):
        if asked is None:
            yield from map(line, group)
        else:
            asks = [effect for effect in group if isinstance(effect, Ask)]
            lives, last = " ".join(str(ask.life) for ask in asks), any(ask.last for ask in asks)
            yield f"ask {lives} for f{asked}{' and no step more' if last else ''}"


def line(effect: Effect) -> str:
    match effect:
        case Granted(life, offset, versions, leases, donors):
            at, reads = " ".join(map(str, versions)), " and ".join(map(piece, leases))
            gives = f", moments of {' or '.join(map(str, donors))}" if donors else ""
            return f"grant {life}: clock +{offset}, at {at}, reads {reads}{gives}"
        case Refused(island, why, retry_s):
            again = "" if retry_s is None else f", ask again in {retry_s:g} s"
            return f"refuse {island}{again}: {why}"
        case Void(life, why, distrusted):
            return f"tell {life}: {why}{' (without its moments)' if distrusted else ''}"
        case LeaseGranted(life, lease):
            return f"lease {piece(lease)} to {life}"
        case Merge(p, version, items, why, last, limit, trial):
            shares = ", ".join(
                f"{interval(c.id)} {weight:.0%}"
                + (f" from {c.base}" if c.base.number != version.number - 1 else "")
                for c, weight in items
            )
            as_it_is = ", as it is" if last else ""
            at_most = "" if math.isinf(limit) else f", at most {limit:.3g} long"
            beside = f", beside {ids(c.id for c in trial)} on trial" if trial else ""
            return f"merge f{p} to {version}{as_it_is}: {shares}{beside} ({why}{at_most})"
        case Store(p, version):
            return f"store f{p} {version}"
        case Publish(p, version, _, to, merged):
            lives = " ".join(map(str, to)) or "nobody"
            return f"publish f{p} {version} to {lives}, with {ids(merged)}"
        case Discard(c, fate, why):
            return f"discard {interval(c.id)} of f{c.id.fragment}, {fate}: {why}"
        case Shift(life, offset):
            return f"shift {life} to clock +{offset}"
        case Release(life, why):
            return f"release {life}: {why}"
        case Wake(at_s):
            return f"wake at {at_s:g}"
        case Finish(why):
            return f"finish: {why}"
        case Ask(life, p):
            return f"ask {life} for f{p}"
