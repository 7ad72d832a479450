"""The table `[run]`, and the budget of a run. The text below a key is its documentation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cluster.config.table import Table
from cluster.config.values import LARGEST_SEED, Count, Mode, ModeName, Name, Positive


class RunBudget(Table):
    """The amounts that a run may use; it ends gracefully when it has used one of them."""

    device_hours: Positive | None = None
    """Hours for which islands hold devices, summed over devices. Default: no limit."""
    usd: Positive | None = None
    """Dollars, from each group's `usd_per_hour`. Default: no limit."""


class RunConfig(Table):
    """The run itself: its name, mode, length and directory."""

    name: Name | None = None
    """Name of the run and of its directory; the default is the file's name and the start time."""
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] = 0
    """Seed of the initial model and of the order of the data."""
    mode: ModeName = Mode.DECOUPLED
    """Training mode of the run; `docs/howto/baselines.md` compares them."""
    steps: Count = 300
    """T: the length of the run, in syncer steps."""
    dir: Annotated[str, Field(min_length=1)] = "runs"
    """Directory in which the run directory is created; below ~/archipelago for a submitted run."""
    owner: Annotated[str, Field(min_length=1)] | None = None
    """Owner of the run, whose quota it uses; default: the user that submits it."""
    priority: int = 0
    """Importance of the run in the queue of its cluster; larger numbers come first."""
    budget: RunBudget | None = None
    """Amounts at which the run ends, as after `archipelago stop`. Default: no limit."""
    forbid: Annotated[tuple[Literal["chaos", "stop"], ...], Field(strict=False)] = ()
    """Commands that the run refuses: "chaos", "stop", or both."""
