"""`python -m archipelago.lab.training FILE.toml [a.b=c ...]`: one run in virtual time, as JSON.

If you give a run directory instead of a file, its run is trained again with the leases of its tape.
The command computes on one thread, like an island of one CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.storage.files import json_text
from cluster.workers.environment import take_one_thread
from coordinator.errors import ArchipelagoError, UserMistake


def main(arguments: Sequence[str]) -> int:
    """Run the command with the arguments behind its name, and return its exit code."""
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    take_one_thread()
    from archipelago.lab.training.retrain import train_again
    from archipelago.lab.training.timing import Virtual
    from archipelago.lab.training.train import train
    from archipelago.lab.training.virtual_file import load

    path, values = Path(arguments[0]), arguments[1:]
    try:
        if path.is_dir():
            if values:
                raise UserMistake(
                    f"{' '.join(values)}: a run is trained again as it was; to change it, "
                    f"give a file instead, such as {path / 'config.toml'}"
                )
            learned = train_again(path, Virtual())
        else:
            config, virtual = load(path, values)
            learned = train(
                config, virtual, virtual.look_every, virtual.average_shares, virtual.tasks
            )
    except UserMistake as error:
        print(error, file=sys.stderr)
        return 2
    except ArchipelagoError as error:
        print(error, file=sys.stderr)
        return 1
    curve = [evaluation._asdict() for evaluation in learned.curve]
    print(json_text({**learned.figures, "curve": curve}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
