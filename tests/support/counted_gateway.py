"""Runs a gateway that counts its objects at each SIGUSR1, for tests that look for leaks from outside.

`python -m tests.support.counted_gateway REGION_FILE CENSUS_FILE`. The gateway itself is unchanged.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import signal
import sys
from collections import Counter
from pathlib import Path

from nightside import main


def census() -> dict[str, object]:
    """Counts of this process after a garbage collection."""
    gc.collect()
    kinds = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
    return {
        "tasks": len(asyncio.all_tasks(asyncio.get_running_loop())),
        "open_files": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "resident_bytes": int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize(),
        "objects": kinds.total(),
        "ours": {kind: count for kind, count in kinds.items() if kind.startswith(("gateway.", "protos."))},
    }


def run(region_file: str, census_file: str) -> None:
    path = Path(census_file)

    def on_signal(*_: object) -> None:
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(census()))
        fresh.replace(path)

    signal.signal(signal.SIGUSR1, on_signal)
    main(["gateway", "run", region_file], prog_name="nightside")


if __name__ == "__main__":
    run(*sys.argv[1:])
