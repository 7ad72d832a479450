"""The check of a region's corpus, in a process on a node of the region, before a run starts."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.config.schema import Config, IslandGroup
from cluster.workers.border import border_of
from coordinator.errors import SourceMistake, UserMistake
from coordinator.protocol import Lease
from islands.data.buckets import plain_uri


def corpus_problem(config: Config, groups: Sequence[str]) -> str:
    """Return why these groups cannot train on the corpus of their region; empty if they can.

    They are in one region with a table. If texts of errors stay there, only a `SourceMistake`
    leaves as it is, and any other exception as its class and a code. What this process prints stays
    there, too.
    """
    own = [config.group(name) for name in groups]
    border = border_of(config, own[0], f"corpus-probe-{own[0].group}")
    border.keep_output()
    key = f"regions.{own[0].region}.data"
    try:
        for group in own:
            _read(config.within(group), group)
    except BaseException as error:  # noqa: BLE001 - its text may hold data, and Ray would send it
        is_open = border.log_file is None and isinstance(error, (UserMistake, OSError))
        if is_open or type(error) is SourceMistake:
            return str(error).replace("data.source", key)
        region = config.region_of(own[0])
        assert region is not None, "only regions with a table are checked"
        why = f"{key} = {plain_uri(region.data)!r} cannot be used: {border.error_text(error)}"
        if border.log_file is None:
            return why
        return f"{why}; read it on that node, in {region.logs} (regions.{own[0].region}.logs)"
    return ""


def _read(config: Config, group: IslandGroup) -> None:
    """Read a training batch and a held-out batch of the group, as its islands do.

    Errors: `SourceMistake` if there is none; those of the source and of the user's own task.
    """
    from cluster.workers.assembly import data_spec, own_task_of  # imports JAX only when needed
    from islands.sources import find_source

    if config.task.preset is not None:
        find_source(data_spec(config))
    task, size = own_task_of(config), group.batch_size
    stream, heldout = task.stream(size), task.heldout(size)
    if not len(heldout):
        raise SourceMistake(
            f"data.source = {plain_uri(config.data.source)!r} has no held-out batch of {size} "
            "windows: give more text, or raise data.heldout_percent"
        )
    heldout[0]  # an index may be there while the file with the tokens is not
    for number in range(-(-size // config.data.lease_windows)):
        stream.add(Lease(number))
    if stream.remaining >= size:
        stream.next()
