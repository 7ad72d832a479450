"""The answers of a Prometheus to the queries of a board, without Grafana."""

from __future__ import annotations

import json
import math
import re
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError

from coordinator.errors import UserMistake

TIMEOUT_S = 20.0
"""Seconds that one answer may take."""
POINTS = 240
"""The points of a curve."""
LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")
"""A label in the legend of a query."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]
    """Pairs of the time in seconds since 1970 and the value; NaN and infinity are left out."""

    def name(self, legend: str) -> str:
        """Return the name of the series by a legend such as `{{island}} {{state}}`."""
        return LEGEND.sub(lambda found: self.labels.get(found[1], ""), legend).strip()


@dataclass(frozen=True, slots=True)
class Answers:
    """A Prometheus, one run of it, and a span of time."""

    url: str
    """The address of Prometheus, such as http://127.0.0.1:9090."""
    run: str
    """The run that a board shows."""
    from_s: float
    """The start of the span, in seconds since 1970."""
    to_s: float
    """The end of the span, in seconds since 1970."""

    def curves(self, expression: str) -> list[Series]:
        """Return the series of an expression over the span.

        Errors: `UserMistake` if Prometheus does not answer or refuses the expression.
        """
        step_s = max(1.0, (self.to_s - self.from_s) / POINTS)
        asked = {"start": f"{self.from_s:.3f}", "end": f"{self.to_s:.3f}", "step": f"{step_s:.3f}"}
        found = ask(self.url, "query_range", {"query": self._filled(expression), **asked})
        return [_series(each["metric"], each["values"]) for each in found["result"]]

    def newest(self, expression: str) -> list[Series]:
        """Return the series of an expression at the end of the span.

        Errors: `UserMistake` if Prometheus does not answer or refuses the expression.
        """
        asked = {"query": self._filled(expression), "time": f"{self.to_s:.3f}"}
        found = ask(self.url, "query", asked)
        return [_series(each["metric"], [each["value"]]) for each in found["result"]]

    def _filled(self, expression: str) -> str:
        """Return an expression with the variables of a board filled in: this run, all groups."""
        return expression.replace("$run", self.run).replace("$group", ".*")


def chosen_run(url: str, run: str | None) -> str:
    """Return the run to show: the given one, or the only one in Prometheus.

    Errors: `UserMistake` if Prometheus does not have it, or has several.
    """
    runs: list[str] = ask(url, "label/run/values", {})
    if run is None and len(runs) == 1:
        return runs[0]
    if run in runs:
        return run
    known = f"it knows {', '.join(runs[:8])}" if runs else "it knows no run at all"
    wanted = "name one with --run" if run is None else f"it does not know the run {run}"
    raise UserMistake(f"Prometheus at {url}: {wanted}; {known}")


def ask(url: str, path: str, arguments: Mapping[str, str]) -> Any:
    """Return the data of an answer of Prometheus' HTTP interface.

    Errors: `UserMistake` if it does not answer, or refuses the question.
    """
    address = f"{url.rstrip('/')}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
            return json.load(answer)["data"]
    except HTTPError as error:
        raise UserMistake(
            f"Prometheus at {url} refuses {arguments.get('query', path)}: {_reason(error)}"
        ) from error
    except (URLError, OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        raise UserMistake(
            f"no Prometheus answers at {url}: {error}; start one, or name its address with "
            "--prometheus-url"
        ) from error


def _reason(error: HTTPError) -> str:
    """Return the words of Prometheus about an error."""
    try:
        return str(json.load(error)["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return str(error)


def _series(labels: Mapping[str, str], values: Iterable[tuple[float, str]]) -> Series:
    pairs = [(float(at_s), float(value)) for at_s, value in values]
    return Series(labels, tuple(pair for pair in pairs if math.isfinite(pair[1])))
