"""Run tests many times, each time in another order and under another hash seed, and list which failed how often.

`python -m tests.support.flakes --rounds 5 --busy 1 tests/integration -n 2` has one busy process beside each round; what
follows the options goes to pytest. Exit code 1 if a test failed in any round.
"""

from __future__ import annotations

import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import click

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed test of one round, with the command that runs that round's order again."""

    test: str
    message: str
    command: str


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep this many processors busy."""
    command = ["nice", "-n", "10", sys.executable, "-c", "while True: pass"]
    with ExitStack() as running:
        for _ in range(count):
            process = running.enter_context(subprocess.Popen(command))
            running.callback(process.kill)
        yield


def failures_in(report: Path, command: str) -> Iterator[Failure]:
    """Failed tests of a round's JUnit report."""
    for case in ET.parse(report).iter("testcase"):
        for found in (*case.iter("failure"), *case.iter("error")):
            message = (found.get("message") or "").partition("\n")[0]
            yield Failure(f"{case.get('file')}::{case.get('name')}", message, command)


def run_once(seed: int, arguments: tuple[str, ...]) -> list[Failure]:
    """Run the tests in the order of this seed and return what failed. A run that ends without a report is a failure."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        order = ["-q", "-p", "no:cacheprovider", "--random-order", f"--random-order-seed={seed}"]
        command = ["-m", "pytest", *order, *arguments]
        written = ["-o", "junit_family=xunit1", f"--junitxml={report}"]
        told = f"PYTHONHASHSEED={seed} python {shlex.join(command)}"
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}  # noqa: TID251 - pytest inherits ours
        done = subprocess.run(
            [sys.executable, *command, *written], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        if not report.exists():
            return [Failure("pytest", f"exit code {done.returncode}: {(done.stdout + done.stderr)[-2_000:]}", told)]
        failures = list(failures_in(report, told))
        if done.returncode and not failures:
            failures.append(Failure("pytest", f"exit code {done.returncode}: {done.stdout[-2_000:]}", told))
        return failures


def told(failures: list[Failure], rounds: int) -> Iterator[str]:
    """Lines that list each failed test, how often it failed, why and how to run it again."""
    by_test = defaultdict[str, list[Failure]](list)
    for failure in failures:
        by_test[failure.test].append(failure)
    for test, each in sorted(by_test.items(), key=lambda item: -len(item[1])):
        yield f"{len(each)} of {rounds}: {test}"
        yield from (f"    {message}" for message in sorted({failure.message for failure in each}))
        yield f"    {each[0].command}"


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--rounds", type=click.IntRange(1), default=10, show_default=True)
@click.option("--busy", type=click.IntRange(0), default=0, help="Busy processes beside each round.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(rounds: int, busy: int, arguments: tuple[str, ...]) -> None:
    failures = list[Failure]()
    with busy_processes(busy):
        for number in range(1, rounds + 1):
            seed, started = random.SystemRandom().randrange(2**32), time.monotonic()  # noqa: TID251 - new at each call
            found = run_once(seed, arguments)
            failures += found
            click.echo(f"round {number}: seed {seed}, {len(found)} failed, {time.monotonic() - started:.0f} s")  # noqa: TID251
    click.echo("\n".join(told(failures, rounds)) or f"Nothing failed in {rounds} rounds.")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
