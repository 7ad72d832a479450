"""The result of an audit: traffic by region and kind, and the lineage of merges."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum


class TrafficKind(StrEnum):
    """The kind of content that crosses the border of a region."""

    DELTA = "delta"  # up: changes of parameters
    MOMENTS = "moments"  # up: of the optimizer, beside a delta or for an island that joins; down
    REPORT = "report"  # up: progress, loss and times of a step
    ERROR_CODE = "error code"  # up: the class of an error and a code, in place of its text
    ERRORS = "errors"  # up: texts of errors; counted for regions whose texts may not leave
    DIFFERENCE = "difference"  # down: changes of the global model
    MODEL = "model"  # down: all fragments, for a learner that joins

    @property
    def has_payload(self) -> bool:
        """Whether its messages carry arrays; reports and errors consist of their fields only."""
        return self not in (TrafficKind.REPORT, TrafficKind.ERROR_CODE, TrafficKind.ERRORS)


@dataclass(slots=True)
class Traffic:
    """The messages of one kind in one direction."""

    messages: int = 0
    bytes: int = 0
    """Bytes of their payloads; for reports and errors, of their records on the tape, as JSON."""
    sha256: str = ""
    """Digest of their records on the tape in order, without the bytes of payloads."""
    payloads: int = 0
    """Payloads among them that the run kept and that were read for `payloads_sha256`."""
    payloads_sha256: str | None = None
    """Digest of the SHA-256 of these payloads in order; None if none was read."""

    def add(self, text: str, size: int | None = None, payload: str | None = None) -> None:
        """Count one message.

        `text`: its record on the tape. `size`: bytes of its payload; None if it has none.
        `payload`: SHA-256 of its payload, if that was read.
        """
        self.messages += 1
        self.bytes += len(text.encode()) if size is None else size
        self.sha256 = _chained(self.sha256, text)
        if payload is not None:
            self.payloads += 1
            self.payloads_sha256 = _chained(self.payloads_sha256 or "", payload)


@dataclass(slots=True)
class RegionAudit:
    """The data and the traffic of one region."""

    region: str
    islands: list[str] = field(default_factory=list[str])
    leases: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Pieces of the region's own corpus that its islands were given: first and last number."""
    up: dict[TrafficKind, Traffic] = field(default_factory=dict[TrafficKind, Traffic])
    """From the islands of the region to syncer and shards, and to islands of other regions."""
    down: dict[TrafficKind, Traffic] = field(default_factory=dict[TrafficKind, Traffic])
    """To the islands of the region from syncer and shards, and from islands of other regions."""
    may_leave: list[str] | None = None
    """The kinds that may leave (`regions.*.may_leave`); None: the region has no such table."""

    @property
    def violations(self) -> list[str]:
        """The kinds that crossed the border upwards, and may not."""
        if self.may_leave is None:
            return []
        allowed = {*self.may_leave, TrafficKind.ERROR_CODE}  # "corpus" is on no tape
        return sorted(kind.value for kind in self.up if kind.value not in allowed)


@dataclass(frozen=True, slots=True)
class Contributor:
    """One contribution of a merge."""

    id: str
    island: str
    region: str
    tokens: int
    base: str
    """Version of the fragment that the learner had adopted."""
    weight: float
    """Share in the merge; the weights of a merge sum to 1."""
    bytes: int
    sha256: str | None
    """Digest of the payload; None unless the run kept its contributions."""


@dataclass(frozen=True, slots=True)
class AuditedMerge:
    """One merge in the lineage of a fragment."""

    fragment: int
    version: str
    at_s: float
    """Time of the syncer's clock, in seconds."""
    why: str
    contributors: list[Contributor]
    sha256: str
    """Digest of this record, without the digests of payloads, and of the fragment's one before."""
    lost: bool = False
    """Whether a restart lost it before it was stored, so that it is not in the model."""

    @property
    def has_unknown_origin(self) -> bool:
        """Whether it is a version that the tape does not have, so its contributors are unknown."""
        return not self.contributors


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit."""

    run: str
    events: int
    merges: int
    """Merges that became public and that no restart lost."""
    merges_lost: int
    """Merges that became public and that a restart lost before they were stored."""
    unknown_versions: int
    """Versions from which the run resumed and that the tape does not have."""
    regions: list[RegionAudit]
    lineage_sha256: str
    """Digest of the last records of all fragments."""
    lineage: list[AuditedMerge]
    damage: str | None
    """Damage to the tape; None if there is none."""
    is_incomplete: bool
    """Whether there is damage other than an end that a crash cut off, which costs nothing."""
    unconfirmed: list[str]
    """Reasons why kept payloads have no digest: they were changed, or cannot be read."""

    @property
    def passed(self) -> bool:
        """Whether nothing left that may not, no event is missing, and no payload was changed."""
        sound = not self.is_incomplete and not self.unconfirmed
        return sound and not any(each.violations for each in self.regions)


def as_json(found: Audit, *, lineage: bool) -> Mapping[str, object]:
    """Return an audit as plain data, with its lineage if wanted."""
    plain = asdict(found)
    for region, each in zip(plain["regions"], found.regions, strict=True):
        region["violations"] = each.violations
    for row, merge in zip(plain["lineage"], found.lineage, strict=True):
        row["has_unknown_origin"] = merge.has_unknown_origin
    if not lineage:
        del plain["lineage"]
    return plain


def traffic_rows(region: RegionAudit) -> Iterator[tuple[str, str, Traffic]]:
    """Yield the direction, the kind and the messages of a region's traffic."""
    for direction, kinds in (("up", region.up), ("down", region.down)):
        for kind, found in sorted(kinds.items()):
            yield direction, kind.value, found


def _chained(before: str, text: str) -> str:
    """Return the digest of a text and of the digest before it."""
    return hashlib.sha256(f"{before} {text}".encode()).hexdigest()
