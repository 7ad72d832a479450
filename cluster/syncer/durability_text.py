"""The text about what of a run is not durable at present."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

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
    return "; ".join(_text(troubles[first], first, others) for first, *others in groups.values())


def _text(why: str, subject: str, others: Sequence[str]) -> str:
    if not others and why.startswith(f"{subject} "):
        return why
    more = f" and {len(others)} other{'s' if len(others) > 1 else ''}" if others else ""
    return f"{subject}{more}: {why}"
