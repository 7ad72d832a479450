"""The lineage of an audit: each merge that became public, and what restarts made of it.

A version may be public before it is stored. If a restart loses it, its merge is not in the model. A
resume with `--from-stored` may take a version that the tape does not have: its merges are unknown.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace

from archipelago.lab.checks.audit_result import AuditedMerge, Contributor, RegionAudit
from coordinator.protocol import ContributionId, Fragment, Island, Merge, Publish, Resume, Version
from coordinator.state import State

UNKNOWN = "unknown origin: the run resumed from a stored version that its tape does not have"
"""The reason of a version whose merges are not on the tape."""


class Lineage:
    """The merges of one run, event by event."""

    def __init__(self, fragments: int) -> None:
        """Begin with no merge; `fragments`: the number of fragments."""
        self._fragments = fragments
        self._ordered = dict[tuple[Fragment, Version], tuple[Merge, float]]()  # not public yet
        self._public = list[Version]()  # the version of each row of `rows`
        self._last = dict[int, str]()  # the digest of each fragment's newest record
        self.rows: list[AuditedMerge] = []
        """The merges, oldest first, and the versions of unknown origin."""

    @property
    def sha256(self) -> str:
        """The digest of the last records of all fragments."""
        newest = [self._last.get(p, "") for p in range(self._fragments)]
        return hashlib.sha256(" ".join(newest).encode()).hexdigest()

    def ordered(self, order: Merge, now_s: float) -> None:
        """Note a merge that was ordered; one that is undone never becomes public."""
        self._ordered[order.fragment, order.version] = order, now_s

    def published(
        self,
        publish: Publish,
        regions: Mapping[Island, RegionAudit],
        payloads: dict[ContributionId, str],
    ) -> None:
        """Add the merge that made a version public.

        `payloads`: digests of contributions, from which those of this merge are removed.
        """
        if (ordered := self._ordered.pop((publish.fragment, publish.version), None)) is None:
            return
        order, now_s = ordered
        contributors = [
            Contributor(
                str(item.contribution.id),
                item.contribution.id.life.island,
                regions[item.contribution.id.life.island].region,
                item.contribution.tokens,
                str(item.contribution.base),
                item.weight,
                item.contribution.bytes,
                payloads.pop(item.contribution.id, None),
            )
            for item in order.items
        ]
        facts = [order.fragment, str(order.version), round(now_s, 6), order.why]
        plain = [asdict(replace(each, sha256=None)) for each in contributors]
        digest = self._record(order.fragment, [*facts, plain])
        row = AuditedMerge(
            order.fragment, str(order.version), now_s, order.why, contributors, digest
        )
        self._add(row, order.version)

    def resumed(self, resume: Resume, before: State, now_s: float) -> None:
        """Compare the versions with which a syncer resumes with those that were public."""
        self._ordered.clear()
        for p, version in enumerate(resume.versions):
            fragment, known = Fragment(p), before.fragments[p].version
            if version > known:
                facts: list[object] = [p, str(version), round(now_s, 6), UNKNOWN]
                digest = self._record(fragment, facts)
                self._add(AuditedMerge(p, str(version), now_s, UNKNOWN, [], digest), version)
            elif version < known:
                self._lose(fragment, version)

    def _lose(self, fragment: Fragment, kept: Version) -> None:
        """Mark the merges of a fragment after a version as lost."""
        lost = [
            number
            for number, (row, version) in enumerate(zip(self.rows, self._public, strict=True))
            if row.fragment == fragment and version > kept and not row.lost
        ]
        for number in lost:
            self.rows[number] = replace(self.rows[number], lost=True)
        self._record(fragment, [fragment, str(kept), [self.rows[each].version for each in lost]])

    def _record(self, fragment: Fragment, facts: list[object]) -> str:
        """Chain a record to those of its fragment, and return the digest."""
        text = json.dumps(facts)
        digest = hashlib.sha256(f"{self._last.get(fragment, '')} {text}".encode()).hexdigest()
        self._last[fragment] = digest
        return digest

    def _add(self, row: AuditedMerge, version: Version) -> None:
        self.rows.append(row)
        self._public.append(version)
