"""The command `archipelago model`: parameters, memory and operations of a model, before it exists.

Everything is computed from shapes. No array is allocated, so the largest presets take seconds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from archipelago.cli.formatting import GAP, amount
from archipelago.cli.options import Json
from cluster.storage.files import json_text
from coordinator.errors import UserMistake

if TYPE_CHECKING:
    from islands.gemma.costs import MemoryPlan, ParameterCounts
    from islands.gemma.spec import GemmaSpec
    from islands.task import Task

UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
"""Units of memory."""


def model(
    name: Annotated[
        str,
        typer.Argument(metavar="PRESET|config.json", help="A preset, or a file of transformers."),
    ],
    batch_size: Annotated[
        int, typer.Option(min=1, metavar="N", help="Sequences of an island's step.")
    ] = 8,
    window: Annotated[int, typer.Option(min=1, metavar="T", help="Tokens in each.")] = 1024,
    fragments: Annotated[
        int | None, typer.Option(min=1, metavar="P", help="Fragments; the default of a run.")
    ] = None,
    mesh: Annotated[
        str, typer.Option(metavar="AXIS=N,...", help='Devices of an island: "fsdp=8,tensor=4".')
    ] = "",
    options: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A=B", help="Change an option of the task; may be repeated."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print what a model costs: parameters, memory, operations for each token, fragments.

    Nothing is trained or allocated. The memory is that of one device of an island with AdamW. A
    shape that `archipelago export --format hf` would refuse is named, with the reason.

    Example: archipelago model gemma-3-12b --mesh fsdp=8 --set remat=true
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the accelerators belong to the islands
    found = report(name, batch_size, window, fragments, mesh, options or [])
    if as_json:
        print(json_text(found.as_json()))
    else:
        found.show(Console(highlight=False))


@dataclass(frozen=True, slots=True)
class ModelReport:
    """The costs of a model."""

    name: str
    spec: Any
    """The shape: a `GemmaSpec`, or a `ModelSpec` of a byte model."""
    parameters: ParameterCounts
    memory: MemoryPlan
    batch_size: int
    """Sequences of an island's step."""
    window: int
    """Tokens in each."""
    mesh: Mapping[str, int]
    """Devices along each axis."""
    forward_flops: float
    """Operations of a forward pass for each token."""
    training_flops: float
    """Operations of a training step for each token."""
    fragments: tuple[int, ...]
    """Parameters of each fragment."""
    wire: str
    """The encoding of hand-ins, unless a run sets another one."""
    wire_bytes: tuple[int, ...]
    """Bytes of each fragment in it."""
    leaves: tuple[tuple[str, tuple[int, ...], str], ...]
    """Path, shape and split of each leaf."""
    export_problems: tuple[str, ...]
    """Reasons why `archipelago export --format hf` would refuse the shape; none of byte models."""

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return {
            "model": self.name,
            "spec": asdict(self.spec),
            "parameters": asdict(self.parameters),
            "memory": {**asdict(self.memory), "total": self.memory.total},
            "batch_size": self.batch_size,
            "window": self.window,
            "mesh": dict(self.mesh),
            "flops_per_token": {"forward": self.forward_flops, "training": self.training_flops},
            "fragments": [
                {"parameters": size, "bytes": 4 * size, "wire_bytes": wire}
                for size, wire in zip(self.fragments, self.wire_bytes, strict=True)
            ],
            "wire": self.wire,
            "leaves": [
                {"path": path, "shape": list(shape), "split": split}
                for path, shape, split in self.leaves
            ],
            "export_problems": list(self.export_problems),
        }

    def show(self, console: Console) -> None:
        """Print the report as a table."""
        table = Table.grid(
            Column(style="bold"),
            Column(justify="right"),
            Column(style="dim"),
            padding=(0, GAP, 0, 0),
        )
        counts, memory = self.parameters, self.memory
        devices = " x ".join(f"{n} {name}" for name, n in self.mesh.items() if n > 1) or "1 device"
        step = f"{self.batch_size} x {self.window} tokens in a step of an island"
        rows = [
            ("parameters", f"{counts.total:,}", ""),
            ("  embedding", f"{counts.embedding:,}", "tables of tokens"),
            ("  active", f"{counts.active:,}", "multiply each token"),
            ("operations", amount(self.forward_flops), "for each token, forward"),
            ("  training", amount(self.training_flops), "for each token, forward and backward"),
            ("memory", size_text(memory.total), f"on one device of {devices}, {step}"),
            ("  parameters", size_text(memory.parameters), "float32"),
            ("  gradients", size_text(memory.gradients), "float32"),
            ("  moments", size_text(memory.moments), "AdamW"),
            ("  activations", size_text(memory.activations), "an estimate"),
            ("fragments", f"{len(self.fragments)}", "the model in equal parts"),
            ("  largest", size_text(4 * max(self.fragments)), "float32"),
            ("  hand-in", size_text(max(self.wire_bytes)), f"on the wire, {self.wire}"),
        ]  # fmt: skip
        for row in rows:
            table.add_row(*row)
        console.print(table)
        for each in self.export_problems:
            console.print(f"export --format hf will refuse {each}", markup=False, soft_wrap=True)


