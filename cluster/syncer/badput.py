"""The vocabulary of lost time, as in Google's ml-goodput-measurement 0.2.3, and our use of it.

Each second of an island is goodput or has one type of badput. The names are those of the library's
enumeration; nothing of it is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from islands.time_budget import Activity

GOODPUT = "goodput"
"""The key of the seconds that are no badput: computing."""


class Badput(StrEnum):
    """The type of time that trained nothing."""

    TPU_INITIALIZATION = "tpu_initialization"
    """The first wait of an island for its devices and its process."""
    TRAINING_PREP = "training_prep"
    """Imports, reading and joining, in the first process of an island."""
    PROGRAM_STARTUP = "program_startup"
    """Compilation, in the first process of an island."""
    DATA_LOADING_SYNC = "data_loading_sync"
    """Waits of the devices for data."""
    DATA_LOADING_ASYNC = "data_loading_async"
    """Always 0: data that is read while the devices compute holds nothing up."""
    UNPRODUCTIVE_CHECKPOINT_SAVE_TIME = "unproductive_checkpoint_save_time"
    """Always 0: shards store the model, beside the training."""
    UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME = "unproductive_checkpoint_restore_time"
    """The model and the moments on their way to a learner that joins."""
    WASTED_PROGRESS_FROM_DISRUPTION = "wasted_progress_from_disruption"
    """Steps whose tokens were lost with their learner."""
    INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION = "infrastructure_recovery_from_disruption"
    """The time from a death to the next process of the island."""
    CUSTOM_BADPUT_EVENTS = "custom_badput_events"
    """Copying for the syncer, and waits for it or for other islands."""
    OTHER = "other"
    """Idle by order."""
    ELASTIC_SLICE_DOWN = "elastic_slice_down"
    """The wait of an island that was replaced for its new devices."""
    ELASTIC_SCALE_UP = "elastic_scale_up"
    """The wait for devices of an island that was added to a run."""
    ELASTIC_REINITIALIZATION = "elastic_reinitialization"
    """Imports, reading, joining and compilation in the later processes of an island."""


OF_FIRST = {
    Activity.COMPUTING: GOODPUT,
    Activity.DATA: Badput.DATA_LOADING_SYNC,
    Activity.COPYING: Badput.CUSTOM_BADPUT_EVENTS,
    Activity.WAITING: Badput.CUSTOM_BADPUT_EVENTS,
    Activity.STARTING: Badput.TRAINING_PREP,
    Activity.COMPILING: Badput.PROGRAM_STARTUP,
    Activity.RESTORING: Badput.UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME,
    Activity.IDLE: Badput.OTHER,
    Activity.DEAD: Badput.INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION,
}
"""The type of each activity that the first process of an island measures."""
OF_LATER = OF_FIRST | {
    Activity.STARTING: Badput.ELASTIC_REINITIALIZATION,
    Activity.COMPILING: Badput.ELASTIC_REINITIALIZATION,
}
"""The type of each activity that a later process measures."""


def by_type(seconds: Mapping[str, float], *, first: bool) -> dict[str, float]:
    """Return measured seconds by type of badput; `first`: of the first process of an island."""
    types, found = OF_FIRST if first else OF_LATER, dict[str, float]()
    for activity, each in seconds.items():
        kind = types[Activity(activity)]
        found[kind] = found.get(kind, 0.0) + each
    return found
