"""The shipped example merges by TIES on real Ray, and a replay gives the model to the last bit."""

from __future__ import annotations

import pytest

from archipelago.examples import ties
from tests.live.cli import place

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(300)]

EXAMPLE = ties.__file__.removesuffix("py") + "toml"


def test_ties_merges_on_ray_and_replays_to_the_last_bit() -> None:
    with place() as here:
        rule = here.folder / "my_ties.py"
        rule.write_text(open(ties.__file__, encoding="utf-8").read())  # noqa: SIM115
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
        rule.write_text("def ties(deltas, weights, pieces, density):\n    return deltas[0] / 0\n")
        refused = here.run("run", EXAMPLE, "--check", "--set", "sync.merge=my_ties:ties")
        assert refused.code == 2
        assert refused.err.lstrip().startswith(f"archipelago: {rule}:2: "), refused.err
