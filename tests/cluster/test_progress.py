"""Tests of what a user sees: the live table, the lines and the summary."""

import copy
import io
import math
from typing import Any

import pytest
from rich.console import Console, RenderableType

from archipelago.cli.display import Display
from archipelago.cli.formatting import WIDTH, amount, duration, sparkline
from archipelago.cli.live_table import render
from archipelago.cli.status_lines import announce, line
from archipelago.cli.table_view import TableView
from archipelago.cli.tables import summary_table
from cluster.fleet.event_kinds import EventKind, RunEvent
from cluster.status import EventStatus, RunStatus

SUMMARY: dict[str, Any] = {
    "heldout_loss": 2.3118,
    "sample_heldout_loss": 2.2405,
    "initial_heldout_loss": 5.5461,
    "tokens_trained": 1_228_800,
    "tokens_merged": 1_139_200,
    "tokens_discarded": 71_680,
    "tokens_lost": 8_192,
    "tokens_outstanding": 9_728,
    "merges": 100,
    "mean_participants": 3.61,
    "goodput": 0.931,
    "uptime": 1.0,
    "faults": 1,
    "recovery_s": [6.41],
    "max_merge_gap_s": 2.31,
    "up_bytes_per_token": 8.21,
    "down_bytes_per_token": 7.5,
    "rejected_contributions": 0,
    "effective_overlap": 1.4,
    "wall_s": 232.4,
    "global_sha256": "0123456789abcdef" * 4,
}


def a_status(islands: int = 4, fragments: int = 8) -> Any:
    """Return the status of a run half-way, for tests to change (hence no type)."""
    names = [f"local-{index}" for index in range(islands)]
    status: RunStatus = {
        "run": "demo-1",
        "t": 150,
        "steps": 300,
        "elapsed_s": 127.0,
        "left_s": 125.0,
        "phase": "running",
        "islands": [
            {
                "island": name,
                "group": "local",
                "state": "live",
                "incarnation": index + 1,
                "life": 1,
                "steps": 150 + index,
                "tokens_per_s": 2400.0,
                "loss": 2.5,
                "why": "",
                "contributions": 12,
                "cosine": 0.3,
                "restarts": 0,
            }
            for index, name in enumerate(names)
        ],
        "fragments": [
            {"fragment": index, "version": 6, "participants": names[1:], "round": None}
            for index in range(fragments)
        ],
        "participants": 3.6,
        "alive": islands,
        "merges": 47,
        "tokens_trained": 1_238_000,
        "tokens_per_s": 9712.0,
        "heldout": [(0, 5.55), (40, 3.1), (80, 2.6), (120, 2.45)],
        "faults": 0,
        "wanted": islands,
        "spares": 0,
        "refusals": {},
        "failures": {},
        "unjudged": {},
        "figures": None,
    }
    return status


def text(what: RenderableType, width: int = WIDTH) -> str:
    console = Console(width=width, file=io.StringIO(), record=True, legacy_windows=False)
    console.print(what)
    return console.export_text()


def row(shown: str, start: str) -> str:
    (found,) = [each for each in shown.splitlines() if each.strip().startswith(start)]
    return " ".join(found.split())


# --- the live table -------------------------------------------------------------------------------


def test_table_shows_header_and_figures() -> None:
    shown = text(render(a_status()))
    assert row(shown, "demo-1").startswith("demo-1 running t 150/300")
    assert row(shown, "demo-1").endswith("2:07 left 2:05")
    assert row(shown, "held-out") == "held-out 2.450 █▂▁▁ of a sample"
    assert row(shown, "merges") == (
        "merges 47 participants 3.6 alive 4 of 4 tokens 1.24M per s 9.71k faults 0"
    )


def test_loss_that_is_not_finite_is_a_word() -> None:
    status = a_status()
    status["heldout"].append((150, math.nan))
    assert row(text(render(status)), "held-out") == "held-out not finite of a sample"
    assert "  held-out not finite  " in line(status)
    assert "held-out loss not finite" in row(
        text(summary_table({"heldout_loss": math.inf})), "learning"
    )


def test_table_has_a_row_for_each_island() -> None:
    status = a_status()
    status["islands"][2] |= {"state": "lost", "why": "killed (fault plan)"}
    status["islands"][3] |= {"life": 2, "incarnation": 5}
    shown = text(render(status))
    assert row(shown, "local-0") == "local-0 live 1 150 2.40k 2.500"
    assert row(shown, "local-2") == "local-2 lost 1 152 - - killed (fault plan)"
    assert row(shown, "local-3") == "local-3 live 2 153 2.40k 2.500"


