"""The wording of problems of a configuration."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias, get_args

from pydantic_core import ErrorDetails

from cluster.config.schema import Config, Table
from cluster.config.toml import toml_value
from cluster.config.values import (
    GROUP,
    HTTP_ADDRESS,
    NAME,
    SHA256,
    SHORT_SHA256,
    TARGET,
    TOPOLOGY,
    nearest,
)

Location: TypeAlias = tuple[int | str, ...]
"""The place of an error of pydantic: keys and indexes, from the root on."""


class Problem(NamedTuple):
    """A problem of a configuration."""

    where: str
    """The place, in the notation of `--set`: `islands.0.count`."""
    what: str
    """The problem and the remedy, as the rest of a sentence that begins with the place."""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


PHRASES = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be text in quotes",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
}
"""The wording for pydantic's kinds of errors; other kinds keep pydantic's message."""
PATTERNS = {
    TOPOLOGY: "must be chips along each side, such as 4x4",
    NAME: "must be of letters, digits, dots, dashes and underscores, a letter or digit first",
    GROUP: "must be of small letters and digits, with dashes only within",
    HTTP_ADDRESS: "must be an address without a path, such as http://127.0.0.1:8080",
    TARGET: "must look like module:attribute",
    SHA256: "must be a SHA-256 digest of 64 hexadecimal digits",
    SHORT_SHA256: "must be the first 16 hexadecimal digits of a SHA-256 digest",
}
"""The wording for a value that does not match one of these patterns."""


def problem_of(mistake: ErrorDetails) -> Problem:
    """Convert an error of pydantic to a problem."""
    location, kind, context = mistake["loc"], mistake["type"], mistake.get("ctx", {})
    where = ".".join(str(part) for part in location)
    match kind:
        case "extra_forbidden":
            return Problem(where, _unknown(location))
        case "missing":
            return Problem(where, "is missing; it has no default")
        case "string_pattern_mismatch":
            phrase = PATTERNS[context["pattern"]]
        case _:
            phrase = PHRASES.get(kind, mistake["msg"]).format(**context).replace("'", '"')
    return Problem(where, f"{phrase}, given {short_toml_value(mistake['input'])}")


def short_toml_value(value: object) -> str:
    """Return a value in TOML notation, shortened to `LONGEST_SHOWN` characters."""
    text = toml_value(value)
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + " ..."


LONGEST_SHOWN = 60
"""The most characters of a refused value that a message shows."""


def _unknown(location: Location) -> str:
    *parents, last = location
    if homes := _homes(str(last)):
        return f"is not known here; did you mean {' or '.join(homes)}?"
    known = tuple(_table_at(tuple(parents)).model_fields)
    return f"is not known; {nearest(str(last), known)}"


def _table_at(location: Location) -> type[Table]:
    table: type[Table] = Config
    for part in location:
        if isinstance(part, str) and part in table.model_fields:  # not a name, as of a region
            table = _inner(table.model_fields[part].annotation) or table
    return table


def _inner(annotation: Any) -> type[Table] | None:
    """Return the table type of a field, by itself or in a list; None if the field has none."""
    kinds = (annotation, *get_args(annotation))
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, Table)), None)


def _homes(key: str, table: type[Table] = Config, path: str = "") -> list[str]:
    """Return every path of the schema that ends with a key of this name."""
    found = [f"{path}{key}"] if key in table.model_fields else []
    for name, field in table.model_fields.items():
        if inner := _inner(field.annotation):
            found += _homes(key, inner, f"{path}{name}.")
    return found
