"""Islands that differ in one virtual run: batches, types, speeds, and the languages of regions."""

from __future__ import annotations

import gzip
import math
import runpy
from pathlib import Path
from typing import Any

import pytest

from archipelago.lab.study.plan import read
from archipelago.lab.training.compiled_parts import compiled_parts
from archipelago.lab.training.loss_curve import Learned
from archipelago.lab.training.timing import Timing
from archipelago.lab.training.train import train
from cluster.config.load import parse
from cluster.config.schema import Config
from tests.given import sums

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

STUDIES = Path(__file__).parents[2] / "examples" / "studies"
TINY = {"width": 16, "layers": 1, "heads": 1, "hidden": 32}
STEPS = 24
LEARNED = 0.05
"""Nats per token that so few steps gain at least."""
UNIFORM = [{"group": "a", "batch_size": 4}, {"group": "b", "batch_size": 4}]
MIXED = [
    {"group": "a", "batch_size": 6},
    {"group": "b", "batch_size": 2, "compute_dtype": "bfloat16", "speed": 0.5},
]
TIMING = Timing(step_s=0.2, jitter=0.1)


def config_of(source: Path, islands: list[dict[str, Any]], **tables: Any) -> Config:
    return parse({
        "run": {"steps": STEPS},
        "task": {"preset": "byte-tiny", "options": TINY},
        "data": {
            "source": str(source), "window": 16, "lease_windows": 32, "heldout_percent": 20.0,
        },
        "optimizer": {"kind": "adamw", "warmup_steps": 4},
        "sync": {"every": 6, "fragments": 3},
        "islands": islands,
        **tables,
    })  # fmt: skip


def learned(config: Config) -> Learned:
    return train(config, TIMING, 0)


def figure(made: Learned, name: str) -> float:
    value = made.figures[name]
    assert isinstance(value, float)
    return value


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sums(tmp_path_factory.mktemp("text"))


def test_islands_of_different_hardware_learn_together(text: Path) -> None:
    uniform, mixed = (learned(config_of(text, each)) for each in (UNIFORM, MIXED))
    start = figure(uniform, "initial_heldout_loss")
    assert figure(mixed, "initial_heldout_loss") == start
    for made in (uniform, mixed):
        assert figure(made, "heldout_loss") < start - LEARNED
        assert made.figures["rejected_contributions"] == 0
    assert mixed.figures["global_sha256"] != uniform.figures["global_sha256"]


def test_group_computes_in_its_own_type(text: Path) -> None:
    """Otherwise both arms of the study would train in float32, and agree for that reason."""
    kit = compiled_parts(config_of(text, MIXED))
    assert kit.inners["a"] is kit.inner
    assert kit.inners["b"] is not kit.inner
    one = [{"group": "a", "batch_size": 4}]
    in_half = [{**one[0], "compute_dtype": "bfloat16"}]
    losses = [figure(learned(config_of(text, each)), "heldout_loss") for each in (one, in_half)]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


def regions_of(folder: Path) -> dict[str, Any]:
    """Return two regions of one language each: digits, and letters."""
    found: dict[str, Any] = {}
    for name, words in (("one", "0123456789 "), ("two", "abcdefghij ")):
        (folder / name).mkdir()
        for number in range(8):
            (folder / name / f"{number}.txt").write_text(words * 200)
        found[name] = {
            "data": str(folder / name), "may_leave": ["delta", "moments", "report", "corpus"],
        }  # fmt: skip
    return found


