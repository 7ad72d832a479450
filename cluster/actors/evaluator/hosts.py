"""An evaluator of several hosts: the first one sends orders, and all evaluate the model as one.

Each host fetches its own ranges of the public fragments, and computes with those. A host that
breaks ends its process and with it all others (`cluster.actors.hosts.host_group`): an evaluation
may be waiting for devices of every host.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn, TypeAlias, assert_never

from cluster.actors.directory import holder_of, setup_logging
from cluster.actors.fault_injection import Cable
from cluster.actors.hosts.host_group import Hosts
from cluster.actors.learner_link import RayLink
from cluster.config.schema import Config
from cluster.hosts.gang import GangAddress, Other, enter
from cluster.names import EVALUATOR, Seat
from cluster.tasks import watch_process
from cluster.workers.assembly import mesh_of
from cluster.workers.evaluator import Evaluator
from cluster.workers.evaluator_answers import Judged
from coordinator.errors import UserMistake
from coordinator.fragments import Flat, Layout
from coordinator.protocol import Fragment, Publication, Version
from islands.exchange import Downlink, Public
from islands.hosts.lead import Lead, agreed
from islands.hosts.orders import CatchUp, Fetched

log = logging.getLogger("archipelago.evaluator")
SAID_S = 30.0
"""Seconds that a host with a configuration error waits before it ends.

Every host finds the same error, and the first one needs time to report it.
"""


@dataclass(frozen=True, slots=True)
class Fetch:
    """An order to fetch the public fragments, and to answer with their versions (`Fetched`)."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """Notice that all hosts have the same versions."""


@dataclass(frozen=True, slots=True)
class Judge:
    """An order to compute the loss of the fragments that were fetched last."""

    few: bool
    """Whether to use only the windows of an evaluation during the run."""


@dataclass(frozen=True, slots=True)
class JudgeInitial:
    """An order to compute the loss of the initial model."""


@dataclass(frozen=True, slots=True)
class Give:
    """An order to gather this fragment of the initial model at the first host."""

    fragment: Fragment


Order: TypeAlias = Fetch | CatchUp | Agreed | Judge | JudgeInitial | Give


class Host:
    """The state of each host: an evaluator, and its ranges of the public fragments."""

    def __init__(self, config: Config, namespace: str) -> None:
        self.evaluator = Evaluator(config, mesh_of(config.monitor.evaluator))
        seat, holder = Seat(EVALUATOR), holder_of(config)
        self._link = RayLink(namespace, Cable(), seat, holder, relievable=False)
        self._link.ranges = self.evaluator.ranges
        self.public: dict[Fragment, Public] = {}

    def fetch(self) -> Downlink:
        """Fetch this host's ranges of the public fragments; return a link to newer versions."""
        fragments = [*self.evaluator.ranges]
        found = self._link.whole(fragments)
        assert found is not None, "no life is joined that could be over"
        self.public = dict(zip(fragments, found, strict=True))
        return Downlink(self.public, self._link.missed)

    @property
    def flats(self) -> list[Flat]:
        """This host's ranges of the public fragments, without versions."""
        return [flat for _, flat in self.public.values()]


