"""The outcome of a run."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.errors import ArchipelagoError, UserMistake

SUMMARY_FIELDS = {
    "schema": "Version of these keys; it grows when one changes its meaning or goes.",
    "run": "Name of the run.",
    "seed": "Seed of the run.",
    "mode": "Mode of the run, `run.mode`.",
    "config_sha256": "SHA-256 of the resolved configuration, however its file is written.",
    "source_sha256": "SHA-256 of the source of `coordinator`, `islands` and `cluster`, 16 digits.",
    "versions": "Versions of Python, Archipelago and the packages that compute, by name.",
    "parameters": "Parameters of the model.",
    "devices": "Devices of the islands that the run started with, without spares.",
    "device_hours": "Hours for which islands held devices, summed over devices, without spares.",
    "usd": "`device_hours` at each group's `usd_per_hour`; null unless every group has one.",
    "island_hours": "Hours for which islands held their devices, by group.",
    "heldout_loss": "Held-out loss of the final model, in nats per token, over 512 windows.",
    "heldout_metrics": "What the task's loss returns beside it, by name, over the same windows.",
    "sample_heldout_loss": "The same over the 64 windows that a live run evaluates.",
    "initial_heldout_loss": "Held-out loss of the initial model, in nats per token.",
    "heldout_by_region": "Loss of the final model on held-out text of each region; null: unknown.",
    "tokens_trained": "Tokens that all islands have trained; the next four add up to it.",
    "tokens_merged": "Tokens whose contributions are in the model.",
    "tokens_discarded": "Tokens of contributions that were refused, overwritten or too old.",
    "tokens_lost": "Tokens that died with a learner before it handed them in.",
    "tokens_outstanding": "Tokens that were not handed in before the end.",
    "merges": "Outer steps, over all fragments.",
    "mean_participants": "Islands in a merge, mean over all merges.",
    "goodput": "Seconds of computation over the seconds that islands held their devices.",
    "goodput_s": "Computing seconds of all islands whose tokens were not lost.",
    "badput_s": "All other seconds of all islands, by type, as in ml-goodput-measurement.",
    "island_seconds": "Seconds of each island with its devices, by activity.",
    "ideal_step_s": "Median over the islands of the ideal step time, in seconds.",
    "step_deviation_s": "Median over the islands of the mean deviation from it, in seconds.",
    "loss_spikes": "Training losses of an island above six deviations over 128 steps, all islands.",
    "uptime": "Share of the time from the first step to the end in which some learner advanced.",
    "failures": "Islands' failures by reason: exceptions, useless messages, a full object store.",
    "faults": "Faults that were injected on purpose.",
    "recovery_s": "Seconds from each fault to the island's next accepted contribution.",
    "max_merge_gap_s": "Longest time between two merges, in seconds.",
    "up_bytes_per_token": "Bytes of contributions per trained token.",
    "down_bytes_per_token": "Bytes of publications per trained token.",
    "rejected_contributions": "Contributions that the gate refused.",
    "effective_overlap": "Inner steps from a hand-in to the adoption after it, mean.",
    "wall_s": "Seconds from the start of the run to its end, without pauses before a resume.",
    "global_sha256": "SHA-256 of the final fragments, in order, as little-endian float32.",
}
"""The keys of `summary.json`, in order, and their meaning."""
SUMMARY_KEYS = tuple(SUMMARY_FIELDS)
"""The keys of a summary, in order."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run: a summary, or an error."""

    summary: dict[str, object]
    """The final figures; empty if the run has failed."""
    error: str | None = None
    """The error in words; None if the run has succeeded."""
    mistake: bool = False
    """Whether the error is a user's mistake."""
    asked: str | None = None
    """The request that stopped the run; None if there was none."""
    missing: str | None = None
    """The figures that the summary lacks, and why; None if it is complete."""

    @classmethod
    def of_error(cls, error: BaseException) -> Outcome:
        """Return the outcome of a run that this error has ended; a defect has its class's name."""
        if isinstance(error, ArchipelagoError):
            return cls({}, str(error), mistake=isinstance(error, UserMistake))
        return cls({}, f"{type(error).__name__}: {error}")
