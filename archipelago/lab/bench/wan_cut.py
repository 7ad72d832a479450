"""A real run over regions of which one is cut off for a while, or has half of the speed.

The learners are real ones of the smallest built-in model, with paced steps. Measured are the waits
of the other regions, the time until the region is back in the merges, and the fate of all tokens.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from archipelago.lab.bench.child_run import FOREVER, ChildRun
from archipelago.lab.bench.run_story import Story
from archipelago.lab.bench.stats import demo
from archipelago.lab.bench.wan_run import NODE, run_over
from archipelago.lab.checks.token_counts import TOKEN_FATES, count_problems
from archipelago.lab.wan import nodes, rig
from archipelago.lab.wan.network import Network
from cluster.config.schema import Config
from cluster.storage.runs import SUMMARY
from coordinator.errors import RunFailed
from coordinator.protocol import Island

NAME, PREFIX = "bcut", "10.92"
BATCH, WINDOW = 4, 32
EVERY = 8
"""H, the steps between two merges of a fragment."""
ALL_GBIT = 0.8
"""The bandwidth of all links together."""
NODE_LEFT_S = 90.0
"""Seconds after a cut within which a node ends that Ray has given up."""


@dataclass(frozen=True, slots=True)
class CutPlan:
    """The links, the pace of the islands, and the seconds of the cut and before it."""

    cut_s: float
    """Seconds of the cut; 0: no region is cut off."""
    regions: int = 4
    rtt_ms: float = 80.0
    step_s: float = 0.4
    slowness: float = 1.0
    """The factor by which the steps of the last region take longer."""
    spread: bool = False
    """Whether each region has a shard; otherwise all are in the first region."""
    usual_s: float = 60.0
    """Seconds before a cut in which is measured what is usual, at least."""
    window_s: float = 0.0
    """Seconds from the cut on that are compared with as many before it; 0: until it is back."""

    @property
    def gbit(self) -> float:
        """The bandwidth of each link, so that all together stay below what a machine forwards."""
        return ALL_GBIT / self.regions

    @property
    def names(self) -> list[str]:
        """The names of the regions; the last one is cut off or slow."""
        return [f"r{number}" for number in range(self.regions)]

    @property
    def tokens_per_s(self) -> list[float]:
        """The tokens that each region trains in a second at its pace."""
        usual = BATCH * WINDOW / self.step_s
        return [usual] * (self.regions - 1) + [usual / self.slowness]

    @property
    def most_outstanding(self) -> int:
        """The tokens that one round can hold: two periods of each island, with a late answer."""
        return 2 * EVERY * BATCH * WINDOW * self.regions


def cut_off(plan: CutPlan, say: Callable[[str], None]) -> dict[str, Any]:
    """Cut the last region off, heal its link, and return the figures of the run.

    If Ray has ended the region's node meanwhile, it is started again.

    Errors: `UserMistake` without root or network tools; `RunFailed` if the region is not back after
    minutes.
    """
    network = network_of(plan)
    with (
        TemporaryDirectory(prefix="archipelago-depot-") as durable,
        run_over(network, config_of(plan, durable), say) as run,
    ):
        victim = plan.names[-1]
        before = run.until(lambda look: taking_part(look) == {*plan.names})
        time.sleep(max(plan.usual_s, plan.window_s))
        usual = _looked(run)
        rig.change(network.name, [victim], cut=True)
        cut_unix_s = time.time()
        ended = _ended_nodes()
        time.sleep(plan.cut_s)
        last = _looked(run)
        rig.change(network.name, [victim], cut=False)
        healed_unix_s = time.time()
        say(f"the link of {victim} was cut for {healed_unix_s - cut_unix_s:.0f} s")
        node_ended = _node_ends(run, ended, {*plan.names})
        if node_ended:
            say(f"Ray has ended the node of {victim}, which starts again")
            rig.restart_node(network.name, victim, NODE)
        back = run.until(lambda look: taking_part(look) == {*plan.names})
        back_s = time.time() - healed_unix_s
        time.sleep(max(0.0, cut_unix_s + plan.window_s - time.time()))
        end = _looked(run) if plan.window_s else back
        summary, errors = run.end()
        if not summary:
            raise RunFailed(f"the run has no summary:\n{errors[-2000:]}")
        story = Story.of(run.run_dir)
        ledger = ledger_of(run.run_dir, plan)
    pauses_s = story.pauses_s(cut_unix_s, healed_unix_s).values()
    usual_rate = _rate(before, usual, "tokens_merged")
    return {
        "method": "cut",
        "regions": plan.regions,
        "cut_s": healed_unix_s - cut_unix_s,
        "period_s": EVERY * plan.step_s,
        "grace_s": last["grace_s"],
        "usual_gap_s": story.gap_s(before["unix_s"], usual["unix_s"]),
        "cut_gap_s": story.gap_s(cut_unix_s, healed_unix_s),
        "fragments": len(pauses_s),
        "fragments_paused": sum(pause_s > plan.cut_s / 2 for pause_s in pauses_s),
        "longest_pause_s": max(pauses_s),
        "others_merged": _rate(usual, last, "tokens_merged") / sum(plan.tokens_per_s[:-1]),
        "node_ended": node_ended,
        "back_s": back_s,
        "merged_of_usual": _rate(usual, back, "tokens_merged") / usual_rate,
        "window_s": end["unix_s"] - usual["unix_s"],
        "merged_in_window": _rate(usual, end, "tokens_merged") / usual_rate,
        "usual_of_possible": usual_rate / sum(plan.tokens_per_s),
        "lives": _island(back, victim)["restarts"] + 1,
        **ledger,
    }


def slow(plan: CutPlan, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the share of the regions' own tokens that is merged, with one region slower.

    Errors: `UserMistake` without root or network tools; `RunFailed`.
    """
    with (
        TemporaryDirectory(prefix="archipelago-depot-") as durable,
        run_over(network_of(plan), config_of(plan, durable), say) as run,
    ):
        before = run.until(lambda look: taking_part(look) == {*plan.names})
        time.sleep(plan.usual_s)
        after = _looked(run)
        summary, errors = run.end()
        if not summary:
            raise RunFailed(f"the run has no summary:\n{errors[-2000:]}")
        ledger = ledger_of(run.run_dir, plan)
    merged = _rate(before, after, "tokens_merged")
    return {
        "method": "slow region",
        "regions": plan.regions,
        "slowness": plan.slowness,
        "merged_of_trained": merged / _rate(before, after, "tokens_trained"),
        "merged_of_possible": merged / sum(plan.tokens_per_s),
        **ledger,
    }


