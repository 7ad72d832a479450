"""Everything that is refused, and what to do then.

Arguments are positional, so that every error survives pickling on its way through Ray.
"""

from __future__ import annotations


class ArchipelagoError(Exception):
    """The root of our own errors; the message says what, who, how much and what now."""


class UserMistake(ArchipelagoError):
    """Something the user can mend: shown without a traceback, exit code 2."""


class RunFailed(ArchipelagoError):
    """The run cannot go on; what it has left is in its directory. Exit code 1."""


class LayoutMismatch(ArchipelagoError):
    """Two sides hold differently cut parameter trees; nothing may be merged between them."""


class CorruptPayload(ArchipelagoError):
    """Bytes on the wire do not decode to the fragment that their header names."""


class Unreachable(ArchipelagoError):
    """The coordinator cannot be heard at present: training goes on, try again."""


class Rejected(ArchipelagoError):
    """The coordinator will not have this learner, and asking again would not change that."""


class Relieved(ArchipelagoError):
    """A spare has taken this learner's island over while it could not be heard."""


class HostLost(ArchipelagoError):
    """A host of an island of several is gone, or hangs: the whole island begins another life."""


class Malformed(ArchipelagoError):
    """What an island says is nothing that the protocol has words for: it is that island's fault."""


class NoModel(ArchipelagoError):
    """A shard's process has just begun, and has not been told what to hold."""


class Outdated(ArchipelagoError):
    """A later generation of the syncer has taken over; who hears this must go."""


class Misordered(ArchipelagoError):
    """A shard cannot carry an order out as things stand with it: the syncer and it do not agree,
    which is a defect of ours."""


class BrokenInvariant(ArchipelagoError):
    """The rules contradict themselves: a defect of ours, never of the user's."""
