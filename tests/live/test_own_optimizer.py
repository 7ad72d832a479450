"""A run on Ray trains with an optimizer and a schedule from the user's own module."""

from __future__ import annotations

import pytest

from tests.live.cli import TINY, place

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(300)]

MINE = """
import jax.numpy as jnp
import optax

def optimizer(b2):
    return optax.lion(optax.linear_schedule(1.0, 0.1, 24), b2=b2)

def rate(clock):
    return 3e-3 * jnp.minimum(1.0, (clock + 1) / 4)
"""
OWN = 'target = "mine:optimizer"\noptions = {b2 = 0.98}\nschedule = "mine:rate"'
KILL = '[[faults.plan]]\nat_step = 8\nkind = "kill"\nisland = "local-1"\n'


@pytest.mark.parametrize("mode", ["decoupled", "data-parallel"])
def test_run_trains_with_an_optimizer_of_the_users(mode: str) -> None:
    with place() as here:
        (here.folder / "mine.py").write_text(MINE)
        text = TINY.read_text().replace("warmup_steps = 4", OWN)
        assert OWN in text
        (config := here.folder / "mine.toml").write_text(text + KILL)
        moments = () if mode == "data-parallel" else ("--set", "sync.moments=mean")
        done = here.run(
            "run", str(config), "--json", "--run-dir", str(here.run_dir),
            "--set", f"run.mode={mode}", *moments,
        )  # fmt: skip
        assert done.code == 0, done.err
        assert done.json["heldout_loss"] < done.json["initial_heldout_loss"]
        (here.folder / "mine.py").write_text(MINE.replace("optax.lion", "optax.scale_by_lion"))
        refused = here.run("run", str(config), "--check")
        assert refused.code == 2
        assert "optimizer.target" in refused.err
