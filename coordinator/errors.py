"""The exceptions of this project, each with what to do about it.

Arguments are positional, so that every exception survives pickling on its way through Ray.
"""

from __future__ import annotations


class ArchipelagoError(Exception):
    """The base class of our exceptions; a message says what, who, how much and what to do now."""


class UserMistake(ArchipelagoError):
    """A mistake that the user can fix: shown without a traceback, exit code 2."""


class RunFailed(ArchipelagoError):
    """A run that cannot go on; what it has written stays in its directory. Exit code 1."""


class LayoutMismatch(ArchipelagoError):
    """A mismatch of layouts: two sides cut the parameters differently, so nothing may be merged."""


class CorruptPayload(ArchipelagoError):
    """A payload whose bytes do not decode to the fragment that its header names."""


class Unreachable(ArchipelagoError):
    """The coordinator cannot be reached at present: training goes on, and the caller retries."""


class Rejected(ArchipelagoError):
    """The coordinator refuses this learner for good; a retry would not change that."""


class Relieved(ArchipelagoError):
    """A spare has taken over this learner's island while the learner could not be reached."""


class HostLost(ArchipelagoError):
    """A host of a multi-host island is gone or hangs: the whole island begins another life."""


class Malformed(ArchipelagoError):
    """A message from an island that the protocol does not allow; the fault is that island's."""


class NoModel(ArchipelagoError):
    """A shard's process has only just started and has not been told what to hold."""


class Outdated(ArchipelagoError):
    """A later generation of the syncer has taken over; the process that learns this must exit."""


class Misordered(ArchipelagoError):
    """An order that does not fit the state of a shard.

    Syncer and shard disagree, which is a defect of ours.
    """


class BrokenInvariant(ArchipelagoError):
    """A contradiction in the rules: a defect of ours, never of the user's."""
