"""Tests of the lanes on which published versions are adopted, and of catching up."""

from __future__ import annotations

from queue import Queue
from typing import Any, cast

import pytest

from coordinator.protocol import Fragment, Publication, Version
from islands.exchange import Downlink, Public
from islands.hosts.publication_lanes import Following

WAIT_S = 30.0
F0, F1 = Fragment(0), Fragment(1)
SAID = Publication(F0, Version(0, 2), Version(0, 1), ())


class OneVersion:
    """A downlink that follows everything, and records whether its lane catches up meanwhile."""

    def __init__(self, *, lacks: bool, fails: bool) -> None:
        self.seen, self._lacks, self._fails = Queue[tuple[bool, bool]](), lacks, fails
        self.following: Following

    def lacks(self, publication: Publication, payload: object) -> bool:
        return self._lacks

    def follow(self, publication: Publication, payload: object) -> Public | None:
        self.seen.put((self.following.catching_up(F0), self.following.catching_up(F1)))
        if self._fails:
            raise ValueError("no such version")
        return None


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("lacks", [True, False])
def test_only_a_fetch_of_missed_versions_is_catching_up(lacks: bool, fails: bool) -> None:
    """A payload that comes while another version is only decoded fits behind it, and is fetched."""
    downlink = OneVersion(lacks=lacks, fails=fails)
    broken: Queue[BaseException] = Queue()
    downlink.following = Following(cast("Downlink", downlink), lambda *_: None, broken.put)
    payload: Any = None
    if fails and not lacks:
        with pytest.raises(ValueError, match="no such version"):
            downlink.following.offer(SAID, payload)
    else:
        downlink.following.offer(SAID, payload)
    assert downlink.seen.get(timeout=WAIT_S) == (lacks, False)
    if fails and lacks:
        assert "no such version" in str(broken.get(timeout=WAIT_S))
    if fails or not lacks:
        assert not downlink.following.catching_up(F0)
