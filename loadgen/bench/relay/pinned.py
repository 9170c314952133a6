"""Runs a command pinned to one core, ended with its parent process.

`python -m loadgen.bench.relay.pinned CORE PARENT_PID COMMAND ARGUMENT ...`
"""

from __future__ import annotations

import os
import sys

from loadgen.demo import bound_to_parent

if __name__ == "__main__":
    os.sched_setaffinity(0, {int(sys.argv[1])})
    bound_to_parent.main(sys.argv[3:], int(sys.argv[2]))
