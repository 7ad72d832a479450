"""What is wrong with a configuration, in words."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias, get_args

from pydantic_core import ErrorDetails

from cluster.config.schema import Config, Table
from cluster.config.toml import toml_value
from cluster.config.values import GROUP, NAME, TARGET, TOPOLOGY, nearest

Location: TypeAlias = tuple[int | str, ...]
"""Where pydantic found something: keys and indexes from the root on."""


class Problem(NamedTuple):
    where: str
    what: str

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
"""What pydantic's kinds of mistakes are called here; its own words for any other kind."""
PATTERNS = {
    TOPOLOGY: "must be chips along each side, such as 4x4",
    NAME: "must be of letters, digits, dots, dashes and underscores, a letter or digit first",
    GROUP: "must be of small letters and digits, with dashes only within",
    TARGET: "must look like module:attribute",
}


def problem_of(mistake: ErrorDetails) -> Problem:
    location, kind, context = mistake["loc"], mistake["type"], mistake.get("ctx", {})
    where = ".".join(str(part) for part in location)
    match kind:
        case "extra_forbidden":
            return Problem(where, _unknown(location))
        case "missing":
            return Problem(where, "is missing; it has no default")
        case "string_pattern_mismatch":
            what = PATTERNS[context["pattern"]]
        case _:
            what = PHRASES.get(kind, mistake["msg"]).format(**context).replace("'", '"')
    return Problem(where, f"{what}, given {shown(mistake['input'])}")


def shown(value: object) -> str:
    text = toml_value(value)
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + " ..."


LONGEST_SHOWN = 60  # characters of a refused value


def _unknown(location: Location) -> str:
    *parents, last = location
    if homes := _homes(str(last)):
        return f"is not known here; did you mean {' or '.join(homes)}?"
    known = tuple(_table_at(tuple(parents)).model_fields)
    return f"is not known; {nearest(str(last), known)}"


def _table_at(location: Location) -> type[Table]:
    table: type[Table] = Config
    for part in location:
        if isinstance(part, str):
            table = _inner(table.model_fields[part].annotation) or table
    return table


def _inner(annotation: Any) -> type[Table] | None:
    """The table that a field holds, by itself or in a list."""
    kinds = (annotation, *get_args(annotation))
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, Table)), None)


def _homes(key: str, table: type[Table] = Config, path: str = "") -> list[str]:
    """Every place in the file where a key of this name is known."""
    found = [f"{path}{key}"] if key in table.model_fields else []
    for name, field in table.model_fields.items():
        if inner := _inner(field.annotation):
            found += _homes(key, inner, f"{path}{name}.")
    return found
