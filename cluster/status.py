"""The status of a live run: one mapping of JSON types, written by the run, read by all displays."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

PhaseName = Literal["starting", "running", "stopping", "finished"]
IslandState = Literal["waiting", "starting", "joining", "live", "draining", "quarantined", "lost",
                      "left", "set aside"]  # set aside: it failed too often  # fmt: skip


class IslandStatus(TypedDict):
    """The status of one island."""

    island: str
    """The name of the island, such as local-0."""
    group: str
    """The group that the island belongs to."""
    state: IslandState
    """The state of its process or its learner."""
    incarnation: int
    """The incarnation of the present or last life; grows over the whole run, 0 before the first."""
    life: int
    """The number of the present or last life of this island; 1 for the first, 0 before it."""
    steps: int
    """Inner steps over all lives."""
    tokens_per_s: float
    """Tokens trained per second; a moving average."""
    loss: float | None
    """The loss of the last step, in nats per token; None: not known."""
    why: str
    """The reason for the state."""
    contributions: int
    """Admitted contributions over all lives."""
    cosine: float | None
    """The cosine of the last contribution to the mean of the others'; None: not measured."""
    restarts: int
    """Lives after the first: the process was restarted, or the learner was let in again."""
    life_s: NotRequired[float]
    """Seconds for which the island has held its devices."""
    time_s: NotRequired[dict[str, float]]
    """The seconds of its life by activity, as far as they are measured."""
    recent_s: NotRequired[dict[str, float]]
    """The seconds of the last minute by activity."""
    ideal_step_s: NotRequired[float | None]
    """Mean of the recent steps that are not anomalous, in seconds; None: no step yet."""
    step_deviation_s: NotRequired[float | None]
    """Mean deviation of the recent steps from the ideal one, in seconds; None: no step yet."""
    loss_spikes: NotRequired[int]
    """Spikes of the training loss over all lives."""
    metrics: NotRequired[dict[str, float | None]]
    """The metrics of the loss of the last step, by name; None: not finite."""
    slow: NotRequired[bool]
    """Whether it is slower than the others of its group; `why` has the reason."""
    contribution_effect: NotRequired[float]
    """Held-out loss of the model minus the loss without its last measured contribution, in nats."""
    harmful_contributions: NotRequired[int]
    """Newest of these in a row that raised the loss by more than the others' spread."""


class Figures(TypedDict):
    """Measurements for dashboards; None stands for a quantity that is not measured yet."""

    quorum: int
    """The minimum quorum, K."""
    generation: int
    """The number of restarts of the syncer."""
    tokens_merged: int
    """Tokens whose contributions are in the model."""
    tokens_discarded: int
    """Tokens of contributions that were refused, overwritten or too old."""
    tokens_lost: int
    """Tokens that died with a learner before it handed them in."""
    merge_age_s: float | None
    """Seconds since the last merge; before the first, seconds since the first inner step."""
    round_s: float | None
    """Seconds from the opening of a round to its close; a moving average."""
    grace_s: float | None
    """Seconds from the quorum of the last closed round to its close."""
    staleness: float | None
    """The staleness of merged contributions, in versions; a moving average."""
    overlap_steps: float | None
    """Inner steps from a hand-in to the adoption after it; the mean over the run."""
    outer_cosine: float | None
    """The cosine of merged deltas to the outer momentum, or to earlier deltas; a moving average."""
    outer_rate: float | None
    """The outer learning rate in use; a moving average."""
    distrusted_lives: int
    """Lives that were ended because of messages that cannot be true."""
    largest_share: float | None
    """The largest share in a merge over its share of the steps; a moving average."""
    unsound_merges: int
    """Merges that were undone because their outer step was not finite or far too long."""
    trouble: str
    """Visible problems of the model; empty: none."""
    merges_lost: int
    """Merges that were published, but not durable when their shard died."""
    not_durable: str
    """The writes that the disk refuses at present, and why; empty: none."""
    damage: str
    """Files of the run that were unusable when it came back; empty: none."""
    up_bytes: int
    """Bytes of contributions that shards have received, over the run."""
    down_bytes: int
    """Bytes of publications sent to learners, over the run."""
    goodput: float
    """Seconds of computation over the seconds that islands held their devices."""
    uptime: float
    """The share of the time from the first step to the stop in which any learner advanced."""
    badput_s: NotRequired[dict[str, float]]
    """Seconds of all islands that trained nothing, by type of badput."""
    rolling_goodput: NotRequired[dict[str, float | None]]
    """Goodput of the last 60, 300 and 900 seconds, by the length; None: no time has passed."""
    loss_spikes: NotRequired[int]
    """Spikes of the training loss over all islands and lives."""


class RoundStatus(TypedDict):
    """The progress of an open round."""

    arrived: int
    """Contributions that have arrived."""
    asked: int
    """Learners that were asked for a contribution."""
    why: str
    """The reason why the round is still open, or its stage after the close."""


class FragmentStatus(TypedDict):
    """The status of one fragment."""

    fragment: int
    """The number of the fragment, from 0."""
    version: int
    """The number of the public version, without its generation."""
    participants: list[str]
    """The islands in the last merge."""
    round: RoundStatus | None
    """The round under way; None: no round."""


class EvaluationStatus(TypedDict):
    """Durations of evaluations, estimated from batches so far, and the final one's progress."""

    look_s: float
    """Seconds for one evaluation during the run."""
    last_s: float
    """Seconds for the evaluation of the final model, with all figures of the summary."""
    done: int
    """Batches of the final evaluation that are done."""
    wanted: int
    """Batches of the final evaluation in all; 0: it has not begun."""


