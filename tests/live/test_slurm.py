"""A real Slurm of one node runs the batch file, and resumes the run after a requeue.

Slurm and Ray are in namespaces of their own, because `ray symmetric-run` ends every Ray process
that it sees. A batch file that began a new run after the requeue, or ended the first one, would not
reach the end: the run directory is not empty, or the run is over.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
[run]
steps = 60
[task]
preset = "byte-tiny"
[data]
window = 32
lease_windows = 64
[optimizer]
warmup_steps = 4
[[islands]]
batch_size = 4
resources = {CPU = 0.5}
step_s = 0.5
"""


@pytest.mark.live
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.needs("slurmctld", "slurmd", "munged", "sbatch", "unshare", "ip")
def test_a_job_of_slurm_trains_and_resumes_after_a_requeue() -> None:
    with TemporaryDirectory(prefix="al-slurm-") as folder:
        place = Path(folder)
        (place / "job.toml").write_text(CONFIG)
        manifest = [sys.executable, "-m", "archipelago", "manifest", "slurm", "job.toml"]
        command = [*manifest, "--out", "job"]
        subprocess.run(command, cwd=place, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        apart = ["unshare", "--pid", "--fork", "--mount-proc", "--net", "--kill-child"]
        script = [ROOT / "tests" / "live" / "slurm.sh", place / "slurm", place / "job"]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            [*apart, *script],
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        logs = "".join(each.read_text() for each in (place / "job").glob("*.log"))
        assert done.returncode == 0, done.stdout + done.stderr + logs[-4000:]
        assert "JobState=COMPLETED" in done.stdout, logs[-4000:]
        assert "Restarts=1" in done.stdout
        (run_dir,) = (place / "job" / "runs").iterdir()
        summary = json.loads((run_dir / "summary.json").read_text())
        assert summary["merges"] > 0
        assert (run_dir / "owner-2.json").exists(), "a second fleet resumed the run"
