"""Ray's messages about the cluster go to the standard error."""

from __future__ import annotations

import pytest
from ray._private import worker

from cluster.launch.ray_messages import messages_to_stderr


def test_message_of_the_cluster_is_not_on_the_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "print_to_stdstream", worker.print_to_stdstream)
    message = {"lines": ["The node was marked dead."], "pid": "raylet", "is_err": False}
    worker.print_to_stdstream(dict(message), ignore_prefix=False)
    assert "marked dead" in capsys.readouterr().out, "so Ray does by itself"
    messages_to_stderr()
    messages_to_stderr()
    worker.print_to_stdstream(message | {"lines": ["Another one was."]}, ignore_prefix=False)
    out, err = capsys.readouterr()
    assert (out, err.count("Another one")) == ("", 1)
