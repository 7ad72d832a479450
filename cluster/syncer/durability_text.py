"""The text about what of a run is not durable at present."""

from __future__ import annotations

import re
from collections.abc import Mapping

from coordinator.protocol import Fragment

FRAGMENT = "fragment "
_NUMBER = re.compile(r"\d+")


def fragment_subject(p: Fragment) -> str:
    """Return the subject under which a fragment's failure is noted."""
    return f"{FRAGMENT}{p}"


def durability_text(troubles: Mapping[str, str]) -> str:
    """Return what is not durable and why, in one line; empty if all is durable.

    `troubles`: subject -> reason. Fragments with reasons that differ only in numbers, as in file
    names, are counted, so the text does not grow with the fragments.
    """
    groups = dict[tuple[bool, str], list[str]]()
    for subject, why in troubles.items():
        is_fragment = subject.startswith(FRAGMENT)
        key = _NUMBER.sub("#", why) if is_fragment else subject
        groups.setdefault((is_fragment, key), []).append(subject)
    return "; ".join(
        f"{first}{_others(len(others))}: {troubles[first]}" for first, *others in groups.values()
    )


def _others(count: int) -> str:
    return "" if count == 0 else f" and {count} other{'s' if count > 1 else ''}"
