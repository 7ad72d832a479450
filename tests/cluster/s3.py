"""An S3 server on the loopback interface: moto's server, in this process."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

import pytest

BUCKET = "islands"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "someone",
    "AWS_SECRET_ACCESS_KEY": "a-secret-of-this-test",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def served() -> Generator[str]:
    """Serve an empty bucket, and yield its URI."""
    from moto.server import ThreadedMotoServer
    from pyarrow.fs import FileSystem

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # otherwise it logs every request
    server.start()
    _, port = server.get_host_and_port()
    where = f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in CREDENTIALS.items():
                patch.setenv(name, value)
            mine, _ = FileSystem.from_uri(f"s3://{BUCKET}?allow_bucket_creation=true&{where}")
            mine.create_dir(BUCKET)
            yield f"s3://{BUCKET}/runs?{where}"
    finally:
        server.stop()
