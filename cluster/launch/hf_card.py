"""The model card of an exported model: its data, tokens, loss, goodput and lineage.

`huggingface_hub` writes the card, a `README.md` with a YAML header that its tools parse. Nothing is
uploaded or downloaded. The figures are in the header, too, under the key `archipelago`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from cluster.config.schema import Config
from coordinator.errors import UserMistake
from islands.data import token_index
from islands.data.buckets import plain_uri
from islands.package_extras import install_command

CARD = "README.md"
FIGURES = {
    "mode": "training mode",
    "steps": "steps",
    "tokens_trained": "tokens trained by all islands",
    "tokens_merged": "tokens merged",
    "tokens_lost": "tokens lost to failures",
    "merges": "merges",
    "mean_participants": "mean participants of a merge",
    "heldout_loss": "held-out loss, in nats per token",
    "initial_heldout_loss": "held-out loss of the initial model",
    "goodput": "goodput",
    "device_hours": "device hours",
}
"""The figures of `summary.json` that the card has, and their names."""
LINEAGE = {
    "global_sha256": "the final fragments",
    "lineage_sha256": "all merges (`archipelago audit`)",
    "data_sha256": "the token directory",
    "init_sha256": "the initial model",
    "config_sha256": "the resolved configuration",
    "source_sha256": "the source code of the training",
}
"""The digests that the card has, and what each one is of."""


def hub() -> Any:
    """Return the package `huggingface_hub`.

    Errors: `UserMistake` if it is not installed.
    """
    try:
        return import_module("huggingface_hub")
    except ModuleNotFoundError as error:
        raise UserMistake(
            "--format hf writes a model card with the package huggingface_hub (no module "
            f"{error.name!r}): {install_command('hf')}"
        ) from error


def card_of(run_dir: Path, config: Config, model_type: str, facts: Mapping[str, Any]) -> str:
    """Return the text of a model card.

    Args:
        run_dir: The directory of the run.
        config: Its configuration.
        model_type: The type of the model in transformers.
        facts: Facts that are not in the run's files: `parameters`, `step` of the model (None: the
            newest one), and `lineage_sha256` if it is known.

    Errors: `UserMistake` if `huggingface_hub` is not installed.
    """
    library = hub()
    summary = _summary(run_dir) if facts.get("step") is None else {}
    known: dict[str, Any] = {
        "run": config.run.name or run_dir.name,
        "parameters": facts["parameters"],
        **({} if facts.get("step") is None else {"step": facts["step"]}),
        "data": _data(config),
        "window": config.data.window,
        "seed": config.run.seed,
        **({} if config.task.init_from is None else {"init_from": config.task.init_from}),
        **{name: summary[name] for name in FIGURES if summary.get(name) is not None},
        **_digests(config, summary, facts),
    }
    return str(
        library.ModelCard(f"---\n{_header(library, model_type, known)}\n---\n\n{_body(known)}")
    )


def _summary(run_dir: Path) -> dict[str, Any]:
    """Return the figures of a run that has ended; empty if it has not."""
    try:
        found = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _data(config: Config) -> list[str]:
    """Return the sources of the data, without credentials."""
    if config.data.mixture:
        return [
            f"{plain_uri(each.source)} (weight {each.weight:g})" for each in config.data.mixture
        ]
    return [plain_uri(config.data.source)]


def _digests(
    config: Config, summary: Mapping[str, Any], facts: Mapping[str, Any]
) -> dict[str, str]:
    data = None
    if not config.data.mixture:
        try:
            directory = token_index.opened(config.data.source)
            data = None if directory is None else directory.index.sha256
        except (UserMistake, OSError):  # the data is not here any more
            data = None
    found = {
        "global_sha256": summary.get("global_sha256"),
        "lineage_sha256": facts.get("lineage_sha256"),
        "data_sha256": data,
        "init_sha256": config.task.init_sha256,
        "config_sha256": config.sha256,
        "source_sha256": summary.get("source_sha256"),
    }
    return {name: digest for name, digest in found.items() if digest is not None}


def _header(library: Any, model_type: str, known: Mapping[str, Any]) -> str:
    """Return the YAML header."""
    results = None
    if (loss := known.get("heldout_loss")) is not None:
        results = [
            library.EvalResult(
                task_type="text-generation",
                dataset_type="held-out",
                dataset_name="; ".join(known["data"]),
                metric_type=name,
                metric_value=value,
            )
            for name, value in {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}.items()
        ]
    data = library.ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["archipelago", "diloco", model_type],
        model_name=known["run"],
        eval_results=results,
        archipelago=dict(known),
    )
    text: str = data.to_yaml()
    return text


def _body(known: Mapping[str, Any]) -> str:
    """Return the text for people."""
    lines = [
        f"# {known['run']}",
        "",
        "Trained with Archipelago (Decoupled DiLoCo, arXiv:2604.21428).",
        "",
        "| | |",
        "|---|---|",
        f"| parameters | {known['parameters']:,} |",
        f"| data | {'; '.join(known['data'])} |",
    ]
    if "step" in known:
        lines.append(f"| step of the model | {known['step']:,} |")
    if "init_from" in known:
        lines.append(f"| started from | {known['init_from']} |")
    lines += [f"| {name} | {_text(known[key])} |" for key, name in FIGURES.items() if key in known]
    if "heldout_loss" not in known:
        why = "of an earlier step" if "step" in known else "of a run without a summary"
        lines += ["", f"This is the model {why}, so the figures of the run's end are left out."]
    lines += ["", "## Lineage", "", "| SHA-256 of | |", "|---|---|"]
    lines += [f"| {what} | `{known[key]}` |" for key, what in LINEAGE.items() if key in known]
    return "\n".join([*lines, ""])


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
