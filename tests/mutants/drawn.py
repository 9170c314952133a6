"""Draws mutants of the cores and of a request's life at random, and runs tests on each until one fails: those of its
module, then those of its package and of modules that name its module, then a few of its area.

All are drawn with equal chances. Tests run in a copy of the tree, one process at a time, with limits of CPU time and
memory; a mutant that reaches one is caught. In the end, each test that caught one has to pass without it.

Exit code 1 if fewer than nine in ten are caught.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from difflib import unified_diff
from importlib.util import cache_from_source
from pathlib import Path

import click

from tests.mutants import sites
from tests.mutants.rounds import AREAS, CPU_S, first_failure, rounds_of

ROOT = Path(__file__).parents[2]
CAUGHT_MIN = 0.9
LEFT_OUT = (".*", "build", "dist", "out", "node_modules", "__pycache__", "*.egg-info")


@dataclass(slots=True)
class DrawnFate:
    """A mutant, and what has become of it so far."""

    name: str
    """Path of its module, and its number there."""
    rounds: int = 0
    """Rounds that ran."""
    caught_by: str = ""
    """Test that failed, or limit that was reached."""


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


def run_rounds(fates: list[DrawnFate], tree: Path, keep: Callable[[], object]) -> None:
    """Run each round on all mutants that are still left, and then the tests that caught one without any mutant.

    Raises AssertionError if one of these fails.
    """
    for number in range(len(CPU_S)):
        left = [fate for fate in fates if not fate.caught_by and fate.rounds == number]
        for position, fate in enumerate(left, 1):
            fate.caught_by = caught_by(tree, fate.name, number)
            fate.rounds += 1
            click.echo(f"round {number + 1}, {position}/{len(left)} {fate.name}: {fate.caught_by or 'passes'}")
            keep()
    finders = sorted({fate.caught_by.partition("[")[0] for fate in fates if "test_" in fate.caught_by})
    failed = first_failure(tree, finders, sum(CPU_S)) if finders else ""
    assert not failed, f"without a mutant, {failed} fails, too"


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw mutants at random and run tests on each until one fails.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200, help="mutants to draw")
    parser.add_argument("--names", nargs="*", help="mutants to run instead, such as gateway/core/nearness.py#3")
    parser.add_argument("--json", type=Path, help="file of what became of each; one that is there is continued")
    args = parser.parse_args()
    if args.json and args.json.exists():
        found = [DrawnFate(**each) for each in json.loads(args.json.read_text())]
    else:
        found = [DrawnFate(name) for name in args.names or random.Random(args.seed).sample(all_names(), args.count)]

    def keep() -> None:
        if args.json:
            args.json.write_text(json.dumps([asdict(fate) for fate in found], indent=1) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*LEFT_OUT))
        run_rounds(found, tree, keep)
    survivors = [fate.name for fate in found if not fate.caught_by]
    for name in survivors:
        click.echo(f"\n{name} survived:\n{change_of(name)}")
    click.echo(f"{len(found) - len(survivors)} of {len(found)} mutants are caught.")
    return int(len(survivors) > (1 - CAUGHT_MIN) * len(found))


if __name__ == "__main__":
    sys.exit(main())
