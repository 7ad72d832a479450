"""The exceptions of this project, each with what to do about it.

Arguments are positional, so that every exception survives pickling on its way through Ray.
"""

from __future__ import annotations


class ArchipelagoError(Exception):
    """The base class of our exceptions; a message has cause, place, amount and remedy."""


class UserMistake(ArchipelagoError):
    """A mistake that the user can fix: shown without a traceback, exit code 2."""


class SourceMistake(UserMistake):
    """A source of data that is missing, empty or too small.

    The message holds settings and counts, but no text of the data: it may leave a region.
    """


class RunFailed(ArchipelagoError):
    """A run that cannot continue; its files stay in its directory. Exit code 1."""


class LayoutMismatch(ArchipelagoError):
    """A mismatch of layouts: two sides cut the parameters differently, so nothing may be merged."""


class CorruptPayload(ArchipelagoError):
    """A payload whose bytes do not decode to the fragment that its header names."""


class Unreachable(ArchipelagoError):
    """A coordinator that cannot be reached at present: training continues, the caller retries."""


class Rejected(ArchipelagoError):
    """A final refusal of this learner by the coordinator; a retry would not change that."""


class Relieved(ArchipelagoError):
    """The takeover of this learner's island by a spare, while the learner was unreachable."""


class HostLost(ArchipelagoError):
    """The loss or hang of a host of a multi-host island: the island begins another life."""


class Malformed(ArchipelagoError):
    """A message from an island that the protocol does not allow; the fault is that island's."""


class NoModel(ArchipelagoError):
    """A shard whose process has just started and has not received its fragments."""


class Outdated(ArchipelagoError):
    """The takeover by a later generation of the syncer: the older syncer must exit."""


class Misordered(ArchipelagoError):
    """An order that does not fit the state of a shard.

    Syncer and shard disagree, which is a defect of ours.
    """


class BrokenInvariant(ArchipelagoError):
    """A contradiction in the rules: a defect of ours, never of the user's."""
