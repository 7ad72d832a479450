"""How long publications are on their way: what the rules hear of it, a round later."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.protocol import Fragment, Life, Reached, Version


@dataclass(slots=True)
class _Sent:
    version: Version
    at_s: float
    after_s: dict[Life, float] = field(default_factory=dict[Life, float])


class Arrivals:
    """Of the last publication of each fragment: whom it has reached, and after how long.

    It is told when the next one is sent: whoever has not taken it in by then is not waited for.
    """

    def __init__(self) -> None:
        self._sent: dict[Fragment, _Sent] = {}

    def sent(self, p: Fragment, version: Version, now_s: float) -> Reached | None:
        """A publication goes out; what became of the one before it. None if that reached nobody."""
        before, self._sent[p] = self._sent.get(p), _Sent(version, now_s)
        if before is None or not before.after_s:
            return None
        return Reached(p, before.version, tuple(sorted(before.after_s.items())))

    def reached(self, p: Fragment, version: Version, life: Life, now_s: float) -> None:
        """It is with this learner, ready to be adopted."""
        sent = self._sent.get(p)
        if sent is not None and sent.version == version:
            sent.after_s[life] = now_s - sent.at_s