def test_dead_island_is_red_and_live_one_green() -> None:
    status = a_status()
    status["islands"][2]["state"] = "lost"
    console = Console(width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="standard")
    lines = console.render_lines(render(status), pad=False)

    def colours(name: str) -> set[str]:
        (found,) = [each for each in lines if each and each[0].text.startswith(name)]
        return {s.style.color.name for s in found if s.style and s.style.color and s.text.strip()}

    assert colours("local-2") == {"red"}
    assert colours("local-1") == {"green"}


def test_table_has_a_row_for_each_fragment_with_merge_and_round() -> None:
    status = a_status()
    status["fragments"][0] |= {"version": 0, "participants": []}
    status["fragments"][3]["round"] = {"arrived": 2, "asked": 4, "why": "grace until 3.1"}
    shown = text(render(status))
    assert row(shown, "0 ") == "0 v0 -"
    assert row(shown, "1 ") == "1 v6 ·●●● 3 of 4"
    assert row(shown, "3 ") == "3 v6 ·●●● 3 of 4 2 of 4 arrived grace until 3.1"


@pytest.mark.parametrize(("islands", "fragments", "rows"), [(4, 8, 19), (16, 8, 31), (16, 64, 28)])
def test_table_fits_the_screen(islands: int, fragments: int, rows: int) -> None:
    status = a_status(islands, fragments)
    for island in status["islands"]:
        island["why"] = "a long story " * 20
    for fragment in status["fragments"]:
        fragment["round"] = {"arrived": 12, "asked": islands, "why": "a long story " * 20}
    lines = text(render(status), width=2 * WIDTH).splitlines()
    assert max(len(each.rstrip()) for each in lines) <= WIDTH
    assert len(lines) == rows


def test_many_fragments_are_all_shown() -> None:
    """A folded fragment has one mark, in order; the open rounds are listed."""
    status = a_status(16, 64)
    status["fragments"][0] |= {"version": 0, "participants": []}
    status["fragments"][1]["participants"] = [each["island"] for each in status["islands"]]
    status["fragments"][40]["round"] = {"arrived": 3, "asked": 9, "why": "waits for the quorum"}
    shown = text(render(status, width=80), width=80)
    assert row(shown, "p0") == "p0 ·●" + "◐" * 62
    assert row(shown, "p40") == "p40 v6 3 of 9 arrived waits for the quorum"
    assert "64 fragments, v0 to v6, last merges with 14.8 of 16 islands, 1 rounds open" in shown
    whole = text(render(status, view=TableView(fragments=True)))
    assert (
        row(whole, "40 ") == "40 v6 ·" + "●" * 15 + " 15 of 16 3 of 9 arrived waits for the quorum"
    )


def test_table_before_anything_is_known() -> None:
    status = a_status()
    status |= {"t": 0, "left_s": None, "heldout": [], "merges": 0, "participants": 0.0}
    status["islands"][0] |= {"state": "starting", "life": 0, "incarnation": 0, "loss": None}
    shown = text(render(status))
    assert row(shown, "demo-1").endswith("left ?")
    assert row(shown, "held-out") == "held-out -"
    assert "participants -" in shown
    assert row(shown, "local-0") == "local-0 starting - 150 2.40k -"


def test_brackets_in_a_reason_are_text() -> None:
    status = a_status()
    status["islands"][0]["why"] = "error [red]in[/red] user code [0]"
    assert "error [red]in[/red] user code [0]" in text(render(status))


# --- lines ----------------------------------------------------------------------------------------


def test_plain_line_is_ascii() -> None:
    status = a_status()
    status["islands"][2]["state"] = "lost"
    assert line(status) == (
        "2:07  running  t 150/300  held-out 2.450  merges 47  participants 3.6, 4 alive  "
        "tokens 1.24M, 9.71k/s  left 2:05  local-2 lost"
    )
    assert line(status).isascii()


def test_participants_above_the_islands_alive_are_explained() -> None:
    fewer = a_status()
    fewer["alive"] = 3
    assert "  participants 3.6 in recent merges, 3 alive  " in line(fewer)
    assert "participants 3.6 in recent merges alive" in row(text(render(fewer)), "merges")


def then(before: Any, **of_island_2: object) -> Any:
    after = copy.deepcopy(before)
    after["islands"][2] |= of_island_2
    return after


def test_status_without_news_announces_nothing() -> None:
    assert announce(a_status(), then(a_status(), steps=151, loss=2.4, why="steps")) == []


def test_death_and_return_are_announced() -> None:
    alive = a_status()
    lost = then(alive, state="lost", why="killed (fault plan)")
    joining = then(lost, state="joining", life=2, incarnation=5, why="compiles")
    back = then(joining, state="live", why="")
    assert announce(alive, lost) == ["2:07  island local-2 is lost: killed (fault plan)"]
    assert announce(lost, joining) == []
    assert announce(joining, back) == ["2:07  island local-2 is back as life 2"]
    ended = "2:07  island local-2 was lost: its life 1 has ended"
    assert announce(alive, back) == [ended, "2:07  island local-2 is back as life 2"]
    assert announce(alive, joining) == [ended]


