"""The list of all checks between fields, and the checks that belong to no other module."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

from cluster.config import (
    data_checks,
    loop_checks,
    machine_checks,
    optimizer_checks,
    region_checks,
    sync_checks,
)
from cluster.config.data_checks import SECRET
from cluster.config.field_check import FieldCheck, reads
from cluster.config.modes import misfit, problems_of_ring, problems_of_streaming
from cluster.config.problem_text import Problem
from cluster.config.schema import Config
from islands import pickled_task
from islands.data.local_paths import address_problem

BUCKETS = ("s3", "gs", "gcs", "abfs", "abfss")
"""The schemes of the stores that pyarrow supports and that replace an object as a whole."""


@reads("task.preset", "task.target")
def one_task(config: Config) -> Iterator[Problem]:
    """Check that exactly one of `preset` and `target` is given."""
    if config.task.preset is None and config.task.target is None:
        yield Problem("task", 'names no task; give preset = "byte-1m", or a target')
    if config.task.preset is not None and config.task.target is not None:
        yield Problem("task", "preset and target are both given; keep one")


@reads("task.pickled", "task.target", "optimizer.pickled", "optimizer.target")
def pickled_functions_are_whole(config: Config) -> Iterator[Problem]:
    """Check that pickled functions are whole and have names; nothing is unpickled."""
    for name, table in (("task", config.task), ("optimizer", config.optimizer)):
        if (text := table.pickled) is None:
            continue
        if (problem := pickled_task.problem_of(text)) is not None:
            yield Problem(f"{name}.pickled", problem)
        if table.target is None:
            yield Problem(f"{name}.pickled", f"needs {name}.target, the name of the function")


@reads("task.init_from", "task.init_other_shapes", "task.init_sha256")
def source_of_parameters_is_named(config: Config) -> Iterator[Problem]:
    """Check that the keys about the source of the parameters have one."""
    task = config.task
    given = {
        "init_other_shapes": task.init_other_shapes != "refuse",
        "init_sha256": task.init_sha256 is not None,
    }
    if task.init_from is None:
        for key in (key for key, is_given in given.items() if is_given):
            yield Problem(f"task.{key}", "has no effect without task.init_from; name the source")


@reads("durability.dir", "regions")
def durable_everywhere(config: Config) -> Iterator[Problem]:
    """Check that each durable store is an absolute path or a bucket, without credentials."""
    yield from _store_problems("durability.dir", config.durability.dir)
    for name, region in config.regions.items():
        yield from _store_problems(f"regions.{name}.durability.dir", region.durability.dir)


def _store_problems(where: str, given: str | None) -> Iterator[Problem]:
    """Yield what is wrong with a store; the texts do not show the URL, which may hold a secret."""
    if given is None or given.startswith("/"):
        return
    parts = urlsplit(given)
    if parts.scheme not in BUCKETS:
        known = ", ".join(f"{scheme}://" for scheme in BUCKETS)
        yield Problem(where, f"must be an absolute path that every node sees, or one of {known}")
    elif not parts.netloc:
        yield Problem(where, f"names no bucket: {parts.scheme}://BUCKET/PREFIX")
    if parts.password or any(SECRET.search(key) for key in parse_qs(parts.query)):
        yield Problem(
            where,
            "holds credentials, which would be written into the run's files; leave them to the "
            "environment of Ray's nodes (AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS ...)",
        )


@reads("run.dir")
def run_directory_is_a_folder(config: Config) -> Iterator[Problem]:
    """Check that the run directory is no bucket, which only a durable store can be."""
    if problem := address_problem(config.run.dir):
        yield Problem("run.dir", f"{problem}; the state of a run may be there: durability.dir")


@reads("durability.keep_segments", "durability.keep_contributions")
def whole_tape_is_kept(config: Config) -> Iterator[Problem]:
    """Check that contributions are kept only together with the whole tape."""
    if config.durability.keep_segments and config.durability.keep_contributions:
        yield Problem(
            "durability.keep_segments",
            "deletes the beginning of the tape, and the kept contributions are useful only with "
            "the whole tape; leave one out",
        )


@reads("durability.keep_hourly", "durability.keep_daily", "run.mode")
def ladder_has_fragments(config: Config) -> Iterator[Problem]:
    """Check that states are kept only in modes that have fragments."""
    for key in ("keep_hourly", "keep_daily"):
        if getattr(config.durability, key) and config.run.mode.sums_gradients:
            yield Problem(
                f"durability.{key}",
                f'has no effect with run.mode = "{config.run.mode}", which has snapshots of its '
                "own (durability.keep_snapshots); leave it out",
            )


@reads("islands")
def some_islands(config: Config) -> Iterator[Problem]:
    """Check that the run has an island."""
    if not config.islands:
        yield Problem("islands", "there are none; add an [[islands]] table with group and count")


@reads("islands.*.group")
def groups_differ(config: Config) -> Iterator[Problem]:
    """Check that no two groups have the same name."""
    names = [group.group for group in config.islands]
    for name in sorted({name for name in names if names.count(name) > 1}):
        places = ", ".join(f"islands.{i}" for i, other in enumerate(names) if other == name)
        yield Problem("islands", f'{places} are all named "{name}"; give each group its own name')


@reads("islands.*.group", "islands.*.count", "run.mode")
def faults_hit(config: Config) -> Iterator[Problem]:
    """Check that each planned fault names a target that can have it in this mode."""
    for fault in config.faults.plan:
        why = fault.misfit(config.island_names) or misfit(config, fault)
        if why is not None:
            yield Problem("faults.plan", why)


@reads("run.steps")
def faults_happen(config: Config) -> Iterator[Problem]:
    """Check that no planned fault comes after the end of the run."""
    for fault in config.faults.plan:
        if fault.at_step > config.run.steps:
            yield Problem(
                "faults.plan",
                f'the {fault.kind} of "{fault.island}" at step {fault.at_step} would come after '
                f"the end; run.steps is {config.run.steps}",
            )


CHECKS: tuple[FieldCheck, ...] = (
    one_task,
    pickled_functions_are_whole,
    optimizer_checks.groups_have_rates_only,
    source_of_parameters_is_named,
    data_checks.tokens_have_column,
    data_checks.mixture_stands_alone,
    data_checks.tokenizer_has_text,
    data_checks.buckets_can_be_read,
    sync_checks.fragments_fit,
    machine_checks.slices_are_of_tpus,
    machine_checks.slices_have_as_many_hosts,
    machine_checks.several_hosts_are_built,
    machine_checks.meshes_can_be,
    machine_checks.batches_divide,
    machine_checks.budget_has_prices,
    durable_everywhere,
    run_directory_is_a_folder,
    whole_tape_is_kept,
    ladder_has_fragments,
    sync_checks.overlap_fits,
    sync_checks.one_outer_optimizer,
    sync_checks.shards_have_fragments,
    sync_checks.shards_elsewhere_are_durable_there,
    sync_checks.quorum_exists,
    sync_checks.blend_has_alpha,
    optimizer_checks.one_inner_optimizer,
    optimizer_checks.one_schedule,
    optimizer_checks.some_leaves_go_by_adamw,
    loop_checks.loop_fits,
    sync_checks.kappa_is_of_rda,
    sync_checks.merge_options_have_rule,
    sync_checks.own_wires_fit,
    sync_checks.gate_and_fragmenting_fit,
    sync_checks.moments_are_shared,
    some_islands,
    groups_differ,
    region_checks.regions_have_islands,
    region_checks.needed_kinds_may_leave,
    region_checks.stores_of_regions_are_used,
    region_checks.evaluator_reads_no_region,
    region_checks.buckets_are_read_in_their_region,
    region_checks.regions_read_no_other,
    reads("run.mode", "sync.wire_up", "islands", "optimizer.loss_scale")(problems_of_ring),
    reads("run.mode", "sync.overlap", "sync.fragments")(problems_of_streaming),
    faults_hit,
    faults_happen,
)
"""All checks, in the order in which the loader reports their problems."""
