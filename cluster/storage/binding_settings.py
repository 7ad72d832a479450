"""The settings that a run keeps when it is resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.config.schema import Config


def changes(old: Config, new: Config) -> list[str]:
    """Return the settings that a run must keep and that differ, with both values."""
    before, now = _binding(old), _binding(new)
    groups = {each.group: each for each in new.islands}
    for was in old.islands:  # the tape needs its batch; its leases are pieces of one corpus
        if (here := groups.get(was.group)) is None:
            name = f"group {was.group}"
            before[name] = "there"
            now[name] = "not there; keep it, its islands may wait for machines"
            continue
        for key in ("region", "batch_size"):
            name = f"the {key} of group {was.group}"
            before[name], now[name] = getattr(was, key), getattr(here, key)
    return [
        f"{key} was {before.get(key, 'not there')!s:.200}, is {now.get(key, 'not there')!s:.200}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]


def _binding(config: Config) -> dict[str, object]:
    """Return the settings that a run must keep: each key that defines what is trained and how."""
    plain = config.model_dump(mode="json", exclude={"islands", "monitor"})
    for key in ("name", "dir", "owner", "priority", "budget", "forbid"):
        del plain["run"][key]
    del plain["faults"]["preemption"]  # another machine may be in another cloud
    del plain["sync"]["step_s"], plain["sync"]["force"]  # they matter only before the start
    for key in ("dir", "hang_s", "restarts", "keep_hourly", "keep_daily"):
        del plain["durability"][key]
    for region in plain["regions"].values():
        region.pop("evaluate", None)  # an evaluation changes nothing
    return {f"{name}.{key}": value for name, table in plain.items() for key, value in table.items()}
