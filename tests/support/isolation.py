"""Watches what a test takes of the machine it runs on: sockets, processes, and sleep that blocks.

Tests of units, properties and simulations take none of it. Those that still do are listed in `still_taken.txt`, with
what they take; the list only becomes shorter.
"""

from __future__ import annotations

import multiprocessing.util
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
import grpc.aio

ISOLATED = ("tests/unit/", "tests/property/", "tests/simulation/")
SOCKETS, PROCESSES, TIME = "sockets", "processes", "time"
_EVENTS = {
    "socket.bind": SOCKETS,
    "socket.connect": SOCKETS,
    "socket.getaddrinfo": SOCKETS,
    "socket.gethostbyname": SOCKETS,
    "socket.sendmsg": SOCKETS,
    "socket.sendto": SOCKETS,
    "subprocess.Popen": PROCESSES,
    "os.fork": PROCESSES,
    "os.posix_spawn": PROCESSES,
    "os.system": PROCESSES,
}
"""Audit events of Python, and what a test that raises one takes."""


def _listed() -> dict[str, set[str]]:
    rows = (line.split() for line in (Path(__file__).parent / "still_taken.txt").read_text().splitlines())
    return {row[0]: set(row[1:]) for row in rows if row and row[0] != "#"}


STILL_TAKEN = _listed()
"""Kinds that files, or single tests of a file, take and should not."""


_LOOK_AT_MACHINE = {"ctypes.util", "joblib.externals.loky.backend.context", "platform"}
"""Modules of libraries that look once for the system's libraries or processors, with programs of their own."""


def _looks_at_machine() -> bool:
    """Tell if a library looks at the machine it runs on, which the first test that needs it causes, whichever it is."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") in _LOOK_AT_MACHINE:
            return True
        frame = frame.f_back
    return False


def _is_of_the_test() -> bool:
    """Tell if this is the thread that runs tests. A thread that an earlier test left behind is no doing of this one."""
    return threading.current_thread() is threading.main_thread()


class Watch:
    """Record of the kinds that a test takes while it runs. One is made, for good: an audit hook cannot be removed.

    A process that is waited for with a deadline is slept for, or not, as it ends: that is no time of the test's own.
    Sockets that gRPC opens in C raise no event; making a gRPC server counts for them. Timers of event loops are not
    watched: whether one fires before its test is over depends on how busy the machine is.
    """

    def __init__(self) -> None:
        self.taken: dict[str, str] = {}
        """Kind, and the first event of it."""
        sys.addaudithook(self._on_event)
        self._note_calls(time, "sleep", TIME)
        self._note_calls(grpc.aio, "server", SOCKETS)
        self._note_calls(grpc, "server", SOCKETS)
        self._note_calls(multiprocessing.util, "spawnv_passfds", PROCESSES)

    def _on_event(self, event: str, arguments: tuple[object, ...]) -> None:
        if (kind := _EVENTS.get(event)) is not None and _is_of_the_test() and not _looks_at_machine():
            self.taken.setdefault(kind, event)

    def _note_calls(self, owner: object, name: str, kind: str) -> None:
        act: Callable[..., Any] = getattr(owner, name)

        def note_and_act(*arguments: Any, **named: Any) -> Any:
            if _is_of_the_test() and sys._getframe(1).f_globals.get("__name__") != "subprocess":
                self.taken.setdefault(kind, f"{getattr(owner, '__name__', owner)}.{name}")
            return act(*arguments, **named)

        setattr(owner, name, note_and_act)


WATCH = Watch()


def allowed_to(nodeid: str) -> set[str] | None:
    """Kinds that a test may take; None for all, outside the folders of isolated tests."""
    if not nodeid.startswith(ISOLATED):
        return None
    file, test = nodeid.partition("::")[0], nodeid.partition("[")[0]
    return STILL_TAKEN.get(file, set()) | STILL_TAKEN.get(test, set())


def more_than_allowed(nodeid: str) -> list[str]:
    """Kinds that the running test has taken and may not take, each with its first event."""
    allowed = allowed_to(nodeid)
    if allowed is None:
        return []
    return [f"{kind} ({event})" for kind, event in sorted(WATCH.taken.items()) if kind not in allowed]
