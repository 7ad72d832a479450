"""The shipped examples of extension points run on real Ray, and replay to the last bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from archipelago.examples import csv_tracker, outer_optimizer, signs, strided, ties
from tests.live.cli import place

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(300)]

EXAMPLE = str(Path(ties.__file__).with_suffix(".toml"))


def test_ties_merges_on_ray_and_replays_to_the_last_bit() -> None:
    with place() as here:
        rule = here.folder / "my_ties.py"
        rule.write_text(Path(ties.__file__).read_text())
        done = here.run(
            "run", EXAMPLE, "--json", "--run-dir", str(here.run_dir),
            "--set", "sync.merge=my_ties:ties",
        )  # fmt: skip
        assert done.code == 0, done.err
        assert done.json["heldout_loss"] < done.json["initial_heldout_loss"]
        assert done.json["mean_participants"] >= 2
        assert "merge_sha256" in (here.run_dir / "config.toml").read_text()
        played = here.run("replay", str(here.run_dir), "--json")
        assert played.code == 0, played.err
        assert played.json["exact"] is True
        assert played.json["compared"]["fragments"] is True
        assert played.json["global_sha256"] == done.json["global_sha256"]
        rule.write_text(rule.read_text().replace("share > 0", "share > 1e-9"))
        other = here.run("replay", str(here.run_dir), "--json")
        assert other.code == 2
        assert "put its files back" in other.out + other.err
        rule.write_text("def ties(deltas, weights, pieces, density):\n    return deltas['first']\n")
        refused = here.run("run", EXAMPLE, "--check", "--set", "sync.merge=my_ties:ties")
        assert refused.code == 2
        assert refused.err.lstrip().startswith(f"archipelago: {rule}:2: "), refused.err


def test_codec_fragmenting_outer_optimizer_and_tracker_work_together_on_ray() -> None:
    codec, own = f"{signs.__name__}:Signs", f"{strided.__name__}:strided"
    with place() as here:
        done = here.run(
            "run", EXAMPLE, "--json", "--run-dir", str(here.run_dir),
            "--set", f"sync.wire_up={codec}", "--set", f"sync.wire_down={codec}",
            "--set", f"sync.fragmenting={own}", "--set", "sync.fragments=4",
            "--set", f"sync.outer.target={outer_optimizer.__name__}:outer",
            "--set", f'monitor.track=["{csv_tracker.__name__}:CsvTracker"]',
            "--set", "monitor.evaluate_every_s=1",
        )  # fmt: skip
        assert done.code == 0, done.err
        assert done.json["heldout_loss"] < done.json["initial_heldout_loss"]
        assert done.json["rejected_contributions"] == 0
        *lines, last = (here.run_dir / "curve.csv").read_text().splitlines()
        assert last == f"end,{done.json['tokens_trained']},{done.json['heldout_loss']}"
        assert len(lines) > 2
        played = here.run("replay", str(here.run_dir), "--json")
        assert played.code == 0, played.err
        assert played.json["exact"] is True
        assert played.json["global_sha256"] == done.json["global_sha256"]
