"""Draws mutants of the cores and of a request's life at random, and runs tests on each until one fails: those of its
module, then those of its package and of modules that name its module, then a few of its area.

All are drawn with equal chances. Tests run in a copy of the tree, one process at a time, with limits of CPU time and
memory; a mutant that reaches one is caught. In the end, each test that caught one has to pass without it.

Exit code 1 if fewer than nine in ten are caught, 2 if such a test fails.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from difflib import unified_diff
from importlib.util import cache_from_source
from pathlib import Path

import click

from tests.mutants import sites
from tests.mutants.rounds import AREAS, CPU_S, first_failure, rounds_of

ROOT = Path(__file__).parents[2]
CAUGHT_MIN = 0.9
LEFT_OUT = (".*", "build", "dist", "out", "node_modules", "__pycache__", "*.egg-info")


def change_of(name: str) -> str:
    """Lines that the mutant changes, as diff shows them."""
    path, _, number = name.partition("#")
    code = (ROOT / path).read_text()
    lines = unified_diff(code.splitlines(), sites.mutated(code, int(number)).splitlines(), lineterm="", n=0)
    return "\n".join(list(lines)[2:])


def caught_by(tree: Path, name: str, number: int) -> str:
    """Put a mutant into the tree, run the round of this number, and restore the module."""
    path, _, of_module = name.partition("#")
    module = tree / path
    code = module.read_text()
    cached = Path(cache_from_source(str(module)))  # tells versions apart by size and second
    try:
        module.write_text(sites.mutated(code, int(of_module)))
        cached.unlink(missing_ok=True)
        files = list(rounds_of(path, ROOT))[number]
        return first_failure(tree, files, CPU_S[number]) if files else ""
    finally:
        module.write_text(code)
        cached.unlink(missing_ok=True)


def all_names() -> list[str]:
    """Name every mutant there is."""
    paths = sorted(str(path.relative_to(ROOT)) for folder in AREAS for path in (ROOT / folder).rglob("*.py"))
    return [f"{path}#{number}" for path in paths for number in range(sites.count((ROOT / path).read_text()))]


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw mutants at random and run tests on each until one fails.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200, help="mutants to draw")
    parser.add_argument("--skip", type=int, default=0, help="leave out the first of them, which ran before")
    parser.add_argument(
        "--names",
        nargs="*",
        help="run these mutants instead, each a module and the number of its mutant: gateway/core/nearness.py#3",
    )
    parser.add_argument("--json", type=Path, help="write which test caught each mutant to this file")
    args = parser.parse_args()
    names = args.names or random.Random(args.seed).sample(all_names(), args.count)[args.skip :]
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*LEFT_OUT))
        for number in range(len(CPU_S)):
            left = [name for name in names if not found.get(name)]
            for position, name in enumerate(left, 1):
                found[name] = caught_by(tree, name, number)
                click.echo(f"round {number + 1}, {position}/{len(left)} {name}: {found[name] or 'passes'}")
                if args.json:
                    args.json.write_text(json.dumps(found, indent=1) + "\n")
        finders = sorted({test.partition("[")[0] for test in found.values() if "test_" in test})
        if finders and (failed := first_failure(tree, finders, sum(CPU_S))):
            parser.error(f"fails without a mutant, too: {failed}")
    survivors = [name for name, test in found.items() if not test]
    caught = len(found) - len(survivors)
    for name in survivors:
        click.echo(f"\n{name} survived:\n{change_of(name)}")
    click.echo(f"Seed {args.seed}: {caught} of {len(found)} caught.")
    return int(caught < CAUGHT_MIN * len(found))


if __name__ == "__main__":
    sys.exit(main())
