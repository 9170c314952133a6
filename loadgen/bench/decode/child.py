"""Measures one of two variants that take turns: the core as it is compiled, or the same sources, uncompiled.

Each runs in a process of its own, since one process loads a module only once. It reads cells, a line of JSON each, and
answers with the times of each tick.
"""

from __future__ import annotations

import json
import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path

_ROOT = Path(__file__).parents[3]


def import_sources_only(*roots: Path) -> None:
    """Make later imports below these folders read the source files, even beside a compiled module."""
    finder = FileFinder.path_hook((SourceFileLoader, SOURCE_SUFFIXES))

    def below_roots(path: str) -> object:
        if not any(Path(path).is_relative_to(root) for root in roots):
            raise ImportError(path)
        return finder(path)

    sys.path_hooks.insert(0, below_roots)  # type: ignore[arg-type]
    sys.path_importer_cache.clear()


def main(kind: str) -> None:
    if kind == "plain":
        import_sources_only(_ROOT / "gateway", _ROOT / "loadgen", _ROOT / "mesh")
    from loadgen.bench.decode.ticks import Backlog  # noqa: PLC0415 - after the choice of sources above

    backlogs: dict[str, Backlog] = {}
    for line in sys.stdin:
        cell = json.loads(line)
        if line not in backlogs:
            backlogs.clear()
            backlogs[line] = Backlog(cell["policy"], cell["workers"], cell["waiting"], cell["free_slots"])
            for _ in range(cell["ticks"] // 4):
                backlogs[line].tick()
        sys.stdout.write(json.dumps([backlogs[line].tick() for _ in range(cell["ticks"])]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
