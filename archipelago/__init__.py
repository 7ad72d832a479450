"""Archipelago: low-communication, asynchronous data-parallel training on Ray.

    >>> import archipelago as ap
    >>> result = ap.run("run.toml")

    >>> with ap.Run("run.toml") as run:  # in the background
    ...     run.start()
    ...     run.scale(local=2)

Every name in `__all__` is public; all else of this project is internal and may change. Names are
imported when they are first used, so that `import archipelago` needs neither JAX nor Ray.

Modules:

    launching        functions that start runs, here or as a job of a cluster
    owned_run        a run in the background that this process owns
    started_run      a background run from its start on
    connection       a run of another process or of a cluster, reached by its name
    run_handle       the methods that both kinds of runs share
    child_process    the owner's side of the child process that has a background run
    child_main       the entry point of that child process
    callbacks        calls of the user's functions for merges, evaluations and lost islands
    progress         the status of a run as a line or as a table of a notebook
    travelling_task  a task of a notebook or a script as settings of a run
    trained_model    the model of a run put to use: text that it continues, its loss
    losses_by_type   its loss on the held-out text, by the type of the files
    bits_per_byte    its loss in bits per byte of text, with any tokenizer
    question_sets    multiple-choice questions for it, made from text
    analysis         functions that replay runs, train studies and plan clusters
    results          the results that these functions return
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from archipelago.analysis import plan, replay, study
    from archipelago.callbacks import EvaluationEvent, IslandLostEvent, MergeEvent
    from archipelago.connection import ConnectedRun, connect
    from archipelago.lab.planner.plan import TrainingPlan
    from archipelago.lab.study.result import Result as StudyResult
    from archipelago.launching import Submission, run, submit
    from archipelago.owned_run import Run
    from archipelago.results import ReplayResult, RunResult
    from cluster.config.load import load as load_config
    from cluster.config.load import parse as parse_config
    from cluster.config.schema import Config
    from cluster.fleet.tracker import TrackedRun, Tracker
    from cluster.shard.own_gate import PayloadGate
    from cluster.status import RunStatus
    from coordinator.errors import ArchipelagoError, RunFailed, UserMistake
    from coordinator.own_fragmenting import Fragmenting, ModelPiece
    from coordinator.own_merge import MergeFunction, MergePiece
    from coordinator.protocol import Lease
    from islands.adapters.equinox_models import equinox_model, equinox_task
    from islands.adapters.linen_models import linen_task, linen_variables
    from islands.adapters.nnx_models import nnx_model, nnx_task
    from islands.corpus import Corpus, HeldOut, Starved, Stream
    from islands.corpus_reader import read_corpus
    from islands.dataset_task import RandomAccess, dataset_task
    from islands.frozen_file import frozen_file
    from islands.loop_task import loop_task
    from islands.masked_loss import mean_nats
    from islands.model import ModelSpec
    from islands.own_loop import JoinedIsland, join
    from islands.own_wire import Codec
    from islands.sources import DataSpec
    from islands.task import Batch, Params, StreamLike, Task, language_model
    from islands.task_helpers import supervised_task, text_task
    from islands.text_model import TextModel

_PLACES = {
    "archipelago.analysis": ("plan", "replay", "study"),
    "archipelago.callbacks": ("EvaluationEvent", "IslandLostEvent", "MergeEvent"),
    "archipelago.connection": ("ConnectedRun", "connect"),
    "archipelago.lab.planner.plan": ("TrainingPlan",),
    "archipelago.lab.study.result": ("StudyResult:Result",),
    "archipelago.launching": ("Submission", "run", "submit"),
    "archipelago.owned_run": ("Run",),
    "archipelago.results": ("ReplayResult", "RunResult"),
    "cluster.config.load": ("load_config:load", "parse_config:parse"),
    "cluster.config.schema": ("Config",),
    "cluster.fleet.tracker": ("TrackedRun", "Tracker"),
    "cluster.shard.own_gate": ("PayloadGate",),
    "cluster.status": ("RunStatus",),
    "coordinator.errors": ("ArchipelagoError", "RunFailed", "UserMistake"),
    "coordinator.own_fragmenting": ("Fragmenting", "ModelPiece"),
    "coordinator.own_merge": ("MergeFunction", "MergePiece"),
    "coordinator.protocol": ("Lease",),
    "islands.adapters.equinox_models": ("equinox_model", "equinox_task"),
    "islands.adapters.linen_models": ("linen_task", "linen_variables"),
    "islands.adapters.nnx_models": ("nnx_model", "nnx_task"),
    "islands.corpus": ("Corpus", "HeldOut", "Starved", "Stream"),
    "islands.corpus_reader": ("read_corpus",),
    "islands.dataset_task": ("RandomAccess", "dataset_task"),
    "islands.frozen_file": ("frozen_file",),
    "islands.loop_task": ("loop_task",),
    "islands.masked_loss": ("mean_nats",),
    "islands.model": ("ModelSpec",),
    "islands.own_wire": ("Codec",),
    "islands.own_loop": ("JoinedIsland", "join"),
    "islands.sources": ("DataSpec",),
    "islands.task": ("Batch", "Params", "StreamLike", "Task", "language_model"),
    "islands.task_helpers": ("supervised_task", "text_task"),
    "islands.text_model": ("TextModel",),
}  # fmt: skip
"""The module that defines each public name; `PUBLIC:DEFINED` where the two names differ."""
_DEFINED = {
    public: (module, defined or public)
    for module, names in _PLACES.items()
    for public, _, defined in (name.partition(":") for name in names)
}
__all__ = [
    "ArchipelagoError",
    "Batch",
    "Codec",
    "Config",
    "ConnectedRun",
    "Corpus",
    "DataSpec",
    "EvaluationEvent",
    "Fragmenting",
    "HeldOut",
    "IslandLostEvent",
    "JoinedIsland",
    "Lease",
    "MergeEvent",
    "MergeFunction",
    "MergePiece",
    "ModelPiece",
    "ModelSpec",
    "Params",
    "PayloadGate",
    "RandomAccess",
    "ReplayResult",
    "Run",
    "RunFailed",
    "RunResult",
    "RunStatus",
    "Starved",
    "Stream",
    "StreamLike",
    "StudyResult",
    "Submission",
    "Task",
    "TextModel",
    "TrackedRun",
    "Tracker",
    "TrainingPlan",
    "UserMistake",
    "__version__",
    "connect",
    "dataset_task",
    "equinox_model",
    "equinox_task",
    "frozen_file",
    "join",
    "language_model",
    "linen_task",
    "linen_variables",
    "load_config",
    "loop_task",
    "mean_nats",
    "nnx_model",
    "nnx_task",
    "parse_config",
    "plan",
    "read_corpus",
    "replay",
    "run",
    "study",
    "submit",
    "supervised_task",
    "text_task",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used.

    Errors: `ImportError` if another project's package would be imported in place of ours.
    """
    if name == "__version__":
        value: Any = _version()
    elif name in _DEFINED:
        if wrong := [*import_module("archipelago.__main__").foreign()]:
            raise ImportError("\n".join(wrong))
        module, defined = _DEFINED[name]
        value = getattr(import_module(module), defined)
    else:
        raise AttributeError(f"module 'archipelago' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    try:
        return version("archipelago-diloco")
    except PackageNotFoundError:  # a source tree that was never installed
        return "0.0.0"
