"""Multiple-choice questions that the final model of a virtual run answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.config.schema import Config
from coordinator.errors import UserMistake
from coordinator.fragments import Flat, Layout, sew

if TYPE_CHECKING:
    from islands.multiple_choice import Question

ACCURACY, ACCURACY_NORM = "accuracy_", "accuracy_norm_"
"""The start of a figure's name; the name of the set follows."""
KEY = "virtual.tasks"


@dataclass(frozen=True, slots=True)
class QuestionSets:
    """Sets of questions by their names: of each file, its name without the suffix."""

    sets: Mapping[str, Sequence[Question]] = field(default_factory=dict[str, "Sequence[Question]"])

    @staticmethod
    def of(paths: Sequence[str]) -> QuestionSets:
        """Read the files of `virtual.tasks`.

        Errors: `UserMistake` if a file cannot be read or is broken, or two have the same name.
        """
        if not paths:
            return QuestionSets()
        from islands.multiple_choice import read_questions

        names = Counter(Path(path).stem for path in paths)
        if twice := [name for name, count in names.items() if count > 1]:
            raise UserMistake(
                f"{KEY}: {names[twice[0]]} files have the name {twice[0]}, which names their "
                "figures: rename all but one"
            )
        return QuestionSets({Path(path).stem: read_questions(Path(path), KEY) for path in paths})

    def check(self, config: Config) -> None:
        """Check that the task of this run is a model of text.

        Errors: `UserMistake` if it is not.
        """
        from cluster.workers.assembly import task_of

        if self.sets and task_of(config).text is None:
            raise UserMistake(
                f"{KEY}: the task is not known as a model of text: make it with text= "
                "(archipelago.text_task, nnx_task and others), or leave the questions out"
            )

    def ended(self, config: Config, layout: Layout, flats: Sequence[Flat]) -> dict[str, object]:
        """Return the shares of right answers of the final model, its fragments in float32.

        For each set NAME they are `accuracy_NAME`, and by the score for each character
        `accuracy_norm_NAME`.
        """
        if not self.sets:
            return {}
        import jax

        from cluster.workers.assembly import task_of
        from islands.multiple_choice import score

        task = task_of(config)
        assert task.text is not None
        params = jax.tree.unflatten(jax.tree.structure(task.shapes), sew(layout, flats))
        shares = dict[str, object]()
        for name, questions in self.sets.items():
            found = score(name, questions, task.text, params, config.data.window)
            shares[f"{ACCURACY}{name}"] = found.accuracy
            shares[f"{ACCURACY_NORM}{name}"] = found.accuracy_norm
        return shares
