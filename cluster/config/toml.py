"""Values and tables in TOML notation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, time


def table_block(header: str, table: Mapping[str, object]) -> str:
    """Return a table with its header, one key a line."""
    return "".join(
        f"{line}\n"
        for line in (header, *(f"{toml_key(key)} = {toml_value(v)}" for key, v in table.items()))
    )


def toml_value(value: object) -> str:
    """Return a value in TOML notation; tables and lists are on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            pairs = ", ".join(f"{toml_key(str(k))} = {toml_value(v)}" for k, v in value.items())
            return f"{{{pairs}}}"
        case list() | tuple():
            return f"[{', '.join(toml_value(each) for each in value)}]"
        case date() | time():
            return value.isoformat()
        case _:
            return repr(value)


def toml_key(key: str) -> str:
    """Return a key in TOML notation, in quotes if it needs them."""
    bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if bare else toml_value(key)