def network_of(plan: CutPlan) -> Network:
    """Return the network of a plan, which is not up yet."""
    return Network.planned(NAME, PREFIX, plan.names, plan.gbit, plan.rtt_ms)


def config_of(plan: CutPlan, durable: str) -> Config:
    """Return the configuration: one island with paced steps in each region.

    `durable`: a folder that all regions see, where shards in several regions keep their state.
    """
    islands = [
        {
            "group": name,
            "batch_size": BATCH,
            "resources": {"CPU": 0.5},
            "label_selector": {nodes.LABEL: name},
            "step_s": BATCH * WINDOW / tokens_per_s,
        }
        for name, tokens_per_s in zip(plan.names, plan.tokens_per_s, strict=True)
    ]
    overrides = [f"data.window={WINDOW}", "data.lease_windows=64", f"sync.every={EVERY}"]
    if plan.spread:
        overrides += [f"sync.shards={plan.regions}", f'durability.dir="{durable}"']
        overrides += [f'sync.shard_labels={{{nodes.LABEL}="in({",".join(plan.names)})"}}']
    return demo("byte-tiny", steps=FOREVER, seed=0, overrides=overrides, islands=islands)


def taking_part(look: Mapping[str, Any]) -> set[str]:
    """Return the regions that took part in the last merge of every fragment."""
    sets = [{each.partition("-")[0] for each in f["participants"]} for f in look["fragments"]]
    return set.intersection(*sets) if sets else set()


def _looked(run: ChildRun) -> dict[str, Any]:
    """Return the last status.

    Errors: `RunFailed` if the run has ended.
    """
    return run.until(lambda _: run.process.poll() is None)


def _ended_nodes() -> int:
    """Return how many processes of the network have ended by themselves."""
    return sum(each.poll() is not None for each in nodes.CHILDREN)


def _node_ends(run: ChildRun, ended: int, names: set[str]) -> bool:
    """Wait until all regions take part again, or a node has ended; return whether one has.

    A node that Ray has given up learns of it only when its link is healed.
    """
    end_s = time.monotonic() + NODE_LEFT_S
    while time.monotonic() < end_s and taking_part(_looked(run)) != names:
        if _ended_nodes() > ended:
            return True
        time.sleep(0.2)
    return False


def _island(look: Mapping[str, Any], region: str) -> dict[str, Any]:
    """Return the status of the island in a region."""
    island = Island(f"{region}-0")
    return next(each for each in look["islands"] if each["island"] == island)


def _rate(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> float:
    """Return how much a count has grown in a second between two looks."""
    return (after[name] - before[name]) / (after["unix_s"] - before["unix_s"])


def ledger_of(run_dir: Path, plan: CutPlan) -> dict[str, object]:
    """Return the token counts of a run that has ended, and what is wrong with them.

    Errors: `UserMistake`, `OSError` and `Damaged` as in `count_problems`.
    """
    counts = json.loads((run_dir / SUMMARY).read_text())
    problems = count_problems(run_dir, plan.most_outstanding)
    return {
        **{name: counts[name] for name in ("tokens_trained", *TOKEN_FATES)},
        "balanced": not problems,
        "ledger_problems": problems,
    }