@pytest.mark.parametrize(
    ("why", "because"),
    [
        ("steps", ""),
        ("steps, after its process ended (ActorUnavailableError)", ""),
        ("on trial: 5 more that do not point against the others", ": on trial: 5 more that do not"),
    ],
)
def test_return_has_a_reason_only_if_the_island_does_more_than_step(why: str, because: str) -> None:
    joining = then(a_status(), state="joining", life=2, why="joined again")
    (said,) = announce(joining, then(joining, state="live", why=why))
    assert said.startswith(f"2:07  island local-2 is back as life 2{because}")
    assert "steps" not in said


@pytest.mark.parametrize(
    ("state", "why", "said"),
    [
        ("draining", "asked to", "draining: asked to"),
        ("quarantined", "norm", "quarantined: norm"),
        ("set aside", "it broke", "set aside: it broke"),
        ("lost", "", "lost"),
    ],
)
def test_change_of_state_is_announced(state: str, why: str, said: str) -> None:
    alive = a_status()
    assert announce(alive, then(alive, state=state, why=why)) == [f"2:07  island local-2 is {said}"]


def test_change_of_several_islands_is_announced_once() -> None:
    before = a_status(5)
    for island in before["islands"]:
        island["state"] = "joining"
    two, all_of_them = copy.deepcopy(before), a_status(5)
    two["islands"][0]["state"] = two["islands"][1]["state"] = "live"
    assert announce(before, two) == ["2:07  islands local-0, local-1 are live"]
    assert announce(before, all_of_them) == ["2:07  5 islands are live"]


def test_recorded_events_are_announced_once_whatever_the_statuses_show() -> None:
    """Faults and scalings are in no status, and a loss between two looks is seen by the fleet."""

    def seen(unix_s: float, kind: EventKind, text: str, island: str | None = None) -> EventStatus:
        return RunEvent(kind, "", text, island).seen(a_status(), unix_s)

    first = seen(100.0, "fault", "local-2: kill on purpose: the plan", "local-2")
    both = [seen(101.0, "loss", f"{name} is lost: killed", name) for name in ("local-1", "local-2")]
    before, after = a_status(), a_status()
    before["events"], after["events"] = [first], [first, *both]
    assert announce(before, after) == ["2:07  islands local-1, local-2 are lost: killed"]
    assert announce(after, after) == []
    assert announce(a_status(), before) == ["2:07  local-2: kill on purpose: the plan"]
    assert announce(None, after) == ["2:07  demo-1 is running", "2:07  4 islands are live"]


def test_end_of_a_run_is_announced_once_whether_or_not_its_event_is_recorded_yet() -> None:
    stopping, ended = a_status() | {"phase": "stopping", "events": []}, a_status()
    ended |= {"phase": "finished", "events": []}
    text = "demo-1 has finished at t 150 after 47 merges"
    recorded = ended | {"events": [RunEvent("phase", "", text).seen(a_status(), 100.0)]}
    assert announce(stopping, ended) == [f"2:07  {text}"]
    assert announce(ended, recorded) == []
    assert announce(stopping, recorded) == [f"2:07  {text}"]


def test_island_that_is_gone_is_announced() -> None:
    fewer = a_status()
    del fewer["islands"][3]
    assert announce(a_status(), fewer) == ["2:07  island local-3 is gone from the run"]


def test_phases_of_a_run_are_announced() -> None:
    starting, stopping, finished = a_status(), a_status(), a_status()
    for island in starting["islands"]:
        island["state"] = "starting"
    starting["phase"], stopping["phase"], finished["phase"] = "starting", "stopping", "finished"
    assert announce(None, starting) == ["2:07  demo-1 is starting 4 islands"]
    assert announce(a_status(), stopping) == ["2:07  demo-1 is stopping: t 300 is reached"]
    assert announce(stopping, finished) == ["2:07  demo-1 has finished at t 150 after 47 merges"]
    finished["asked"] = "Ctrl-C"
    stopped = "2:07  demo-1 was stopped at t 150 after 47 merges, before t 300: Ctrl-C"
    assert announce(stopping, finished) == [stopped], "it does not look finished"


def test_alert_is_announced_once_and_again_when_it_is_over() -> None:
    well, full = a_status(), a_status()
    full["alerts"] = ["there is no room"]
    assert announce(well, full) == ["2:07  ALERT: there is no room"]
    assert announce(full, full) == []
    assert announce(full, well) == ["2:07  over: there is no room"]
    assert "ALERT: there is no room" in text(render(full))
    assert line(full).endswith("ALERT there is no room")


# --- on a console ---------------------------------------------------------------------------------


