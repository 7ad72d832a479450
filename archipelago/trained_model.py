"""The model of a run put to use: text that it continues, and its loss on held-out text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.config.load import load
from cluster.storage import runs
from coordinator.errors import UserMistake

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from archipelago.losses_by_type import TypeLoss
    from cluster.config.schema import Config
    from islands.multiple_choice import ChoiceScore
    from islands.sources import DataSpec
    from islands.task import Task
    from islands.text_model import Sampling, TextModel


WINDOWS = 256
"""Windows of each type of files that are read for its loss."""
READ_BY = "read by "
"""The beginning of the source of data that a task reads from elsewhere than `data.source`."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The loss of a model on held-out data."""

    run: str
    """Name of the run."""
    step: int | None
    """Step of the model; None: the newest."""
    source: str
    """Source of the data; "read by TARGET" if the task does not read `data.source`."""
    heldout_loss: float
    """Loss in nats per token, over the same windows as in the run's own evaluations."""
    perplexity: float
    """exp(loss), at most that of 700 nats."""
    bits_per_byte: float | None
    """Loss in bits per byte of text; None if the bytes of the tokens are not known."""
    bits_per_byte_missing: str | None
    """The reason why `bits_per_byte` is None, with the remedy; None if it is there."""
    metrics: dict[str, float]
    """Metrics of the task, means over the same windows."""
    types: list[TypeLoss]
    """Loss by the type of the held-out files."""
    tasks: list[ChoiceScore]
    """Share of right answers to multiple-choice questions, with standard errors."""


