"""Runs a command that cannot outlive whoever started it: `python -m loadgen.demo.tether COMMAND ARGUMENT ...`.

It becomes the command; nothing of itself is left running. Only Linux has the means; elsewhere the command just runs.
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
