"""Server that has imported what `nightside` imports, and forks for each start of it: `tests.support.programs` has it
start children. The imports take a second of a gateway's start.

It makes no thread, no event loop and nothing of gRPC before it forks.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

import nightside
from mesh.environment import keep_grpc_quiet

MESSAGE_BYTES_MAX = 1 << 20
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of `sys/prctl.h`
_LOADED = (
    "gateway.app.audit_cli",
    "gateway.app.drain_cli",
    "gateway.app.explain_cli",
    "gateway.app.serving_cli",
    "gateway.app.status_cli",
    "gateway.records.journal_cli",
    "controller.commands",
    "controller.ctl.commands",
)
"""Modules that the server imports ahead of its children: those of the commands that tests start most."""


class _Server:
    """Forks a child for each message, and reports how each has ended, until the other side has gone."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, tuple[int, int]] = {}
        """Pid of each child, and where its end is reported, by the descriptor that tells of it."""
        self._events = select.poll()
        self._events.register(control, select.POLLIN)

    def serve(self) -> list[str] | None:
        """Arguments of a child, in that child; None in the server, at its end."""
        while True:
            for ready, _ in self._events.poll():
                if ready in self._children:
                    self._report(ready)
                    continue
                message, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES_MAX, 3)
                if not message:
                    return None
                if (pid := os.fork()) == 0:
                    return self._become_child(json.loads(message), *descriptors)
                self._follow(pid, *descriptors)

    def _follow(self, pid: int, out: int, err: int, status: int) -> None:
        os.close(out)
        os.close(err)
        handle = os.pidfd_open(pid)
        self._children[handle] = (pid, status)
        self._events.register(handle, select.POLLIN)
        self._control.send(b"%d" % pid)

    def _report(self, handle: int) -> None:
        pid, status = self._children.pop(handle)
        self._events.unregister(handle)
        os.close(handle)
        with os.fdopen(status, "wb") as to, suppress(BrokenPipeError):  # a test that is over waits for no child
            to.write(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def _become_child(self, message: dict[str, Any], out: int, err: int, status: int) -> list[str]:
        """Take the place of a process that was just started, which has no descriptors but the first three."""
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(out, 1)
        os.dup2(err, 2)
        self._control.close()
        for each in (out, err, status, *self._children, *(status for _, status in self._children.values())):
            os.close(each)
        environ = os.environ  # noqa: TID251 - a started process is given one
        environ.clear()
        environ.update(message["environ"])
        arguments: list[str] = message["arguments"]
        return arguments


def _run(control: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to tests and server alike
    keep_grpc_quiet()
    gc.disable()
    for name in _LOADED:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    if (arguments := _Server(control).serve()) is not None:
        sys.argv = [str(nightside.__file__), *arguments]
        nightside.main(arguments, prog_name="nightside")


if __name__ == "__main__":
    _run(socket.socket(fileno=int(sys.argv[1])))