def test_loss_is_measured_in_each_region(tmp_path: Path) -> None:
    """Only one of two regions trains: the other language is not learned."""
    regions = regions_of(tmp_path)
    mixture = [{"source": each["data"], "weight": 1.0} for each in regions.values()]
    data = {"mixture": mixture, "window": 16, "lease_windows": 32, "heldout_percent": 20.0}
    islands = [{"group": name, "region": name, "batch_size": 4} for name in regions]
    both = learned(config_of(tmp_path, islands, data=data, regions=regions))
    only = {"one": regions["one"]}
    one = learned(config_of(tmp_path, islands[:1], data=data, regions=only))
    assert figure(one, "heldout_loss_in_one") < figure(one, "heldout_loss") - LEARNED
    assert "heldout_loss_in_two" not in one.figures
    other = 2 * figure(one, "heldout_loss") - figure(one, "heldout_loss_in_one")  # equal shares
    assert figure(both, "heldout_loss_in_two") < other - LEARNED, "its region has taught it"
    start = math.log(256)
    assert all(figure(both, f"heldout_loss_in_{name}") < start - LEARNED for name in regions)


def test_studies_compare_what_they_say() -> None:
    mixed = read(STUDIES / "mixed-hardware.toml")
    assert len(mixed.seeds) == 6
    islands = {row.arm: row.cells[0].config.islands for row in mixed.rows}
    tokens = {arm: sum(each.batch_size for each in groups) for arm, groups in islands.items()}
    assert tokens["uniform"] == tokens["mixed"]
    for key in ("batch_size", "compute_dtype", "speed"):
        assert len({getattr(each, key) for each in islands["mixed"]}) > 1
        assert len({getattr(each, key) for each in islands["uniform"]}) == 1
    languages = read(STUDIES / "languages.toml")
    arms = {row.arm: row.cells[0].config for row in languages.rows}
    assert arms["one-language"].regions.keys() == {"de", "es", "fr", "ja", "pl", "ru"}
    sources = {each.source for each in arms["mixed"].data.mixture}
    assert sources == {each.data for each in arms["one-language"].regions.values()}
    assert arms["data-parallel"].data == arms["one-language"].data, "one held-out text"


# --- the preparation of the languages -------------------------------------------------------------

PAGE = r"""'\" t
.\" a comment
.TH LS 1 "M\(:arz 2024" GNU
.SH BEZEICHNUNG
ls \- Verzeichnisinhalte \fBauflisten\fP
.de xx
not a text
..
.SH \(:UBERSICHT
.B ls
[\fI\,OPTION\/\fP]...
.PP
Ein Satz mit Umlauten: \[u00E4] ä.
"""


def test_page_becomes_plain_text() -> None:
    script = runpy.run_path(str(STUDIES / "prepare_languages.py"))
    text = script["plain_text"](PAGE)
    assert "ls - Verzeichnisinhalte auflisten\n" in text
    assert "BEZEICHNUNG\n" in text
    assert "[OPTION]...\n" in text
    assert "Umlauten:  ä." in text
    for gone in ("comment", "not a text", "TH LS", ".SH", "\\"):
        assert gone not in text


def test_languages_get_about_the_same_bytes(tmp_path: Path) -> None:
    script = runpy.run_path(str(STUDIES / "prepare_languages.py"))
    languages = script["LANGUAGES"]
    for rank, language in enumerate(languages):
        folder = tmp_path / "root" / "usr" / "share" / "man" / language / "man1"
        folder.mkdir(parents=True)
        for number in range(10 * (rank + 1)):
            page = f".SH {language}\n" + f"page {number} in {language}\n" * 60
            (folder / f"p{number:03}.1.gz").write_bytes(gzip.compress(page.encode()))
        (folder / "alias.1.gz").write_bytes(gzip.compress(b".so man1/p000.1\n"))
    written = script["write_languages"](tmp_path / "root", tmp_path / "out", 10**9)
    assert written.keys() == {*languages}
    assert max(written.values()) < 1.2 * min(written.values())
    texts = [*(tmp_path / "out" / "ru").glob("*.txt")]
    assert all("in ru" in each.read_text() for each in texts)
    assert not [each for each in texts if "alias" in each.name]
    for file in (tmp_path / "root" / "usr" / "share" / "man" / "pl" / "man1").iterdir():
        file.unlink()
    with pytest.raises(SystemExit, match="no page was found for pl"):
        script["write_languages"](tmp_path / "root", tmp_path / "out", 10**9)
