"""Chat templates in a sandbox of Jinja, with what the templates of tokenizers expect.

Only this module imports `jinja2`, and only conversations need it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _Generation(Extension):
    """The block `{% generation %}` of some templates, whose content is written as it is."""

    tags: ClassVar[set[str]] = {"generation"}  # pyright: ignore[reportIncompatibleVariableOverride]

    def parse(self, parser: Any) -> Any:
        """Return the content of the block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def compiled(text: str) -> Callable[..., str]:
    """Return the function that writes a template with named values.

    A template reads neither the clock nor chance, so that a conversation always has the same text.

    Errors: `ValueError` if it is no template; the function raises one if the template fails.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _Generation],
    )
    environment.filters["tojson"] = _as_json
    names: Any = environment.globals
    names["raise_exception"] = _raised
    try:
        template = environment.from_string(text)
    except TemplateError as error:
        raise ValueError(str(error)) from error

    def written(**values: Any) -> str:
        try:
            return template.render(**values)
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise ValueError(str(error)) from error

    return written


def _as_json(value: Any, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=options.get("indent"))


def _raised(message: str) -> NoReturn:
    raise TemplateError(message)
