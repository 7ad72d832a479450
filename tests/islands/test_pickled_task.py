"""A pickled task is loaded as it was, or refused with the reason."""

from __future__ import annotations

import base64
import pickle
import re
import zlib
from functools import partial

import pytest

from cluster.config.load import parse
from cluster.source import learner_sha256
from cluster.workers.assembly import task_of
from coordinator.errors import UserMistake
from islands.model import ModelSpec
from islands.pickled_task import MOST_CHARACTERS, digest_of, load_pickled, problem_of, text_of
from islands.sources import DataSpec
from islands.task import Task, language_model, load_task
from tests.given import data_spec

TARGET = "__main__:make"


def make(data: DataSpec, width: int = 16, name: str = "pickled") -> Task:
    return language_model(name, ModelSpec(width=width, layers=1, heads=1, hidden=32), data)


def test_pickled_task_gets_its_options_and_data() -> None:
    text = text_of(pickle.dumps(make))
    assert problem_of(text) is None
    task = load_task(None, TARGET, {"width": 32}, data_spec(), text)
    assert task.name == "pickled"
    assert task.shapes["embedding"].shape[-1] == 32


def test_configuration_with_a_pickled_task_makes_it_and_survives_toml() -> None:
    pickled = text_of(pickle.dumps(partial(make, name="of a partial")))
    config = parse(
        {
            "task": {"target": TARGET, "pickled": pickled, "options": {"width": 32}},
            "islands": [{"group": "local"}],
        }
    )
    assert task_of(config).name == "of a partial"
    assert parse_toml(config.toml()) == config
    assert learner_sha256(config.learner_code, config.pickled_code) == digest_of(pickled)


def parse_toml(text: str):
    import tomllib

    return parse(tomllib.loads(text))


@pytest.mark.parametrize(
    ("task", "complaint"),
    [
        ({"pickled": "py3.11:0:x", "target": TARGET}, "task.pickled: is damaged: its digest is"),
        ({"pickled": "nonsense", "target": TARGET}, "task.pickled: is not as the Python API"),
        ({"pickled": text_of(b"x"), "preset": "byte-tiny"}, "task.pickled: needs task.target"),
        ({"pickled": "x" * (MOST_CHARACTERS + 1), "target": TARGET}, "at most 65536 can be sent"),
    ],
)
def test_configuration_refuses_a_task_that_is_not_whole(
    task: dict[str, str], complaint: str
) -> None:
    with pytest.raises(UserMistake, match=re.escape(complaint)):
        parse({"task": task, "islands": [{"group": "local"}]})


def changed(text: str, python: str) -> str:
    return f"{python}:{text.split(':', 1)[1]}"


def of_missing_module() -> bytes:
    return b"cno_such_module_here\nmake\n."


class Explodes:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return int, ("no number",)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (changed(text_of(pickle.dumps(make)), "py2.7"), "was pickled by py2.7, and this is py3."),
        (text_of(of_missing_module()), "needs the module 'no_such_module_here'"),
        (text_of(pickle.dumps(7)), "is a int, not a function"),
        (text_of(pickle.dumps(Explodes())), "cannot be unpickled: ValueError"),
        (text_of(pickle.dumps(make))[:-4], "is damaged: its digest is"),
    ],
)
def test_task_that_cannot_be_loaded_is_refused_with_the_reason(text: str, complaint: str) -> None:
    with pytest.raises(UserMistake, match=re.escape(complaint)) as refusal:
        load_pickled(text, TARGET)
    assert TARGET in str(refusal.value)


def test_text_is_compressed_pickle_behind_version_and_digest() -> None:
    version, digest, packed = text_of(b"content").split(":")
    assert version.startswith("py3.")
    assert len(digest) == 16
    assert zlib.decompress(base64.b64decode(packed)) == b"content"
