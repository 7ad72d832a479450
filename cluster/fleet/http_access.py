"""The rules of access to a run's HTTP port: which request is admitted, and links to the page; pure.

The port is read-only. A request is admitted by the run's token, or by the cookie of a browser that
has opened a link. Each link works once. docs/explanation/security.md gives the reasons.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

HEALTH, METRICS, LINK = "/healthz", "/metrics", "/link"
LINK_S = 24 * 3600.0
"""Seconds for which a link that was not opened stays valid."""
LINKS_KEPT = 32
"""The newest links that have not been opened; older ones are void."""


class Verdict(Enum):
    """The answer to a request; the number is the HTTP status of a refusal."""

    ADMITTED = 200
    NO_TOKEN = 401
    WRONG_HOST = 403
    READ_ONLY = 405


@dataclass(frozen=True, slots=True)
class AskedPage:
    """The facts of a request that decide whether it is admitted."""

    method: str
    path: str
    remote: str
    """The address of the caller; empty if it is not known."""
    host: str | None
    """The header `Host`; None if there is none."""
    authorization: str = ""
    cookie: str = ""
    """The value of the port's own cookie; empty if there is none."""


class Access:
    """The keys of one port: its token, the cookie of admitted browsers, and links not opened yet.

    Only the thread of the port calls it.
    """

    def __init__(self, token: str, names: frozenset[str], make_key: Callable[[], str]) -> None:
        """Create the keys. `names`: host names of this port. `make_key`: returns a random text."""
        self._token, self._names, self._make_key = token, names, make_key
        self._session = make_key()
        self._links: dict[str, float] = {}  # each with the time at which it ends

    @property
    def cookie(self) -> tuple[str, str]:
        """The name and the value of the cookie of an admitted browser.

        The name differs between runs, because the ports of one host share their cookies.
        """
        return f"archipelago-{hashlib.sha256(self._token.encode()).hexdigest()[:8]}", self._session

    def link(self, now_s: float) -> str:
        """Return the key of a new link."""
        key = self._make_key()
        self._links[key] = now_s + LINK_S
        for old in [*self._links][:-LINKS_KEPT]:
            del self._links[old]
        return key

    def opens(self, key: str, now_s: float) -> bool:
        """Return whether this is the key of a link that was not opened before; it is void now."""
        found = next((each for each in self._links if _same(each, key)), None)
        return found is not None and self._links.pop(found) > now_s

    def verdict(self, asked: AskedPage) -> Verdict:
        """Return whether a request is admitted.

        - `/healthz` is open.
        - The token admits every request, whatever its `Host`: a web page cannot send it.
        - Without the token the `Host` must name this port. Another name may resolve to this machine
          in a browser that shows a foreign page (DNS rebinding).
        - `/metrics` is open to callers of this machine that use a loopback address as `Host`.
        - The cookie admits all that people look at; new links need the token.
        """
        if asked.method not in ("GET", "HEAD"):
            return Verdict.READ_ONLY
        if asked.path == HEALTH or _same(f"Bearer {self._token}", asked.authorization):
            return Verdict.ADMITTED
        host = _hostname(asked.host)
        if host is None or not self._is_own(host):
            return Verdict.WRONG_HOST
        named_here = host in ("", "localhost") or _loopback(host or "")
        on_loopback = _loopback(asked.remote) and named_here
        if asked.path == METRICS and on_loopback:
            return Verdict.ADMITTED
        if asked.path != LINK and _same(self._session, asked.cookie):
            return Verdict.ADMITTED
        return Verdict.NO_TOKEN

    def _is_own(self, host: str) -> bool:
        return host in ("", "localhost") or host in self._names or _address(host) is not None


def _hostname(host: str | None) -> str | None:
    """Return the name in a header `Host`, empty if there is none; None if it is no host."""
    if not host:
        return ""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:  # it is a name
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _loopback(text: str) -> bool:
    address = _address(text)
    return address is not None and address.is_loopback


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def page_url(host: str, port: int, node: str) -> str:
    """Return the address of the page of a port.

    `host`: the address that the port listens at. `node`: the name or address of its machine, which
    replaces an address that stands for all networks.
    """
    host = node if host in ("0.0.0.0", "::") else host
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"
