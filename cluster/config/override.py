"""The overrides of the command line: `--set a.b=c`, applied to the tables of a configuration."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

from cluster.config.problem_text import Problem, short_toml_value


def override(tables: dict[str, Any], text: str) -> Iterator[Problem]:
    """Apply one `a.b=c` to the tables, in place, and yield the problems.

    The path may name a group of islands by its index or by its name.
    """
    path, equals, value = text.partition("=")
    *parents, last = parts = [part.strip() for part in path.split(".")]
    where = f"--set {text}"
    if not equals or not all(parts):
        yield Problem(where, "must look like sync.every=24")
        return
    node: Any = tables
    for part in parents:
        if isinstance(node, dict):
            node = node.setdefault(part, {})
        elif (index := _index(node, part)) is not None:
            node = node[index]
        else:
            yield Problem(where, _no_element(node, part))
            return
    if isinstance(node, dict):
        node[last] = _override_value(value.strip())
    elif (index := _index(node, last)) is not None:
        node[index] = _override_value(value.strip())
    else:
        yield Problem(where, _no_element(node, last))


def _index(node: object, part: str) -> int | None:
    if not isinstance(node, list):
        return None
    for index, element in enumerate(node):
        if isinstance(element, dict) and element.get("group") == part:
            return index
    return int(part) if part.isdecimal() and int(part) < len(node) else None


def _no_element(node: object, part: str) -> str:
    if not isinstance(node, list):
        return f'"{part}" has no place: its parent is {short_toml_value(node)}, not a table'
    groups = [str(e["group"]) for e in node if isinstance(e, dict) and "group" in e]
    return f'no element "{part}"; there are {len(node)}' + (
        f": {', '.join(groups)}" if groups else ""
    )


def _override_value(text: str) -> object:
    """Return the TOML value, or the text itself if it is not one."""
    try:
        tables = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return tables["value"] if len(tables) == 1 else text