def test_display_without_a_terminal_prints_lines_at_intervals() -> None:
    out = io.StringIO()
    with Display(Console(file=out, width=40)) as display:
        for elapsed_s in (0.0, 1.0, 4.9, 5.0, 6.0):
            display.show(a_status() | {"elapsed_s": elapsed_s})
    assert [each.split("  ")[:2] for each in out.getvalue().splitlines()] == [
        ["0:00", "demo-1 is running"],
        ["0:00", "4 islands are live"],
        ["0:00", "running"],
        ["0:05", "running"],
    ]


def test_display_on_a_terminal_prints_news_above_the_table() -> None:
    out = io.StringIO()
    alive = a_status()
    with Display(Console(file=out, width=WIDTH, height=40, force_terminal=True)) as display:
        display.show(alive)
        display.show(then(alive, state="lost", why="killed"))
    shown = out.getvalue()
    assert shown.rindex("island local-2 is lost: killed") < shown.rindex("open round")


# --- the end --------------------------------------------------------------------------------------


def test_summary_shows_all_figures() -> None:
    shown = text(summary_table(SUMMARY))
    assert row(shown, "learning") == "learning held-out loss 2.3118 nats per token, global model"
    assert row(shown, "merged") == "merged 1,139,200 92.7 % ██████ in the model"
    assert row(shown, "lost") == "lost 8,192 0.7 % died with a learner"
    assert row(shown, "speed").startswith("speed 5,287 tokens per second")
    assert row(shown, "back after").startswith("back after 6.41 s")
    assert row(shown, "uptime").startswith("uptime 100.0 %")
    assert row(shown, "global model") == "global model 0123456789ab its sha256, the first digits"
    assert max(len(each.rstrip()) for each in shown.splitlines()) <= WIDTH
    assert "…" not in shown


def test_summary_has_a_row_for_each_recovery() -> None:
    assert text(summary_table(SUMMARY | {"recovery_s": [1.0, 2.0]})).count("back after") == 2
    assert "back after" not in text(summary_table(SUMMARY | {"recovery_s": [], "faults": 0}))
    assert row(
        text(summary_table(SUMMARY | {"recovery_s": [], "faults": 1})), "back after"
    ).startswith("back after - ")


def test_missing_figures_are_dashes() -> None:
    shown = text(summary_table(dict.fromkeys(SUMMARY)))
    assert row(shown, "goodput").startswith("goodput - ")
    assert row(shown, "merged") == "merged - - in the model"
    assert "None" not in shown


def test_summary_of_a_run_that_trained_nothing() -> None:
    nothing = SUMMARY | {key: 0 for key in SUMMARY if key.startswith("tokens_")} | {"wall_s": 0.0}
    assert row(text(summary_table(nothing)), "merged") == "merged 0 - in the model"


# --- figures --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, "0"),
        (950.4, "950"),
        (999.9, "1.00k"),
        (12_440, "12.4k"),
        (124_400, "124k"),
        (999_900, "1.00M"),
        (1.23e9, "1.23G"),
        (5e12, "5.00T"),
    ],
)
def test_amount(number: float, said: str) -> None:
    assert amount(number) == said


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0:00"), (7.9, "0:07"), (760, "12:40"), (3723, "1:02:03")]
)
def test_duration(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("history", "said"),
    [
        ([], ""),
        ([1.0], ""),
        ([2.0, 2.0], "▁▁"),
        ([1.0, 2.0, 3.0], "▁▅█"),
        ([1.0, float("nan")], ""),
        ([0.0] * 24 + [7.0] * 24, "▁" * 12 + "█" * 12),
    ],
)
def test_sparkline(history: list[float], said: str) -> None:
    assert sparkline(history) == said


def test_cost_of_judging_is_announced_and_progress_shown() -> None:
    before, after = a_status(), a_status()
    after["evaluation"] = {"look_s": 3.0, "last_s": 120.0, "done": 0, "wanted": 0}
    (said,) = announce(before, after)
    assert said.endswith("an evaluation takes 0:03, the final one 2:00")
    assert announce(after, after) == []
    assert "evaluating" not in text(render(after)) + line(after)
    after["evaluation"] |= {"done": 17, "wanted": 68}
    for shown in (text(render(after)), line(after)):
        assert "evaluating the final model: 17 of 68 batches, left 1:30" in shown


def test_damage_found_at_resume_is_announced_once_and_shown() -> None:
    before, after = a_status(), a_status()
    before["figures"] = {"not_durable": "", "trouble": ""}  # a status of an earlier version
    after["figures"] = {"not_durable": "", "damage": "tape-0.arrow is not there"}
    said = "damaged when the run came back: tape-0.arrow is not there"
    assert announce(before, after) == [f"2:07  {said}"]
    assert announce(after, after) == []
    assert said in text(render(after))
    assert "damaged" not in text(render(before))
