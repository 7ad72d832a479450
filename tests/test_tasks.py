"""Asyncio tasks are created in one place, and errors that no caller awaits are reported."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cluster.tasks import Tasks, heard, watch_process

ROOT = Path(__file__).resolve().parents[1]
OURS = [
    path
    for package in ("archipelago", "cluster", "islands")
    for path in ROOT.glob(f"{package}/**/*.py")
]
STARTS_A_TASK = re.compile(
    r"\b(create_task|ensure_future|run_coroutine_threadsafe|TaskGroup)\(|asyncio\.Task\("
)
ALLOWED = {
    "cluster/tasks.py",  # the only place
    "archipelago/lab/virtual/event_loop.py",  # an event loop, which creates tasks on request
}
FORGOTTEN = re.compile(r"^\s*[\w.]+\.submit\((?!.*\)\.result\(\)$)", re.MULTILINE)
"""A job of a thread pool whose future is dropped, so that its error is lost."""


class Broken(Exception):
    """An error in a task."""


def test_tasks_are_created_in_one_place() -> None:
    sources = {p.relative_to(ROOT).as_posix(): p.read_text() for p in OURS}
    assert {name for name, text in sources.items() if STARTS_A_TASK.search(text)} == ALLOWED


def test_no_future_of_a_thread_pool_is_dropped() -> None:
    sources = OURS
    assert not [path for path in sources if FORGOTTEN.search(path.read_text())]


def test_failed_task_is_reported_to_its_owner_and_kept_until_then() -> None:
    async def story() -> None:
        said: list[BaseException] = []
        tasks = Tasks(said.append)
        go = asyncio.Event()

        async def breaks() -> None:
            await go.wait()
            raise Broken

        async def ends() -> str:
            return "done"

        tasks.spawn(breaks())
        assert await tasks.spawn(ends()) == "done"
        assert len(tasks) == 1
        go.set()
        while len(tasks):
            await asyncio.sleep(0)
        assert [type(error) for error in said] == [Broken]

    asyncio.run(story())


def test_cancelled_tasks_are_not_failures() -> None:
    async def story() -> None:
        said: list[BaseException] = []
        tasks = Tasks(said.append)
        task = tasks.spawn(asyncio.sleep(1000))
        tasks.cancel()
        await asyncio.wait({task})
        assert (task.cancelled(), said, len(tasks)) == (True, [], 0)

    asyncio.run(story())


def test_error_of_an_unawaited_job_is_reported_to_its_owner() -> None:
    said: list[BaseException] = []
    with ThreadPoolExecutor(1) as pool:
        heard(pool.submit(dies), said.append)
        heard(pool.submit(len, "well"), said.append)
    assert [str(error) for error in said] == ["a thread"]


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of errors that the former hook receives; remove ours after the test."""
    told: list[str] = []

    def before(args: threading.ExceptHookArgs) -> None:
        told.append(args.exc_type.__name__)

    monkeypatch.setattr(threading, "excepthook", before)
    # The import linter, which another test runs, disables every logger that it finds.
    monkeypatch.setattr(logging.getLogger("archipelago.tasks"), "disabled", False)
    return told


def dies() -> None:
    raise Broken("a thread")


def test_dead_thread_is_reported_to_its_process(
    hook: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    said: list[BaseException] = []
    watch_process(said.append)
    thread = threading.Thread(target=dies, name="talk")
    thread.start()
    thread.join()
    assert ([str(error) for error in said], hook) == (["a thread"], ["Broken"])
    assert "thread 'talk' died" in caplog.text
    assert "in dies" in caplog.text, "with its traceback"


def test_errors_of_threads_and_callbacks_reach_the_event_loop(hook: list[str]) -> None:
    async def story() -> None:
        said: list[tuple[str, str]] = []
        heard = asyncio.Event()

        def failed(error: BaseException) -> None:
            said.append((str(error), threading.current_thread().name))
            if len(said) == 2:
                heard.set()

        def breaks() -> None:
            raise Broken("a callback")

        watch_process(failed)
        asyncio.get_running_loop().call_soon(breaks)
        thread = threading.Thread(target=dies)
        thread.start()
        await heard.wait()
        thread.join()
        here = threading.current_thread().name
        assert sorted(said) == [("a callback", here), ("a thread", here)]

    asyncio.run(story())
    assert hook == ["Broken"]
