"""The accessibility of the live page and of a report, by axe-core in a real browser."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.lab.test_report import page_of, run_of
from tests.live.axe import axe_script, grave, violations
from tests.live.chromium import Chromium
from tests.page_at_size import Served, served

pytestmark = [
    pytest.mark.live, pytest.mark.long, pytest.mark.timeout(300), pytest.mark.needs("npm"),
]  # fmt: skip

ISLANDS = FRAGMENTS = 64
ROWS = "document.querySelectorAll('#islands tbody tr').length"
SIZES = ((1280, 1600, False), (390, 2000, True))
SPOILED = "document.querySelectorAll('#islands, #loss').forEach(e => e.outerHTML = '<img>'); 0"
"""A script that leaves pictures without a text, which the rules must find."""


async def judged(server: Served, script: str, profile: Path) -> list[dict[str, Any]]:
    """Return what is wrong in both colour schemes and sizes, and in a page that is spoiled."""
    found = list[dict[str, Any]]()
    async with Chromium(profile) as browser:
        await browser.open(await asyncio.to_thread(lambda: server.link))
        await browser.until(ROWS, lambda rows: rows == ISLANDS)
        for scheme in ("light", "dark"):
            await browser.prefers(scheme)
            for width, height, mobile in SIZES:
                await browser.resize(width, height, mobile=mobile)
                await browser.until("document.querySelectorAll('#rate canvas').length", bool)
                found += [
                    {**each, "scheme": scheme, "width": width}
                    for each in await violations(browser, script)
                ]
        assert browser.complaints == []
        await browser.run(SPOILED)
        assert grave(await violations(browser, script)), "the rules find a picture without a text"
    return found


def test_page_of_64_islands_has_no_serious_finding(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with served(tmp_path / "run", ISLANDS, FRAGMENTS) as server:
        found = asyncio.run(judged(server, axe_script(tmp_path), tmp_path / "profile"))
    for each in found:
        print(each)
    assert grave(found) == []


async def judged_report(path: Path, script: str, profile: Path) -> list[dict[str, Any]]:
    """Return what is wrong with a report in both colour schemes."""
    found = list[dict[str, Any]]()
    async with Chromium(profile) as browser:
        await browser.open(path.as_uri())
        await browser.until("document.querySelectorAll('canvas').length", bool)
        for scheme in ("light", "dark"):
            await browser.prefers(scheme)
            found += [{**each, "scheme": scheme} for each in await violations(browser, script)]
        assert browser.complaints == []
    return found


def test_report_has_no_serious_finding(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.write_text(page_of(run_of(tmp_path / "first"), run_of(tmp_path / "second")))
    found = asyncio.run(judged_report(report, axe_script(tmp_path), tmp_path / "profile"))
    for each in found:
        print(each)
    assert grave(found) == []
