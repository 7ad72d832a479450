"""The delivery times of publications, which the rules receive one round later."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.protocol import Fragment, Life, Reached, Version


@dataclass(slots=True)
class _Sent:
    version: Version
    at_s: float
    after_s: dict[Life, float] = field(default_factory=dict[Life, float])


class Arrivals:
    """The delivery times of each fragment's last publication, in seconds, one for each learner.

    They are returned when the next publication is sent. A learner that has not received the
    publication by then is left out.
    """

    def __init__(self) -> None:
        self._sent: dict[Fragment, _Sent] = {}

    def sent(self, p: Fragment, version: Version, now_s: float) -> Reached | None:
        """Note that a publication is sent; return which learners the one before it has reached.

        Returns None if that one has reached no learner.
        """
        before, self._sent[p] = self._sent.get(p), _Sent(version, now_s)
        if before is None or not before.after_s:
            return None
        return Reached(p, before.version, tuple(sorted(before.after_s.items())))

    def reached(self, p: Fragment, version: Version, life: Life, now_s: float) -> None:
        """Note that this learner has the publication, ready to be adopted."""
        sent = self._sent.get(p)
        if sent is not None and sent.version == version:
            sent.after_s[life] = now_s - sent.at_s
