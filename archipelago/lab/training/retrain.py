"""A run of Ray, trained again in virtual time: each island reads the leases of its tape."""

from __future__ import annotations

from pathlib import Path

from archipelago.lab.training.lease_source import reading_of
from archipelago.lab.training.loss_curve import Learned, LossCurve
from archipelago.lab.training.supported import unplayable
from archipelago.lab.training.timing import Virtual
from archipelago.lab.training.world import TrainingWorld
from cluster.config.load import load
from cluster.config.rule import rule_of
from cluster.storage.layout import load_layout
from cluster.storage.open_depot import depot_of
from cluster.storage.playback import edition_of, read_tape
from cluster.workers.evaluator import Evaluator
from coordinator.errors import UserMistake


def train_again(run_dir: Path, virtual: Virtual) -> Learned:
    """Train the run of a run directory again.

    If all islands wait for each other (`overlap = 0`, a quorum of all), the fragments are the same
    to the last bit on a machine of the same kind. Otherwise the result is a run of its own, and an
    island that needs more leases than its tape has reads new ones.

    Errors: `UserMistake` if virtual time cannot play the run; `Damaged` if there is no tape;
    `OtherRules` if other rules wrote it.
    """
    config = load(run_dir / "config.toml")
    if problems := unplayable(config):
        raise UserMistake("\n".join(problems))
    depot = depot_of(config, run_dir)
    layout = load_layout(depot)
    tape = read_tape(depot, layout.fingerprint)
    edition = edition_of(depot)
    reading = reading_of(rule_of(config, layout, edition), tape.events)
    curve = LossCurve(Evaluator(config), virtual.look_every)
    return TrainingWorld(
        config, virtual, curve, reading=reading, order=[*reading], edition=edition
    ).run()
