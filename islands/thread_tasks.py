"""The tasks of a learner's threads, each with its data."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

import jax

from coordinator.fragments import Flat
from coordinator.protocol import Vitals
from islands.exchange import FragmentSnapshot, Uplink
from islands.hosts.publication_lanes import Following
from islands.learner_messages import Adopt, End, HandOver, Keep, Say, Step, Take, Want


class Offer(NamedTuple):
    """A version that can be adopted."""

    flat: Flat
    """The public fragment, on the host."""
    placed: jax.Array
    """The public fragment, on the devices."""
    mean: jax.Array | None
    """The mean of the islands' first moments, on the devices; None if none came with it."""


class Ends(NamedTuple):
    """Both sides of the wire of one life: the encoder and the decoder."""

    uplink: Uplink
    following: Following


@dataclass(frozen=True, slots=True, eq=False)
class HandInTask:
    """A hand-in, and the future of its callers; None if no caller waits."""

    word: HandOver
    asked: Future[FragmentSnapshot | None] | None


@dataclass(frozen=True, slots=True, eq=False)
class Adoption:
    """An adoption, and the arrays of its version."""

    word: Adopt
    offer: Offer


Todo = Step | HandInTask | Keep | Adoption | Take | End
"""A task of the training thread, with its data."""


class Outgoing(NamedTuple):
    """A message of the talking thread; `word` is None if no message was due for a heartbeat."""

    word: Say | Want | None
    vitals: Vitals
