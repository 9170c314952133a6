"""Draws mutants of the cores and of a request's life at random, and verifies that unit tests catch nine in ten.

mutmut makes the mutants, knows which tests call the changed function, and runs these until one fails, each mutant in a
process with limits of CPU time and of real time; its settings stand in pyproject.toml. A mutant that runs out of time
counts as caught only if it does so twice, as a busy machine makes tests slow as well. Runs in .venv-mutants, on a copy
of the code in build/random-mutants, one run at a time. Exit code 1 if too few are caught.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import click
from mutmut.__main__ import cli, collect_source_file_mutation_data, create_mutants
from mutmut.mutation.data import MutantLineSpans, SourceFileMutationData
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import copy_also_copy_files, copy_src_dir, walk_mutatable_files
from mutmut.utils.format_utils import get_mutant_name

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "build/random-mutants"
CAUGHT_MIN = 0.9
OUT_OF_TIME = "timeout"
CAUGHT = {"killed", OUT_OF_TIME}
LISTED = re.compile(r"mutants_\w+\['(\w+)'\] = ")
"""Line that names a mutant to the wrapper of its function."""


def enter_place() -> None:
    """Go to an empty folder that shows the repository: mutmut reads it there, and writes beside it."""
    shutil.rmtree(PLACE, ignore_errors=True)
    Path(PLACE, "mutants").mkdir(parents=True)
    os.chdir(PLACE)
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and path.name != "build":
            Path(path.name).symlink_to(path)


def names_of_all() -> list[str]:
    """Make every mutant, and name each."""
    copy_src_dir()
    copy_also_copy_files()
    create_mutants(1)
    mutants, _ = collect_source_file_mutation_data(mutant_names=[])
    return sorted(name for _, name, _ in mutants)


def leave_out_all_but(drawn: set[str]) -> None:
    """Take other mutants out of the code and of mutmut's books: each is a copy of its function, and all of them take
    minutes to load.
    """
    for path in walk_mutatable_files():
        books, index = SourceFileMutationData(path=path), MutantLineSpans.load(path)
        books.load()
        books.exit_code_by_key = dict.fromkeys(drawn & books.exit_code_by_key.keys())
        books.save()
        assert index is not None, path
        spans = index.span_by_function_name
        copies = {name for name in spans if not name.endswith("_orig") and get_mutant_name(path, name) not in drawn}
        left_out = {line for name in copies for line in range(spans[name].start, spans[name].end + 1)}
        lines = enumerate(index.mutants_path.read_text().splitlines(keepends=True), 1)
        kept = (line for number, line in lines if number not in left_out)
        code = "".join(line for line in kept if not (match := LISTED.match(line)) or match[1] not in copies)
        index.mutants_path.write_text(code)
        index.index_path.unlink()


def statuses() -> dict[str, str]:
    """Status of each mutant, as mutmut's books have it by now."""
    mutants, _ = collect_source_file_mutation_data(mutant_names=[])
    return {name: status_by_exit_code[code] for _, name, code in mutants}


def run_again(names: list[str]) -> None:
    """Run mutants that ran out of time once more: their first results are replaced."""
    click.echo("Out of time, and run once more:\n    " + "\n    ".join(names))
    subprocess.run([sys.executable, "-m", "mutmut", "run", "--max-children", "1", *names], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw mutants at random and run the unit tests on each.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--names", nargs="*", help="these mutants instead of drawn ones")
    args = parser.parse_args()
    enter_place()
    names = names_of_all()
    if unknown := set(args.names or ()).difference(names):
        parser.error(f"no mutant is called {', '.join(sorted(unknown))}")
    drawn = set(args.names or random.Random(args.seed).sample(names, args.count))
    leave_out_all_but(drawn)
    cli(["run", "--max-children", "1"], standalone_mode=False)

    if out_of_time := sorted(name for name, status in statuses().items() if status == OUT_OF_TIME):
        run_again(out_of_time)
    found = statuses()
    status_by_name = {name: found.get(name, "not checked") for name in drawn}
    left = {name for name, status in status_by_name.items() if status not in CAUGHT}
    for name in sorted(left):
        subprocess.run([sys.executable, "-m", "mutmut", "show", name])
    click.echo(f"{len(drawn)} of {len(names)} mutants, seed {args.seed}: {dict(Counter(status_by_name.values()))}")
    return int(len(drawn) - len(left) < CAUGHT_MIN * len(drawn))


if __name__ == "__main__":
    sys.exit(main())
