"""Runs a page of commands as a reader would: its blocks in order, in one shell, each compared to the output shown below
it.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
_PORT = re.compile(r"(127\.0\.0\.1:|localhost:|--port )(\d{4})\b")
_MARK = "--- block {} ---"
_NOTICE_OF_KILL = re.compile(r"^\w+: line \d+: +\d+ Killed .*\n", flags=re.MULTILINE)
"""Notice of a shell about a background process that was killed. The shell writes it whenever it reaps the process, so
its place among the lines of later commands varies.
"""
_TIME_MAX_S = 240
"""Seconds, less than a test's time-out: the output up to then shows where the page hangs."""


@dataclass(frozen=True, slots=True)
class Block:
    commands: str
    shown: str | None
    """Output as the page shows it; … stands for any text, even for whole lines."""


def blocks_of(page: str) -> list[Block]:
    """Blocks that readers run: each `sh` block, with the `text` block directly behind it. Other blocks are only
    read."""
    fences = _FENCE.findall(page)
    return [
        Block(text, fences[index + 1][1] if fences[index + 1 : index + 2] and fences[index + 1][0] == "text" else None)
        for index, (language, text) in enumerate(fences)
        if language == "sh"
    ]


def on_free_ports(page: str, free_port: Callable[[], int]) -> str:
    """The same page with free ports in place of its own."""
    ports = {port: str(free_port()) for port in sorted({port for _, port in _PORT.findall(page)})}
    return _PORT.sub(lambda found: found[1] + ports[found[2]], page)


def is_as_shown(printed: str, shown: str) -> bool:
    """True if the output is as shown, apart from trailing blanks and empty lines."""
    lines = [line.rstrip() for line in shown.splitlines() if line.strip()]
    wanted = "".join("(?:.*\n)*" if line == "…" else _line(line) for line in lines)
    said = "".join(f"{line.rstrip()}\n" for line in printed.splitlines() if line.strip())
    return re.fullmatch(wanted, said) is not None


def _line(shown: str) -> str:
    return ".*".join(re.escape(part) for part in re.split(r" ?… ?", shown)) + "\n"


async def run(blocks: Sequence[Block], folder: Path, time_max_s: float = _TIME_MAX_S) -> list[str]:
    """Run the blocks; returns the output of each, without the shell's notices of killed processes. Raises
    AssertionError with the whole output if a command failed. All processes that were started are ended.
    """
    script = "set -eu\n" + "\n".join(
        f"echo '{_MARK.format(number)}'\n{block.commands}" for number, block in enumerate(blocks)
    )
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    (bin_folder / "nightside").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m nightside "$@"\n')
    (bin_folder / "nightside").chmod(0o755)
    environment = {
        "REPO": str(ROOT),
        "PATH": f"{bin_folder}:{os.defpath}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
    }
    log = folder / "walk.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", script),
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    status: int | None = None
    try:
        async with asyncio.timeout(time_max_s):
            status = await process.wait()
    except TimeoutError:
        pass
    finally:
        _end(process.pid)
        await process.wait()
    printed = log.read_text()
    assert status == 0, f"{'ran out of time' if status is None else f'ended with {status}'} after this:\n{printed}"
    parts = re.split(r"^--- block \d+ ---", _NOTICE_OF_KILL.sub("", printed), flags=re.MULTILINE)
    return [part.partition("\n")[2] for part in parts][1:]


def _end(group: int) -> None:
    """Kill the shell and all that it started, which are one process group."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
