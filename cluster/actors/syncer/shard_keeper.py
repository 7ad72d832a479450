"""The watch over the shards, and the recovery of shards that died.

If a shard dies, normally only its fragments are away for a moment. The whole run begins a new
generation if learners cannot continue without the shard's data, or if a public version is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial

from ray.exceptions import RayError

from cluster.actors.call_errors import cause_of
from cluster.actors.directory import Directory
from cluster.actors.restart import start_over
from cluster.actors.syncer.ray_ports import RayPorts
from cluster.actors.syncer.snapshot_writer import SnapshotWriter
from cluster.config.rule import shards_come_back_alone
from cluster.config.schema import Config
from cluster.names import shards_of
from cluster.storage.format import Damaged
from cluster.syncer.shell import Syncer
from coordinator.protocol import Fragment, Version


class ShardKeeper:
    """The shards of a run, by name, as the process of its syncer keeps them."""

    def __init__(
        self, config: Config, namespace: str, ports: RayPorts, snapshots: SnapshotWriter
    ) -> None:
        self._config, self._namespace = config, namespace
        self._ports, self._snapshots = ports, snapshots
        self._fragments_of = shards_of(config.sync.shards, config.sync.fragments)

    async def recover(
        self, targets: Mapping[Fragment, Version], generation: int
    ) -> Mapping[Fragment, Version]:
        """Have all shards go back to these versions for a new generation; return what they have.

        Errors: `Damaged` if one of them has no usable version on disk; otherwise the errors of
        calls.
        """
        actors = Directory(self._namespace)
        calls = [
            (await actors.find(name)).recover.remote({p: targets[p] for p in own}, generation)
            for name, own in self._fragments_of.items()
        ]
        try:
            return {p: v for each in await asyncio.gather(*calls) for p, v in each.items()}
        except Damaged as error:
            raise Damaged(str(cause_of(error))) from error

    def keep(self, syncer: Syncer) -> None:
        """Watch over all shards from here on, each in a task of the syncer."""
        for name, own in self._fragments_of.items():
            syncer.spawn(self._keep(syncer, name, own))

    async def _keep(self, syncer: Syncer, name: str, own: Sequence[Fragment]) -> None:
        """Recover one shard whenever it dies, or start over if that cannot help."""
        while True:
            await self._ports.shard_dies(name)
            if not shards_come_back_alone(self._config):
                start_over(f"{name} has died, and with it data that all learners need")
            logging.warning("%s has died, and its fragments %s with it", name, [*own])
            targets = syncer.shard_lost(own)
            trouble = partial(syncer.measures.trouble, name)
            try:
                generation = syncer.state.generation
                found = await self._ports.have_back(name, targets, generation, trouble)
            except RayError as error:  # a new generation waits longer
                start_over(f"{name} cannot come back: {cause_of(error)}")
            trouble(None)
            if found != targets:
                start_over(f"{name} was to come back with {targets}, and has {found}")
            self._snapshots.orphans = True
            self._ports.is_back(name)
            syncer.shard_back(own)
            logging.warning("%s is back", name)
