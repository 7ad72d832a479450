"""The troubles of links, as lines of text."""

from __future__ import annotations

from archipelago.cli.formatting import amount
from cluster.status import LinkStatus, RunStatus


def troubles(status: RunStatus | None) -> list[str]:
    """Return a line for each direction of a link that is down, slow or late."""
    links = [] if status is None else status.get("links", [])
    return [text for link in links if (text := _trouble(link))]


def _trouble(link: LinkStatus) -> str:
    if link["down"]:
        return f"{_name(link)} is down: nothing comes"
    if link["slow"]:
        return (
            f"{_name(link)} is slow: {_rate(link['bits_s'])}, usually {_rate(link['usual_bits_s'])}"
        )
    if link.get("lagging", False):
        return (
            f"{_name(link)} is late: most transfers of the last minute took longer than "
            f"sync.overlap allows, and {link['late']} of {link['transfers']} in all"
        )
    return ""


def _name(link: LinkStatus) -> str:
    way = "to the shards" if link["direction"] == "up" else "from the shards"
    return f"the link of {link['link']} {way}"


def _rate(bits_s: float | None) -> str:
    return "no rate yet" if bits_s is None else f"{amount(bits_s)}bit/s"
