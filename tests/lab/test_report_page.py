"""The page of a report in a headless Chromium: every chart is drawn, without an error."""

from __future__ import annotations

import functools
import http.server
import shutil
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from archipelago.lab.report.run_report import read_runs, report_of
from tests.lab.test_report import MARKUP, NOW, page_of, run_of

CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium"))), None)


@contextmanager
def served(folder: Path) -> Generator[tuple[str, list[str]]]:
    """Serve a folder on the loopback; yield the address, and the paths that are asked for."""
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            asked.append(self.path)

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.long
@pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here: apt install chromium-headless-shell"
)
@pytest.mark.parametrize("width", [390, 1200])
def test_chromium_draws_every_chart_without_an_error(tmp_path: Path, width: int) -> None:
    runs = [run_of(tmp_path / "first", why=MARKUP), run_of(tmp_path / "second")]
    assert CHROMIUM, "no Chromium here: apt install chromium-headless-shell"
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "report.html").write_text(page_of(*runs))
    charts = sum(len(each.charts) for each in report_of(read_runs(runs), NOW).sections)
    with served(tmp_path / "web") as (address, asked):
        done = subprocess.run(
            [
                CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu",
                f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900",
                "--enable-logging=stderr", "--v=0", "--virtual-time-budget=5000", "--dump-dom",
                f"{address}/report.html",
            ],
            capture_output=True, text=True, timeout=110, check=True,
        )  # fmt: skip
    assert asked == ["/report.html"], "it loads nothing else"
    assert "CONSOLE" not in done.stderr, done.stderr
    assert f'data-drawn="{charts}"' in done.stdout
    assert charts > 8
    assert done.stdout.count("<canvas") == charts
