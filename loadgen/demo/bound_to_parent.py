"""Runs a command that ends with its parent process, as `python -m loadgen.demo.bound_to_parent PARENT_PID COMMAND ...`.

It becomes the command by exec, so no process of its own remains. On Linux the kernel sends SIGTERM when the parent
dies; elsewhere the command is run without that. The command is not run if PARENT_PID is not the parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(command: list[str], parent_pid: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == parent_pid:
        os.execv(command[0], command)  # noqa: S606 - a shell would be one process more


if __name__ == "__main__":
    main(sys.argv[2:], int(sys.argv[1]))
