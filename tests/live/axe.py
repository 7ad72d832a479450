"""The accessibility rules of axe-core, run in a page of a headless Chromium.

The library comes from npm at each use, and is never committed.
"""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path
from typing import Any

from tests.live.chromium import Chromium

PACKAGE = "axe-core@4.14.1"
GRAVE = ("serious", "critical")
FOUND = """
axe.run(document, {resultTypes: ['violations']}).then(found => ({
  passes: found.passes.length,
  violations: found.violations.map(each => ({
    rule: each.id, impact: each.impact, help: each.help,
    where: each.nodes.map(node => node.target.join(' ') + ': ' + node.failureSummary),
  })),
}))
"""


def axe_script(folder: Path) -> str:
    """Fetch the library into a folder, and return its script."""
    subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True)
    (packed,) = folder.glob("axe-core-*.tgz")
    with tarfile.open(packed) as files:
        found = files.extractfile("package/axe.min.js")
        assert found is not None
        return found.read().decode()


async def violations(browser: Chromium, script: str) -> list[dict[str, Any]]:
    """Return the violated rules of the page; at least ten rules must hold, so that they ran."""
    await browser.run(f"{script}; 0")
    found = await browser.run(FOUND)
    assert found["passes"] >= 10, found
    return found["violations"]


def grave(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the violations that axe calls serious or critical."""
    return [each for each in found if each["impact"] in GRAVE]