class LinkStatus(TypedDict):
    """The status of one direction of the link between the shards and a region, or a group."""

    link: str
    """The region of the islands, or their group if they have none."""
    direction: Literal["up", "down"]
    """Up: contributions. Down: publications."""
    bytes: int
    """Bytes of all transfers."""
    transfers: int
    """The number of transfers."""
    transfer_s: float
    """Seconds of all transfers, summed."""
    late: int
    """Transfers that took longer than the overlap."""
    bits_s: float | None
    """The rate of recent transfers, in bit/s; a median. None: there was none."""
    usual_bits_s: float | None
    """The usual rate of the last hour, in bit/s; a median. None: not known yet."""
    spread: float | None
    """The median deviation from the usual rate over that rate; None: not known yet."""
    utilisation: float | None
    """Bits per second over the usual rate, at most 1; None: that rate is not known yet."""
    queue_s: float
    """The age of the oldest request that is not answered, or publication that is not received."""
    lagging: bool
    """Whether most transfers of the last minute took longer than the overlap."""
    slow: bool
    """Whether the rate has been under half of the usual one for a minute."""
    down: bool
    """Whether nothing has come for a minute, and for far longer than usual."""


class ExpectedStatus(TypedDict):
    """The newest held-out loss beside the expected one of `monitor.expected`, in nats per token."""

    t: int
    """The syncer step of the evaluated model."""
    tokens: int
    """Tokens trained when the evaluation was seen."""
    loss: float
    """The expected loss after so many tokens."""
    low: float
    """The lower end of the band."""
    high: float
    """The upper end of the band."""
    heldout_loss: float | None
    """The loss that was measured; None: not finite."""
    inside: bool
    """Whether the measured loss is inside the band."""


class EventStatus(TypedDict):
    """An event of a run: a line of `events.jsonl`, whose keys docs/reference/files.md explains."""

    schema: int
    """The version of these keys."""
    unix_s: float
    """The time at which the fleet saw the event, in seconds since 1970."""
    elapsed_s: float
    """Seconds from the start of the run to the event."""
    run: str
    """The name of the run."""
    t: int
    """The syncer's clock."""
    kind: str
    """The kind of event."""
    island: str | None
    """The island that the event is about; None: the run."""
    group: str | None
    """The group of the island, or the group that is scaled; None: the run."""
    link: str | None
    """The link that the event is about, as in `LinkStatus`; None: no link."""
    for_s: float | None
    """Seconds for which an injected fault lasts; None: not a fault, or one without an end."""
    why: str
    """The reason; empty if it is not known."""
    text: str
    """The event in one line, for people, with its reason."""


class RunStatus(TypedDict):
    """The status of a run."""

    run: str
    """The name of the run."""
    t: int
    """The syncer's clock."""
    steps: int
    """The last syncer step of the run, T."""
    elapsed_s: float
    """Seconds since the start of the run."""
    left_s: float | None
    """Estimated seconds to the end; None: not known yet."""
    phase: PhaseName
    """The phase of the run."""
    islands: list[IslandStatus]
    """The islands, with one that left until it is forgotten."""
    fragments: list[FragmentStatus]
    """The fragments, in order."""
    participants: float
    """Islands in a merge; the mean of the recent merges."""
    alive: int
    """Learners that are live."""
    merges: int
    """Outer steps so far, over all fragments."""
    tokens_trained: int
    """Tokens that all islands have trained."""
    tokens_per_s: float
    """Tokens that all islands train per second; a moving average."""
    heldout: list[tuple[int, float]]
    """The held-out curve, (t, loss of the syncer's model), oldest first; thinned out."""
    faults: int
    """Injected faults."""
    wanted: int
    """Islands that should be there."""
    spares: int
    """Spares that are warm and could take an island over."""
    refusals: dict[str, int]
    """Contributions that were not merged, by reason."""
    failures: dict[str, int]
    """Failures of islands, by reason."""
    unjudged: dict[str, int]
    """Evaluations of the model that failed, by reason."""
    figures: Figures | None
    """Measurements; None: nothing is measured yet."""
    island_hours: NotRequired[dict[str, float]]
    """Hours for which the islands of each group have held their devices."""
    shards_lost: NotRequired[int]
    """Processes of shards that have ended; missing in the modes without shards."""
    evaluation: NotRequired[EvaluationStatus | None]
    """The state of evaluations; None: no batch was evaluated yet."""
    asked: NotRequired[str | None]
    """The source of the request to stop, such as "Ctrl-C"; None: there was no request."""
    links: NotRequired[list[LinkStatus]]
    """The links of the run, each direction apart; empty before the first transfer."""
    heldout_by_region: NotRequired[dict[str, float | None]]
    """The held-out loss on the text of each region that evaluates, on a sample; None: not known."""
    heldout_by_region_t: NotRequired[dict[str, int]]
    """The syncer step of the evaluated model, by region."""
    expected: NotRequired[ExpectedStatus | None]
    """The expected loss beside the newest one; None: nothing is expected at so many tokens."""
    events: NotRequired[list[EventStatus]]
    """The newest events, oldest first; those of earlier looks are in `events.jsonl`."""
    alerts: NotRequired[list[str]]
    """Alerts of the fleet that need a person."""
