"""Runs a command on one core, from which it cannot stray, and which cannot outlive whoever started it.

`python -m loadgen.bench.relay.pinned CORE PARENT_PID COMMAND ARGUMENT ...`
"""

from __future__ import annotations

import os
import sys

from loadgen.demo import tether

if __name__ == "__main__":
    os.sched_setaffinity(0, {int(sys.argv[1])})
    tether.main(sys.argv[3:], int(sys.argv[2]))