def size_text(size: int) -> str:
    """Format bytes with three significant digits: `2.05 GiB`."""
    for unit, name in UNITS:
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} B"


def report(
    name: str,
    batch_size: int,
    window: int,
    fragments: int | None,
    mesh: str,
    options: list[str],
) -> ModelReport:
    """Compute the costs of a model from its shape.

    Errors: `UserMistake` if there is no such model, option or mesh.
    """
    import jax

    from cluster.config.schema import Config
    from cluster.workers.assembly import data_spec, optimizer_of
    from coordinator.codec import Wire
    from islands.adopt import layout_of
    from islands.gemma import costs
    from islands.gemma.hf_limits import export_problems
    from islands.mesh_shape import MeshShape, filled_in, misfits
    from islands.optimizer import direction
    from islands.task import load_task

    config = Config()
    task = load_task(name, None, _options(options), data_spec(config))
    shape = MeshShape(**_mesh(mesh))
    if problems := misfits(task, shape):
        raise UserMistake("\n".join(f"--mesh: {problem}" for problem in problems))
    own, spec = _specs_of(task)
    moments = jax.eval_shape(direction(optimizer_of(config), task).init, task.shapes)
    layout = layout_of(task, config.sync.fragments if fragments is None else fragments)
    counts = costs.counted(spec)
    if own is not spec:  # a byte model, whose shape is only like the Gemma shape
        tables, total = own.vocabulary * own.width, sum(layout.sizes)
        counts = costs.ParameterCounts(total, tables, total - tables)
    wire = Wire(config.sync.wire_up)
    return ModelReport(
        name=name,
        spec=own,
        parameters=counts,
        memory=costs.memory_plan(task, spec, moments, shape.sizes, batch_size, window),
        batch_size=batch_size,
        window=window,
        mesh=shape.sizes,
        forward_flops=costs.forward_flops(spec, window),
        training_flops=costs.training_flops(spec, window),
        fragments=layout.sizes,
        wire=wire.value,
        wire_bytes=tuple(wire.bytes_of(size) for size in layout.sizes),
        leaves=tuple(
            (leaf.path, leaf.shape, _split_text(filled_in(leaf.shape, split, shape.sizes)))
            for leaf in layout.leaves
            for split in [task.sharding(leaf.path, leaf.shape)]
        ),
        export_problems=tuple(export_problems(spec)) if own is spec else (),
    )


def _specs_of(task: Task) -> tuple[Any, GemmaSpec]:
    """Return the shape of a built-in model, and the Gemma shape that its costs are computed from.

    Errors: `UserMistake` if it is a user's own model.
    """
    from islands.gemma.byte_models import alike
    from islands.gemma.language_task import DrawnGemma
    from islands.task import Drawn

    init: Any = task.init
    match init:
        case DrawnGemma(spec=spec):
            return spec, spec
        case Drawn(spec=byte_spec):
            return byte_spec, alike(byte_spec)
        case _:
            raise UserMistake(f"{task.name} is no built-in model")


def _options(texts: list[str]) -> dict[str, Any]:
    """Return the options of the task that are given as NAME=VALUE.

    Errors: `UserMistake` if one has another form.
    """
    from cluster.config.override import override

    tables: dict[str, Any] = {}
    problems = [problem for text in texts for problem in override(tables, text)]
    if problems:
        raise UserMistake("\n".join(map(str, problems)))
    return tables


def _mesh(text: str) -> dict[str, int]:
    """Return the sizes of a mesh given as "fsdp=8,tensor=4"; other axes have one device.

    Errors: `UserMistake` if an axis is not known or its size is no positive number.
    """
    from islands.mesh_shape import AXES

    sizes: dict[str, int] = dict.fromkeys(AXES, 1)
    for part in filter(None, text.split(",")):
        name, _, size = (each.strip() for each in part.partition("="))
        if name not in sizes or not size.isdecimal() or int(size) < 1:
            raise UserMistake(
                f"--mesh {text}: {part!r} must be AXIS=N, with an axis of {', '.join(AXES)} and a "
                "number of devices"
            )
        sizes[name] = int(size)
    return sizes


def _split_text(spec: Any) -> str:
    return ", ".join("-" if part is None else str(part) for part in spec)
