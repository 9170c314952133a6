"""Times decisions of one core, compiled or plain, in a process of its own, since a process loads a module only once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from loadgen.bench.decode.child import import_sources_only

_ROOT = Path(__file__).parents[3]


def main(kind: str, workers: int, rounds: int) -> None:
    if kind == "plain":
        import_sources_only(_ROOT / "gateway", _ROOT / "loadgen", _ROOT / "mesh")
    from loadgen.studies.eldr.decision_costs import decision_costs  # noqa: PLC0415 - after the choice above

    print(json.dumps(decision_costs(workers, rounds)))  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
