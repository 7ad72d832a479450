"""The lines that a run prints before it trains: model, data, islands and changed defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from archipelago.cli.formatting import WIDTH
from archipelago.trained_model import READ_BY
from cluster.config.schema import Config, IslandGroup, OptimizerConfig
from cluster.config.toml import toml_value
from cluster.config.values import AUTO, RATES
from coordinator.fragments import Layout

MOST_LINES = 8
"""Lines of the header at most; `--verbose` prints the whole configuration after it."""
INDENT = 9  # columns of a line's title
SHOWN_ELSEWHERE = {
    "run.name", "run.dir", "run.mode", "run.seed", "run.steps",
    "task.preset", "task.init_from", "task.init_sha256",
}  # fmt: skip
"""Keys whose values other lines of the header already show."""


def header(config: Config, run_dir: Path, layout: Layout, *, resume: bool = False) -> list[str]:
    """Return the header, at most `MOST_LINES` lines of `WIDTH` columns (paths may be longer)."""
    run, sync, optimizer = config.run, config.sync, config.optimizer
    verb = "resume" if resume else "train"
    lines = {
        verb: f"{run.mode}, {run.steps} steps, seed {run.seed}",
        "model": f"{config.task.preset or config.task.target}, {layout.parameters:,} parameters, "
        f"{_optimizer(optimizer)}",
        "data": f"{_source(config)}, {config.data.heldout_percent:g} % held out",
        "islands": "; ".join(_group(group) for group in config.islands),
    }
    if not run.mode.sums_gradients:
        interval = f"H = {toml_value(sync.every)}, {sync.fragments} fragments"
        if sync.every == AUTO:
            interval = "H and fragments chosen once Ray is up"
        lines["merging"] = (
            f"{interval}, "
            f"quorum {sync.quorum} of {len(config.island_names)}, {sync.merge}, "
            f"{sync.wire_up} up, {sync.wire_down} down"
        )
    if changed := _fitting([*changes(config)]):
        lines["changed"] = changed
    lines_shown = [f"{title:<{INDENT}}{_cut(text)}" for title, text in lines.items()]
    return [*lines_shown, f"{'config':<{INDENT}}{config.sha256[:12]} in {run_dir}"]


def _optimizer(optimizer: OptimizerConfig) -> str:
    """Return the inner optimizer, and where its rate comes from."""
    name = optimizer.target or optimizer.kind
    if optimizer.schedule in ("cosine", "wsd"):
        return f"{name} at learning rate {optimizer.learning_rate:g}"
    return f"{name} at the rates of {optimizer.schedule}"


def page_line(link: str) -> str:
    """Return the line with the link to the run's live page."""
    return f"{'page':<{INDENT}}{link} (works once; `archipelago page RUN` prints another)"


def initial_lines(config: Config, layout: Layout) -> list[str]:
    """Return the report on the source of the parameters; empty if the task's `init` makes them."""
    if (given := config.task.init_from) is None:
        return []
    from cluster.launch.initial_source import is_gone, matched
    from islands.initial_model import name_list

    if is_gone(given):  # only a resumed run can start like this
        return [
            f"{'start':<{INDENT}}{given} is gone; the run has its initial model, and lacks only "
            "initial_heldout_loss"
        ]
    found, digest = matched(config, layout.leaves), config.task.init_sha256
    sha256 = "" if digest is None else f", sha256 {digest[:12]}"
    kept = {
        "kept from init": name_list(found.missing),
        "not used there": name_list(found.unused),
        "other shapes, kept from init": name_list([*map(str, found.misfits)]),
    }
    first = f"{len(found.taken)} of {len(layout.leaves)} leaves from {given}{sha256}"
    return [f"{'start':<{INDENT}}{first}"] + [
        f"{'':<{INDENT}}{title}: {names}" for title, names in kept.items() if names != "none"
    ]


def export_lines(config: Config) -> list[str]:
    """Return why `archipelago export --format hf` will refuse a Gemma model; empty if it will not.

    Errors: `UserMistake` if there is no such preset or option.
    """
    from islands.gemma.hf_limits import export_problems
    from islands.gemma.language_task import spec_named
    from islands.gemma.presets import is_gemma

    task = config.task
    if task.preset is None or not is_gemma(task.preset):
        return []
    return [
        f"{'export':<{INDENT}}--format hf will refuse task.options.{each}"
        for each in export_problems(spec_named(task.preset, task.options))
    ]


def changes(config: Config) -> Iterator[str]:
    """Yield each key that differs from its default, with its value; islands are not compared."""
    rate = RATES[config.optimizer.kind]  # each kind has its own default
    defaults = Config(optimizer=OptimizerConfig(learning_rate=rate))
    usual, given = (
        each.model_dump(mode="json", exclude={"islands"}) for each in (defaults, config)
    )
    for path, value in _leaves(given):
        if path not in SHOWN_ELSEWHERE and value != _at(usual, path):
            yield f"{path} = {toml_value(value)}"


def _group(group: IslandGroup) -> str:
    resources = ", ".join(f"{amount:g} {name}" for name, amount in group.resources.items())
    region = f" in {group.region}" if group.region else ""
    hosts = f", {group.hosts} hosts" if group.hosts > 1 else ""
    spares = f", {group.spares} spare" if group.spares else ""
    return (
        f"{group.count} {group.group}{region} (batch {group.batch_size}{hosts}, "
        f"{resources or 'no resources'} each{spares})"
    )


def _leaves(tables: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of nested tables with its dotted path; a list is one value."""
    for key, value in tables.items():
        path = f"{above}.{key}" if above else key
        if isinstance(value, dict) and value:
            yield from _leaves(value, path)
        elif value not in (None, {}):
            yield path, value


def _at(tables: Mapping[str, Any], path: str) -> Any:
    found: Any = tables
    for key in path.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _fitting(texts: list[str]) -> str:
    """Return as many of the texts as fit in one line, and how many more there are."""
    room = WIDTH - INDENT - len(", and 100 more (--verbose)")
    shown: list[str] = []
    for text in texts:  # a long one is left out; shorter ones after it are not
        if len(", ".join([*shown, text])) <= room:
            shown.append(text)
    if more := len(texts) - len(shown):
        shown.append(f"{'and ' if shown else ''}{more} more (--verbose)")
    return ", ".join(shown)


def _cut(text: str) -> str:
    room = WIDTH - INDENT
    return text if len(text) <= room else f"{text[: room - 3]}..."


def _source(config: Config) -> str:
    """Return the source of the data, or the sources of a mixture with their shares.

    A task of the user's own may read other data than the default source, which is therefore named
    only if the configuration does.
    """
    data = config.data
    if config.task.target and not data.mixture and "source" not in data.model_fields_set:
        return f"{READ_BY}{config.task.target}"
    total = sum(each.weight for each in data.mixture)
    mixture = " + ".join(f"{each.weight / total:.0%} {each.source}" for each in data.mixture)
    return f"{mixture or data.source}, windows of {data.window} tokens"
