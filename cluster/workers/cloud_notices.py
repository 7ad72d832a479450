"""The notices of clouds that they will take a machine away, read from their metadata servers.

Each cloud answers on an address that only its machines reach. `notice_in` is pure: it reads an
answer. `ask` sends the requests. The formats are those of the clouds' own documentation of spot and
preemptible machines.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any

TIMEOUT_S = 2.0
"""The timeout of a request: a metadata server is on the same host and answers in milliseconds."""
LONGEST_BYTES = 2**16
"""The longest answer that is read."""
AWS_TOKEN_S = "60"
"""The life of the session token that each poll asks AWS for, in seconds."""
NOT_FOUND = 404
GCE_NOTICE_S, AZURE_NOTICE_S = 30.0, 30.0
"""The notice of a machine whose cloud names no time, as its documentation has it."""


class NoticeCloud(StrEnum):
    """A cloud whose notices are understood."""

    GCE = "gce"
    AWS = "aws"
    AZURE = "azure"


@dataclass(frozen=True, slots=True)
class MachineNotice:
    """The announcement that a machine will be taken away."""

    why: str
    """The reason, for people."""
    within_s: float
    """Seconds until the machine is gone; 0 if that time has passed."""


@dataclass(frozen=True, slots=True)
class MetadataServer:
    """The metadata server of a cloud: its address, and the requests of a poll."""

    address: str
    path: str
    """The path of the notice."""
    headers: Mapping[str, str]


SERVERS: Mapping[NoticeCloud, MetadataServer] = MappingProxyType(
    {
        NoticeCloud.GCE: MetadataServer(
            "http://metadata.google.internal",
            "/computeMetadata/v1/instance/preempted",
            {"Metadata-Flavor": "Google"},
        ),
        NoticeCloud.AWS: MetadataServer(
            "http://169.254.169.254", "/latest/meta-data/spot/instance-action", {}
        ),
        NoticeCloud.AZURE: MetadataServer(
            "http://169.254.169.254",
            "/metadata/scheduledevents?api-version=2020-07-01",
            {"Metadata": "true"},
        ),
    }
)
AWS_TOKEN_PATH = "/latest/api/token"
AZURE_NAME_PATH = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
AZURE_KINDS = frozenset({"Preempt", "Terminate"})
"""The scheduled events of Azure that end a machine; others only pause or restart it."""


def ask(cloud: NoticeCloud, address: str | None, now_unix_s: float) -> MachineNotice | None:
    """Return the notice of this machine's cloud; None if it has none.

    `address`: of the metadata server; None: the cloud's own.

    Errors: `OSError` if the server does not answer; `ValueError` if the answer has another format.
    """
    server = SERVERS[cloud]
    base, headers = (address or server.address).rstrip("/"), dict(server.headers)
    if cloud is NoticeCloud.AWS:
        wanted = {"X-aws-ec2-metadata-token-ttl-seconds": AWS_TOKEN_S}
        _, token = _fetch(base + AWS_TOKEN_PATH, wanted, method="PUT")
        headers["X-aws-ec2-metadata-token"] = token
    status, body = _fetch(base + server.path, headers)
    name = ""
    if cloud is NoticeCloud.AZURE and _azure_events(body):
        _, name = _fetch(base + AZURE_NAME_PATH, headers)
    return notice_in(cloud, status, body, name.strip(), now_unix_s)


def notice_in(
    cloud: NoticeCloud, status: int, body: str, machine: str, now_unix_s: float
) -> MachineNotice | None:
    """Return the notice in a metadata server's answer; None if the machine stays.

    `status`: of HTTP. `machine`: the name of this machine, which Azure's events contain.
    `now_unix_s`: seconds since 1970.

    Errors: `ValueError` if the answer has another format.
    """
    match cloud:
        case NoticeCloud.GCE:
            word = body.strip().upper()
            if word not in ("TRUE", "FALSE"):
                raise ValueError(f"instance/preempted is {body[:40]!r}, neither TRUE nor FALSE")
            why = "preempted: notice of gce, the machine is taken away"
            return MachineNotice(why, GCE_NOTICE_S) if word == "TRUE" else None
        case NoticeCloud.AWS:
            if status == NOT_FOUND:
                return None
            action: Any = json.loads(body)
            at = datetime.fromisoformat(str(action["time"]).replace("Z", "+00:00"))
            why = f"preempted: notice of aws, {action['action']} at {action['time']}"
            return MachineNotice(why, _left_s(at, now_unix_s))
        case NoticeCloud.AZURE:
            ends = [
                each
                for each in _azure_events(body)
                if each.get("EventType") in AZURE_KINDS and machine in each.get("Resources", ())
            ]
            if not ends:
                return None
            kind, at_text = ends[0]["EventType"], str(ends[0].get("NotBefore") or "")
            within_s = AZURE_NOTICE_S  # an event that has begun names no time
            if at_text:
                within_s = _left_s(parsedate_to_datetime(at_text), now_unix_s)
            why = f"preempted: notice of azure, {kind} {at_text or 'now'}"
            return MachineNotice(why, within_s)


def _left_s(at: datetime, now_unix_s: float) -> float:
    known = at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)  # noqa: UP017
    return max(0.0, known.timestamp() - now_unix_s)


def _azure_events(body: str) -> list[dict[str, Any]]:
    answer: Any = json.loads(body)
    if not isinstance(answer, dict) or not isinstance(events := answer.get("Events"), list):
        raise ValueError(f"no list of events: {body[:40]!r}")
    return events


def _fetch(url: str, headers: Mapping[str, str], *, method: str = "GET") -> tuple[int, str]:
    """Return the status and the text of an answer; 404 is an answer, other errors are raised."""
    request = urllib.request.Request(url, headers=dict(headers), method=method)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read(LONGEST_BYTES).decode()
    except urllib.error.HTTPError as error:
        if error.code == NOT_FOUND:
            return NOT_FOUND, ""
        raise
