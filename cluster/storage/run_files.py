"""The files that a run leaves, and their content; the reference pages show this table."""

RUN_FILES = {
    "config.toml": "The resolved configuration, defaults included.",
    "summary.json": "Every figure of the run; written at its end.",
    "model.safetensors": "The final parameters: float32 arrays by the paths of their leaves. "
    "A model above 5 GB is in parts with `model.safetensors.index.json`.",
    "init.json": "The leaves that `task.init_from` has given, with their digest.",
    "initial.safetensors": "The model of another run from which this one started; only with "
    '`task.init_from = "run:NAME@T"`, or with a run that had not ended.',
    "metrics.jsonl": "One status per line with flat columns, every `monitor.refresh_s` seconds, "
    "less often with more than 32 islands; "
    "older lines are thinned out above `monitor.metrics_mb`.",
    "events.jsonl": "One line for each decision or fault that changes the run, with its reason.",
    "report.html": "The report that `archipelago demo` or `archipelago report` has written.",
    "trace.json": "The timeline for Perfetto that `archipelago trace` has written.",
    "tensorboard/": "Event files; only with the tracker `tensorboard` in `monitor.track`.",
    "wandb/": "Files of Weights & Biases; only with the tracker `wandb` in `monitor.track`.",
    "ray.log": "Log lines of Ray's processes.",
    "tracebacks/": "The traceback of each exception that ended an island's process.",
    "tape-*.arrow": "The write-ahead log: one row for each event that the rules received.",
    "state.json, states/": "Snapshots of the syncer's state, each with a digest.",
    "fragments/": "The newest versions of each fragment, and the first one, each with a digest.",
    "contributions/": "Merged contributions; only with `durability.keep_contributions`.",
    "layout.json, layout-copy.json": "The cut of the parameters into fragments; either file is "
    "enough.",
    "identity.json": "The id of the run, which each fragment file repeats.",
    "notes.jsonl": "Evaluations, lives, failures and faults that a restored syncer remembers.",
    "vitals.json": "The newest counters of each island.",
    "fleet.json": "The desired, present and withheld islands, with which a fleet restarts.",
    "owner-N.json": "The fleet that owns the run, as a fencing token: the highest N owns it.",
    "live.json": "How other terminals reach the live run; removed at its end.",
    "token": "The token of the run's HTTP port.",
    "prometheus.json": "The run as a target for Prometheus; removed at its end.",
    "from-stored.json": "The versions that `--resume --from-stored` started from.",
    "ladder/": "Kept states of earlier hours and days; only with `durability.keep_hourly` or "
    "`keep_daily`.",
    "aside/": "Newer states that the run left when it went back with `--resume --from T`.",
    "from-step.json": "The step to which the next resume goes back; removed when it has.",
    "ring/, ring.json, ring.jsonl": "Snapshots, memory and log of the data-parallel modes.",
}
"""The content of each file by its name, files for people first."""