class TogetherEvaluator:
    """An `Evaluator` on the first host, whose calls the other hosts carry out too."""

    def __init__(self, config: str, namespace: str) -> None:
        """Start the other hosts, and meet them."""
        parsed_config = Config.model_validate_json(config, strict=False)
        machines, arguments = parsed_config.monitor.evaluator, (config, namespace)
        self._hosts = Hosts(EvaluatorHost, arguments, machines, namespace, EVALUATOR, _end)
        self._lead: Lead[Order] = self._hosts.lead
        self._host = Host(parsed_config, namespace)

    @property
    def judged(self) -> Judged:
        """The progress of this host."""
        return self._host.evaluator.judged

    @property
    def layout(self) -> Layout:
        """The partition of the model into fragments."""
        return self._host.evaluator.layout

    @property
    def initial_loss(self) -> float:
        """The held-out loss of the initial model, in nats per token."""
        with _in_step():
            self._lead.tell(JudgeInitial())
            return self._host.evaluator.initial_loss

    def initial_fragment(self, p: Fragment) -> Flat:
        """Return a fragment of the initial model, whole."""
        with _in_step():
            self._lead.tell(Give(p))
            return self._host.evaluator.initial_fragment(p)

    def public(self) -> list[tuple[Version, Flat]]:
        """Fetch this host's ranges of the public fragments, of the same versions on all hosts."""
        with _in_step():
            self._lead.tell(Fetch())
            downlink = self._host.fetch()
            self._host.public = agreed(self._lead, self._host.public, downlink, Agreed())
            return [*self._host.public.values()]

    @property
    def metrics(self) -> dict[str, float]:
        """The task's metrics of the last evaluation, by name."""
        return self._host.evaluator.metrics

    def loss(self, flats: Sequence[Flat]) -> float:
        """Return the held-out loss of the public fragments, in nats per token."""
        with _in_step():
            self._lead.tell(Judge(few=False))
            return self._host.evaluator.loss(flats)

    def sample(self, flats: Sequence[Flat]) -> float:
        """Return a held-out loss over fewer windows, as `Evaluator.sample` does."""
        with _in_step():
            self._lead.tell(Judge(few=True))
            return self._host.evaluator.sample(flats)


class EvaluatorHost:
    """A host of the evaluator that is not the first: it carries out orders while that is there."""

    def __init__(self, config: str, namespace: str, number: int, meeting: GangAddress) -> None:
        setup_logging()
        watch_process(lambda error: _end(f"a thread died: {error!r}"))
        self._config = Config.model_validate_json(config, strict=False)
        self._namespace, self._number, self._meeting = namespace, number, meeting
        threading.Thread(target=self._work, name="judge", daemon=True).start()

    def _work(self) -> None:
        """Meet the first host, and carry out its orders until the end."""
        try:
            first = Other[Order](self._meeting, self._number, lambda error: _end(str(error)))
            first.start(_nothing)
            enter(self._meeting, self._number)
            host, downlink = Host(self._config, self._namespace), None
            for order in first.orders():
                match order:
                    case Fetch():
                        downlink = host.fetch()
                        first.say(_versions(host))
                    case CatchUp(versions):
                        assert downlink is not None, "something was fetched before"
                        for p, version in versions.items():
                            publication = Publication(p, version, version, ())
                            if (found := downlink.follow(publication, None)) is not None:
                                host.public[p] = found
                        first.say(_versions(host))
                    case Agreed():
                        downlink = None
                    case Judge(sampled):
                        judge = host.evaluator.sample if sampled else host.evaluator.loss
                        judge(host.flats)
                    case JudgeInitial():
                        _ = host.evaluator.initial_loss
                    case Give(p):
                        host.evaluator.initial_fragment(p)
                    case _:
                        assert_never(order)
        except UserMistake:
            log.exception("the model cannot be judged on these hosts")
            time.sleep(SAID_S)
        except BaseException:
            log.exception("a host of the evaluator broke")
        _end("nothing is left to do")


@contextmanager
def _in_step() -> Generator[None]:
    """Restart all hosts if the block raises.

    A failure on the first host only would leave the others waiting for its devices, or for the
    answer to a message that is never read.
    """
    try:
        yield
    except BaseException:
        log.exception("the evaluator broke")
        _end("see above")


def _versions(host: Host) -> Fetched:
    """Return the versions that this host has fetched, as an answer."""
    return Fetched({p: version for p, (version, _) in host.public.items()})


def _nothing(_: object) -> None:
    """Ignore a message: here all messages are orders."""


def _end(why: str) -> NoReturn:
    """End this process, and with it the evaluator; Ray restarts its first host."""
    log.error("the evaluator ends: %s", why)
    logging.shutdown()
    os._exit(1)
