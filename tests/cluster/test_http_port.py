"""Tests of the run's HTTP port: access, limits, the page, and its stream of events."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple

import pytest

from cluster.config.schema import MonitorConfig
from cluster.fleet import http_server
from cluster.fleet.event_kinds import RunEvent
from cluster.fleet.exporter import Exporter
from cluster.fleet.http_access import LINK_S, LINKS_KEPT, Access, AskedPage, Verdict
from cluster.fleet.http_port import HttpPort, page_files
from cluster.fleet.page_feed import EVENTS_KEPT, POINTS_KEPT, PageFeed
from cluster.launch.page_link import page_link
from cluster.launch.remote_status import status_at
from cluster.status import EventStatus, RunStatus
from cluster.storage.files import json_text
from cluster.storage.metrics_log import LOOKS
from cluster.storage.runs import TARGET, TOKEN
from coordinator.errors import UserMistake
from tests.cluster.test_progress import a_status

WITHIN_S = 60.0
OPEN, NEEDED, FOREIGN = Verdict.ADMITTED, Verdict.NO_TOKEN, Verdict.WRONG_HOST
MARKUP = '<img src=x onerror="window.stolen=1"><script>window.stolen=1</script>'

# --- the rules ------------------------------------------------------------------------------------


def an_access() -> Access:
    keys = iter(f"key-{n}" for n in range(1000))
    return Access("s3cret", frozenset({"node-7"}), lambda: next(keys))


HERE = AskedPage("GET", "/", "127.0.0.1", "127.0.0.1:9101")


@pytest.mark.parametrize(
    ("address", "host", "metrics", "others"),
    [
        ("127.0.0.1", "127.0.0.1:9101", OPEN, NEEDED),
        ("127.0.0.1", "localhost:9101", OPEN, NEEDED),
        ("::1", "[::1]:9101", OPEN, NEEDED),
        ("::ffff:127.0.0.1", None, OPEN, NEEDED),
        ("127.0.0.1", "192.0.2.7", NEEDED, NEEDED),  # through a proxy
        ("192.0.2.7", "192.0.2.8:9101", NEEDED, NEEDED),
        ("192.0.2.7", "node-7:9101", NEEDED, NEEDED),
        ("fe80::1%eth0", None, NEEDED, NEEDED),
        ("", None, NEEDED, NEEDED),
        ("127.0.0.1", "evil.example:9101", FOREIGN, FOREIGN),  # a name that leads here
        ("127.0.0.1", "node-7.evil.example", FOREIGN, FOREIGN),
        ("127.0.0.1", "[", FOREIGN, FOREIGN),
    ],
)
def test_token_is_needed_except_for_health_and_local_metrics(
    address: str, host: str | None, metrics: Verdict, others: Verdict
) -> None:
    access = an_access()
    _, session = access.cookie
    asked = replace(HERE, remote=address, host=host)
    assert access.verdict(replace(asked, path="/healthz")) is OPEN
    assert access.verdict(replace(asked, path="/metrics")) is metrics
    for path in ("/", "/status", "/events", "/assets/page.js", "/link", "/metrics/", "/nothing"):
        at = replace(asked, path=path)
        assert access.verdict(at) is others
        assert access.verdict(replace(at, authorization="Bearer guessed")) is others
        assert access.verdict(replace(at, authorization="Bearer s3cret")) is OPEN
        browser = replace(at, cookie=session)
        can_look = others is not FOREIGN and path != "/link"
        assert access.verdict(browser) is (OPEN if can_look else others)
        assert access.verdict(replace(at, cookie="guessed")) is others


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed_through_the_port(method: str) -> None:
    asked = replace(HERE, method=method, authorization="Bearer s3cret")
    assert an_access().verdict(asked) is Verdict.READ_ONLY


def test_link_works_once_and_not_for_long() -> None:
    access = an_access()
    first, second = access.link(0.0), access.link(0.0)
    assert access.opens(first, 10.0)
    assert not access.opens(first, 10.0)
    assert not access.opens("guessed", 10.0)
    assert not access.opens(second, LINK_S + 1.0), "it is too old"
    oldest, *newer = [access.link(0.0) for _ in range(LINKS_KEPT + 1)]
    assert not access.opens(oldest, 1.0)
    assert all(access.opens(key, 1.0) for key in newer)


def test_runs_of_one_host_have_different_cookies() -> None:
    other = Access("another", frozenset(), lambda: "x")
    assert an_access().cookie[0] != other.cookie[0]


# --- the port -------------------------------------------------------------------------------------


class Opened(NamedTuple):
    """A run with a port."""

    run_dir: Path
    status: Any
    address: str
    token: str


@pytest.fixture
def port(tmp_path: Path) -> Iterator[Opened]:
    run_dir = tmp_path / "demo-1"
    status: Any = {**a_status(islands=2), "run": "demo-1"}
    monitor = MonitorConfig(targets=str(tmp_path / "targets"))
    exporter = Exporter(run_dir, monitor, status.copy)
    exporter.start()
    try:
        (target,) = json.loads((run_dir / TARGET).read_text())[0]["targets"]
        yield Opened(run_dir, status, target, (run_dir / TOKEN).read_text())
    finally:
        exporter.stop()


def asked_of(address: str, path: str, **headers: str) -> tuple[int, str, Any]:
    request = urllib.request.Request(f"http://{address}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=WITHIN_S) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers


def test_browser_gets_in_by_a_link_and_stays_by_its_cookie(port: Opened) -> None:
    link = page_link(port.run_dir)
    assert link.startswith(f"http://{port.address}/?key=")
    path = link.removeprefix(f"http://{port.address}")
    code, text, headers = asked_of(port.address, path)
    assert (code, 'http-equiv="refresh" content="0;url=/"' in text) == (200, True)
    cookie = headers["Set-Cookie"]
    assert {"HttpOnly", "Path=/", "SameSite=Strict"} <= {each.strip() for each in cookie.split(";")}
    pair = cookie.partition(";")[0]
    for seen in ("/", "/status", *(each for each in page_files() if each != "/")):
        code, _, headers = asked_of(port.address, seen, Cookie=pair)
        assert code == 200
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
    assert asked_of(port.address, "/link", Cookie=pair)[0] == 401, "it admits no other browser"
    assert asked_of(port.address, path)[0] == 401
    assert "was opened before" in asked_of(port.address, path)[1]
    assert asked_of(port.address, "/")[0] == 401
    assert asked_of(port.address, "/status", Cookie=pair, Host="evil.example")[0] == 403
    assert asked_of(port.address, "/assets/..%2fpage.js", Cookie=pair)[0] == 404


def test_link_of_a_run_that_is_not_live_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match="has no page"):
        page_link(tmp_path)


def test_page_loads_nothing_from_elsewhere_and_has_no_inline_code() -> None:
    files = page_files()
    assert {"/", "/assets/page.js", "/assets/page.css", "/assets/uPlot.iife.min.js"} <= files.keys()
    page = files["/"][1].decode()
    script = files["/assets/page.js"][1].decode()
    assert "style=" not in page
    assert "onclick" not in page
    assert page.count("<script") == page.count('<script src="/assets/')
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in script
    for name in ("/", "/assets/page.js", "/assets/page.css"):
        text = files[name][1].decode()
        assert "//" not in text.replace("// ", "").replace("http://www.w3.org", ""), name


def test_stream_sends_the_whole_page_and_then_what_changes(port: Opened) -> None:
    port.status["islands"][0]["why"] = MARKUP
    request = urllib.request.Request(
        f"http://{port.address}/events", headers={"Authorization": f"Bearer {port.token}"}
    )
    with closing(urllib.request.urlopen(request, timeout=WITHIN_S)) as stream:
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        kind, whole = next_event(stream)
        assert kind == "whole"
        assert whole["status"]["islands"][0]["why"] == MARKUP
        assert whole["loss"][-1][3] == port.status["heldout"][-1][1]
        began_s = time.monotonic()
        killed = {"state": "lost", "why": "killed on purpose"}
        port.status["islands"] = [{**port.status["islands"][0], **killed}]
        port.status["elapsed_s"] += 1.0
        lost = RunEvent("loss", "killed on purpose", "local-0 is lost: killed on purpose")
        port.status["events"] = [lost.seen(port.status, 100.0)]
        kind, update = next_event(stream)
        assert time.monotonic() - began_s < 2.0, "a kill is visible within 2 s"
        assert kind == "update"
        assert [each["why"] for each in update["events"]] == ["killed on purpose"]
        assert update["status"]["islands"][0]["state"] == "lost"
        assert len(update["marks"]) == 1


def next_event(stream: Any) -> tuple[str, Any]:
    """Return the kind and the content of the next event of a stream."""
    kind = ""
    for line in stream:
        if line.startswith(b"event: "):
            kind = line[7:].decode().strip()
        elif line.startswith(b"data: "):
            return kind, json.loads(line[6:])
    raise AssertionError("the stream has ended")


def ended(connection: socket.socket) -> bool:
    """Return whether the other side has closed the connection; wait until it answers."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_connections_are_limited_in_number_and_duration(
    port: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unfinished requests take no thread, and hold the port up for a bounded time."""
    monkeypatch.setattr(http_server, "LONGEST_S", 2.0)
    host, number = port.address.split(":")
    threads = threading.active_count()
    with ExitStack() as stack:
        half = [
            stack.enter_context(socket.create_connection((host, int(number)), WITHIN_S))
            for _ in range(http_server.CONNECTIONS + 10)
        ]
        for each in half[: http_server.CONNECTIONS]:
            each.sendall(b"GET /status HTTP/1.1\r\n")
        assert all(ended(each) for each in half[http_server.CONNECTIONS :])
        assert threading.active_count() <= threads
        assert all(ended(each) for each in half)
    assert status_at(port.run_dir) is not None, "there is room again"


# --- the content ----------------------------------------------------------------------------------


def at(elapsed_s: float, t: int, **changes_: Any) -> RunStatus:
    status: Any = {**a_status(islands=2), "elapsed_s": elapsed_s, "t": t, **changes_}
    return status


def test_feed_gives_losses_their_tokens_and_times() -> None:
    feed = PageFeed()
    for step in range(1, 6):
        feed.see(at(10.0 * step, step, tokens_trained=100 * step, heldout=[(2, 5.0), (step, 4.0)]))
    losses = feed.content()["loss"]
    assert losses == [[2, 200, 20.0, 5.0], [5, 500, 50.0, 4.0]]
    assert not feed.see(at(50.0, 5)), "the same look"
    assert feed.see(at(50.0, 5, alerts=["it burns"]))


def event(unix_s: float, text: str) -> EventStatus:
    return RunEvent("alert", text, f"ALERT: {text}").seen(a_status(islands=1), unix_s)


def test_feed_keeps_no_more_than_a_page_shows() -> None:
    feed = PageFeed()
    for step in range(3 * POINTS_KEPT):
        newest = [event(float(each), str(each)) for each in range(max(0, step - 3), step)]
        feed.see(at(float(step), step, events=newest))
    content = feed.content()
    assert POINTS_KEPT // 2 < len(content["marks"]) <= POINTS_KEPT
    assert content["marks"][0][1] == 0
    assert content["marks"][-1][1] == 3 * POINTS_KEPT - 1
    assert [each["unix_s"] for each in content["events"]] == [
        float(3 * POINTS_KEPT - 2 - each) for each in range(EVENTS_KEPT)
    ], "the newest first, each once"
    assert content["status"]["events"] == [], "they are sent once"


def test_event_that_comes_after_its_look_is_shown() -> None:
    """The keeper finds the events of a status after it has published the status."""
    feed, look = PageFeed(), at(10.0, 1)
    assert feed.see(look)
    assert feed.see({**look, "events": [event(5.0, "it burns")]})
    assert not feed.see({**look, "events": [event(5.0, "it burns")]})
    assert [each["text"] for each in feed.content()["events"]] == ["ALERT: it burns"]


def test_page_that_stops_is_reported(tmp_path: Path) -> None:
    """The page once showed the same content until the run ended, without an alert."""
    errors = Queue[BaseException]()

    def breaks() -> RunStatus:
        raise KeyError("a defect")

    server = HttpPort(breaks, "s3cret", "127.0.0.1", 0, tmp_path / LOOKS, failed=errors.put)
    try:
        assert isinstance(errors.get(timeout=WITHIN_S), KeyError)
    finally:
        server.stop()


def test_page_of_a_resumed_run_shows_its_earlier_part(tmp_path: Path) -> None:
    """Torn lines and lines of another form are left out."""
    log = tmp_path / "metrics.jsonl"
    rows = [json_text(at(float(step), step, tokens_trained=step)) for step in range(2000)]
    without = json_text({**at(0.0, 2000), "elapsed_s": None})
    others = json_text({**at(5000.0, 2000), "events": [{}]})
    log.write_text("\n".join(["{}", *rows, *[without] * 50, *[others] * 50, '{"t": 7, "ela']))
    feed = PageFeed()
    feed.read_back(tmp_path / "nothing")
    assert feed.content()["marks"] == []
    feed.read_back(log)
    marks = feed.content()["marks"]
    assert 100 < len(marks) <= POINTS_KEPT
    assert marks[-1][1] > 1900
