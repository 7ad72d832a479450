"""A learner that joins and then only holds the model: its own process, on the real transport."""

from __future__ import annotations

import functools
import threading
import time
from typing import Any

import numpy as np
import ray

from archipelago.lab.simulation.lease_reader import Pages
from cluster.actors.directory import holder_of, setup_logging
from cluster.actors.fault_injection import Cable
from cluster.actors.learner_link import RayLink
from cluster.actors.start import Home
from cluster.config.rule import group_of
from cluster.config.schema import Config
from cluster.names import Seat, group_name, island_actor, seat_of
from coordinator.errors import RunFailed
from coordinator.fragments import Flat
from coordinator.protocol import (
    Fragment,
    Granted,
    Island,
    Join,
    LeaseGranted,
    LeaseWanted,
    Life,
    Progress,
    Report,
    Version,
    Vitals,
    Void,
)

BEAT_S = 2.0
"""Seconds of one step, and so between two reports."""
THREADS = 4
"""Threads of the actor."""


class Pacer:
    """A simulated link of limited bandwidth, shared by all learners that use it.

    Each object crosses the link once; after that the other learners have it, too.
    """

    def __init__(self, bytes_s: float) -> None:
        self._bytes_s, self._free_s = bytes_s, 0.0
        self._lock, self._there = threading.Lock(), dict[str, float]()

    def carry(self, name: str, nbytes: int) -> None:
        """Return when the object of this name would have crossed the link."""
        now_s = time.monotonic()
        with self._lock:
            if name not in self._there:
                self._free_s = max(self._free_s, now_s) + nbytes / self._bytes_s
                self._there[name] = self._free_s
            there_s = self._there[name]
        time.sleep(max(0.0, there_s - now_s))


class Joiner:
    """One island whose learner takes a step every two seconds and computes nothing."""

    def __init__(self, config: str, namespace: str, island: Island, pacer: Any) -> None:
        """Prepare to join; `pacer` is None where there is a real link."""
        setup_logging()
        self._island = island
        plain = Config.model_validate_json(config, strict=False)
        self._batch = group_of(plain, island).batch_size
        self._lease_windows = plain.data.lease_windows
        self._fragments = [Fragment(p) for p in range(plain.sync.fragments)]
        seat = Seat(seat_of(island))
        holder = holder_of(plain)
        get = None if pacer is None else functools.partial(_paced, pacer)
        self._link = RayLink(namespace, Cable(), seat, holder, relievable=False, get=get)
        self._model: list[tuple[Version, Flat]] | None = None
        self._over = threading.Event()

    def join(self, fingerprint: str) -> float:
        """Join, fetch the model and report a step; return the time of that on the machine's clock.

        Errors: `RunFailed` if the learner is refused, or its life is ended.
        """
        granted = self._link.join(Join(self._island, group_name(self._island), fingerprint))
        if not isinstance(granted, Granted):
            raise RunFailed(f"{self._island} may not join: {granted.why}")
        if (model := self._link.whole(self._fragments)) is None:
            raise RunFailed(f"{granted.life} was over before it had the model")
        self._model = model
        pages = Pages(self._lease_windows, granted.leases)
        self._report(granted.life, 1, pages)
        joined_s = time.monotonic()
        threading.Thread(target=self._beat, args=(granted.life, pages), daemon=True).start()
        return joined_s

    def _report(self, life: Life, steps: int, pages: Pages) -> None:
        """Read the windows of a step and report it, and ask for more windows in time.

        The windows have to be read, since the syncer compares them with the steps.
        """
        pages.turn(self._batch)
        progress = Progress(steps, steps, pages.cursor)
        reply = self._link.report(Report(life, progress, BEAT_S), Vitals(0.0), ())
        if isinstance(reply, Void):
            raise RunFailed(f"{life} was ended: {reply.why}")
        while pages.remaining < self._batch:
            match self._link.lease(LeaseWanted(life)):
                case LeaseGranted(_, lease):
                    pages.add(lease)
                case Void() as over:
                    raise RunFailed(f"{life} was ended: {over.why}")

    def _beat(self, life: Life, pages: Pages) -> None:
        """Report a step every `BEAT_S` seconds, until the process ends."""
        steps = 1
        while not self._over.wait(BEAT_S):
            steps += 1
            self._report(life, steps, pages)

    def mapped(self) -> bool:
        """Return whether the model is mapped from the object store of the node."""
        assert self._model is not None
        return all(not flat.flags.owndata and not flat.flags.writeable for _, flat in self._model)

    def read(self) -> float:
        """Return the sum of the model; this reads all of it, as a copy to a device does."""
        assert self._model is not None
        return float(sum(np.sum(flat, dtype=np.float64) for _, flat in self._model))

    # --- as an island -----------------------------------------------------------------------------

    def watch(self, life: Life) -> str:
        """Wait until this life is over, and return why."""
        self._over.wait()
        return f"{life} is over"

    def cease(self, over: object) -> None:
        """Do nothing: the benchmark does not need this life any more."""


def _paced(pacer: Any, reference: Any) -> Any:
    """Fetch an object, and wait until it would have crossed the simulated link."""
    value: Any = ray.get(reference)
    ray.get(pacer.carry.remote(reference.hex(), value.nbytes))
    return value


def start_joiner(
    config: Config, island: Island, home: Home, pacer: Any, where: dict[str, float]
) -> Any:
    """Start the process of a learner; `where` has resources that only the wanted node has."""
    options = home.options(island_actor(seat_of(island)), {})
    actor = ray.remote(Joiner).options(
        **options, num_cpus=0, resources=where, max_concurrency=THREADS
    )
    return actor.remote(config.model_dump_json(), home.namespace, island, pacer)
