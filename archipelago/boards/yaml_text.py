"""Objects of Kubernetes as YAML text, with readable texts and keys in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

WIDTH = 100
"""The longest line in characters, where a value can be broken."""


class _Dumper(yaml.SafeDumper):
    """A dumper that writes texts of several lines as blocks, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, data: str) -> yaml.ScalarNode:
    style = "|" if "\n" in data else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _text)


def yaml_text(objects: Sequence[Mapping[str, Any]], comment: str) -> str:
    """Return objects as the documents of one file; each line of `comment` comes first."""
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=WIDTH)
