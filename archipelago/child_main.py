"""The process of a run that `Run.start` has started: `python -m archipelago.child_main`.

The first line of standard input is the order: what to run, and where. Each later line is a request,
and each line of standard output is a reply, both in JSON. The run ends with its owner, the process
that started it: gracefully if there is time, and in any case within `ORPHAN_S` and `CLEAN_UP_S`.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
import tomllib
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from cluster.launch.interrupts import Interrupts
from cluster.names import FLEET, namespace_of
from cluster.status import RunStatus
from cluster.storage.files import json_text
from coordinator.errors import ArchipelagoError, RunFailed, UserMistake
from islands.user_lines import line_in

log = logging.getLogger("archipelago")
ORPHAN_S = 60.0
"""Seconds that a run has for its graceful end when its owner has died."""
CLEAN_UP_S = 30.0
"""Seconds that the clean-up has after that, before the process ends at once."""
LOOK_S = 0.5
"""Seconds between two looks for the owner."""
MOST_MESSAGE = 16_384
"""The most characters of a message: a pipe holds as many without a reader."""
BY_OWNER = "the program that started it"
"""The source of a request to stop, as a status and the summary show it."""


def main() -> None:
    """Run what the first line of standard input orders, and end with an exit code."""
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # libraries that print do not spoil the replies
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")
    code = BackgroundRun(json.loads(requests.readline()), requests, replies).run()
    replies.close()
    sys.stderr.flush()
    os._exit(code)  # the thread that waits for requests would hold up the interpreter's end


class BackgroundRun:
    """A run in this process, with the pipes to its owner."""

    def __init__(self, order: dict[str, Any], requests: IO[str], replies: IO[str]) -> None:
        """Prepare the run of this order."""
        self._order, self._requests, self._replies = order, requests, replies
        self._interrupts, self._orphaned = Interrupts(), threading.Event()
        self._write_lock = threading.Lock()

    def run(self) -> int:
        """Train to the end, send how it ended to the owner, and return the exit code."""
        ending, code = {"ending": "finished"}, 0
        try:
            with self._interrupts:
                for work in (self._serve, self._watch_owner):
                    threading.Thread(target=work, daemon=True).start()
                self._train()
        except UserMistake as error:
            ending, code = {"ending": "mistake", "message": str(error)}, 2
        except ArchipelagoError as error:
            ending, code = {"ending": "failed", "message": str(error)}, 1
        except KeyboardInterrupt:
            ending, code = {"ending": "failed", "message": "it was interrupted"}, 130
        except Exception as error:
            log.exception("the run has ended with an error of its own")
            ending, code = {"ending": "failed", "message": f"{line_in(error)}{error!r}"}, 1
        self._reply({**ending, "message": ending.get("message", "")[:MOST_MESSAGE]})
        return code

    def _train(self) -> None:
        from cluster.config.load import draft
        from cluster.launch.preflight import enter
        from cluster.launch.run import run

        order, resumes = self._order, bool(self._order["resume"])
        checked = draft(tomllib.loads(order["config"]), origin=order["origin"])
        now, run_dir = datetime.now().astimezone(), Path(order["run_dir"])
        config, run_dir, layout = enter(
            checked, Path(order["origin"]), run_dir, now, resume=resumes, owned=True
        )
        if self._interrupts.asked is not None:
            raise RunFailed("it was stopped before it began")
        run(
            config,
            run_dir,
            layout,
            address=order["address"],
            show=_ignore,
            interrupts=self._interrupts,
            resumes=resumes,
            from_stored=bool(order["from_stored"]),
            from_step=order["from_step"],
        )

    def _serve(self) -> None:
        """Answer requests until the owner closes the pipe, each on a thread of its own."""
        for line in self._requests:
            request = json.loads(line)
            match request["call"]:
                case "stop":
                    self._stop(BY_OWNER)
                case "end":
                    self._end_now()
                case _:
                    threading.Thread(target=self._answer, args=(request,), daemon=True).start()
        self._end_as_orphan()

    def _answer(self, request: dict[str, Any]) -> None:
        reply: dict[str, Any] = {"id": request["id"]}
        try:
            reply["value"] = self._ask_fleet(request["call"], request["arguments"])
        except ArchipelagoError as error:
            reply["mistake"] = str(error)[:MOST_MESSAGE]
        except Exception as error:  # noqa: BLE001 - the owner waits for a reply in any case
            reply["mistake"] = repr(error)[:MOST_MESSAGE]
        self._reply(reply)

    def _ask_fleet(self, call: str, arguments: list[Any]) -> Any:
        """Call a method of the run's fleet, and return the answer.

        Errors: `UserMistake` if the fleet is not there, or refuses.
        """
        import ray

        from cluster.launch.client import asking

        name = Path(self._order["run_dir"]).name
        if not ray.is_initialized():  # otherwise Ray would start another cluster here
            raise UserMistake(f"run {name} is starting or ending, and takes no request now")
        try:
            fleet = ray.get_actor(FLEET, namespace=namespace_of(name))
        except ValueError as error:
            raise UserMistake(f"run {name} is starting or ending, and takes no request") from error
        within_s: dict[str, Any] = {"within_s": None} if call == "save" else {}
        return asking(fleet, **within_s)(lambda actor: getattr(actor, call).remote(*arguments))

    def _reply(self, reply: dict[str, Any]) -> None:
        try:
            with self._write_lock:
                self._replies.write(json_text(reply) + "\n")
        except (BrokenPipeError, ValueError):  # the owner is gone
            pass

    def _watch_owner(self) -> None:
        """End the run when the owner is gone; forks of it may still hold the pipe open."""
        while os.getppid() == self._order["owner"]:
            time.sleep(LOOK_S)
        self._end_as_orphan()

    def _end_as_orphan(self) -> None:
        """Stop gracefully, then end the run, then end the process; each after its time."""
        if self._orphaned.is_set():
            return
        self._orphaned.set()
        self._stop("the end of the program that started it")
        threading.Timer(ORPHAN_S, self._end_now).start()
        threading.Timer(ORPHAN_S + CLEAN_UP_S, os._exit, (1,)).start()

    def _stop(self, asked: str) -> None:
        if self._interrupts.asked is None:
            self._interrupts.asked = asked

    def _end_now(self) -> None:
        """Interrupt the main thread, which then only cleans up."""
        self._stop(BY_OWNER)
        os.kill(os.getpid(), signal.SIGINT)


def _ignore(status: RunStatus) -> None:
    """Do nothing with the status; the owner reads it from the run's files."""


if __name__ == "__main__":
    main()