class TrainedModel:
    """A model of a run with its task, on this machine; see `trained_model`."""

    def __init__(
        self, run: str, config: Config, parameters: dict[str, NDArray[np.float32]], at: int | None
    ) -> None:
        """Take the parameters of a run by the paths of their leaves; `at`: their step."""
        self.run, self.config, self.step = run, config, at
        self._parameters = parameters

    @cached_property
    def task(self) -> Task:
        """The task of the run."""
        from cluster.workers.assembly import task_of

        return task_of(self.config)

    @cached_property
    def params(self) -> Any:
        """The parameters as the task's tree.

        Errors: `UserMistake` if the task has other leaves, because its code has changed.
        """
        import jax

        from islands.task import leaf_path

        named, structure = jax.tree_util.tree_flatten_with_path(self.task.shapes)
        shapes = {leaf_path(keys): leaf.shape for keys, leaf in named}
        found = {path: leaf.shape for path, leaf in self._parameters.items()}
        if differing := [p for p in {**shapes, **found} if shapes.get(p) != found.get(p)]:
            raise UserMistake(
                f"run {self.run}: the task has changed since: its leaf {differing[0]} is "
                f"{shapes.get(differing[0], 'missing')}, and {found.get(differing[0], 'missing')} "
                "in the model"
            )
        return jax.tree.unflatten(structure, [self._parameters[path] for path in shapes])

    @property
    def text(self) -> TextModel:
        """The task's way to text.

        Errors: `UserMistake` if the task has none.
        """
        if self.task.text is None:
            raise UserMistake(
                f"run {self.run}: its task {self.task.name} is not known as a model of text: make "
                "it with text= (archipelago.text_task, nnx_task and others), or set Task.text to "
                "an archipelago.TextModel"
            )
        return self.task.text

    def continued(self, prompt: str, count: int, sampling: Sampling) -> Iterator[str]:
        """Yield the text that continues a prompt, piece by piece, `count` tokens in all.

        Errors: `UserMistake` if the prompt is empty, or the task is no model of text.
        """
        import jax

        from islands.text_model import generated, texts

        text = self.text
        if not (tokens := text.codec.encode(prompt)):
            raise UserMistake("the prompt is empty: give at least one character")
        params = jax.device_put(self.params)
        found = generated(text.decoder(), params, tokens, count, sampling)
        yield from texts(text.codec, found, tokens)

    def judged(
        self, source: str | None = None, windows: int = WINDOWS, tasks: Sequence[Path] = ()
    ) -> Judgement:
        """Return the loss on the run's own held-out data, or on that of another source.

        `windows`: windows of each type of files for the losses by type; 0 for none. `tasks`: files
        with multiple-choice questions (`islands.multiple_choice`).

        Errors: `UserMistake` if there is no such data, the task does not read `data.source`, or a
        file of questions is broken.
        """
        own = self._reader()
        if own is not None and source is not None:
            raise UserMistake(
                f"--data {source!r}: the task {own} of run {self.run} does not read data.source, "
                "so the loss would be that of its own data: leave --data out, or let the task "
                "read its held-out data from `source` of its DataSpec"
            )
        scores = self._scores(tasks)
        from archipelago.bits_per_byte import bits_per_byte, perplexity
        from archipelago.losses_by_type import losses_by_type
        from cluster.workers.assembly import data_spec, task_of
        from cluster.workers.evaluator import EVALUATION_BATCH, FINAL_WINDOWS, Evaluator
        from coordinator.fragments import take
        from coordinator.protocol import Fragment
        from islands.data.buckets import plain_uri

        config, task = self.config, self.task
        if source is not None:
            data = config.data.model_copy(update=self._read_as_own(source))
            config = config.model_copy(update={"data": data})
            task = task_of(config)
        read = [plain_uri(part.source) for part in config.data.mixture or [config.data]]
        evaluator = Evaluator(config)
        layout = evaluator.layout
        leaves = [self._parameters[leaf.path] for leaf in layout.leaves]
        flats = [take(layout, Fragment(p), leaves) for p in range(len(layout.fragments))]
        loss = evaluator.loss(flats)
        bits = bits_per_byte(task, loss, FINAL_WINDOWS, EVALUATION_BATCH)
        return Judgement(
            self.run,
            self.step,
            ", ".join(read) if own is None else f"{READ_BY}{own}",
            loss,
            perplexity(loss),
            bits.value,
            bits.missing,
            evaluator.metrics,
            losses_by_type(self.task, self.params, data_spec(config), windows) if windows else [],
            scores,
        )

    def _reader(self) -> str | None:
        """Return the target of a task that does not read `data.source`; None if the task does."""
        table = self.config.task
        if table.target is None:
            return None
        from cluster.workers.assembly import data_spec
        from cluster.workers.evaluator import EVALUATION_BATCH
        from islands.source_use import reads_source
        from islands.task import load_task

        def make(data: DataSpec) -> Task:
            return load_task(table.preset, table.target, table.options, data, table.pickled)

        own = data_spec(self.config)
        return None if reads_source(make, own, EVALUATION_BATCH) else table.target

    def _read_as_own(self, source: str) -> dict[str, object]:
        """Return the keys of `[data]` that read another source as the tokens of this model."""
        from cluster.workers.assembly import data_spec
        from islands.data.text_tokens import BYTES
        from islands.source_tokenizer import other_source

        # A task of the user's own may have sources that are no files.
        vocabulary = self.task.vocabulary if self.config.task.target is None else BYTES
        other = other_source(data_spec(self.config), source, vocabulary)
        keys = ("source", "column", "tokens", "tokenizer", "end_token")
        return {"mixture": (), **{key: getattr(other, key) for key in keys}}

    def _scores(self, tasks: Sequence[Path]) -> list[ChoiceScore]:
        """Return the score on each set of questions; all files are read before any is computed."""
        from islands.multiple_choice import read_questions, score

        sets = [(path.stem, read_questions(path, "--tasks")) for path in tasks]
        window = self.config.data.window
        return [score(name, each, self.text, self.params, window) for name, each in sets]


def trained_model(name: str, at: int | None = None, address: str | None = None) -> TrainedModel:
    """Return the model of a run, live or ended; its configuration must be on this machine.

    `at`: the step of the model; None: the newest.

    Errors: `UserMistake` if there is no such run or model here.
    """
    from cluster.launch.export import parameters

    found = runs.reach(name, address)
    if isinstance(found, Path):
        return TrainedModel(found.name, load(found / runs.CONFIG), parameters(found, at), at)
    run_dir = runs.here(name) if found.pid else runs.submitted_dir(name)
    if run_dir is None:
        raise UserMistake(
            f"run {found.run} is known here by its cluster only: run this command on the machine "
            "that has its directory, which is usually the head, or write its model with "
            "`archipelago export`"
        )
    found.prepare()
    config = load(run_dir / runs.CONFIG)
    return TrainedModel(found.run, config, parameters(found, at, name=name), at)
