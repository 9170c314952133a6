"""Shows the progress of a live run: a live table on a terminal, a line at intervals elsewhere. It only reads."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gateway.core.vocabulary import RegionName
from loadgen.live_runner import ClientTally, LiveRunner
from loadgen.machine import CpuSampler

_TERMINAL_INTERVAL_S = 0.5
_LINE_INTERVAL_S = 5.0
_RATE_WINDOW_S = 3.0


@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    tokens: dict[RegionName, int]


class Screen:
    """Progress display of one run."""

    def __init__(self, console: Console, title: str, runner: LiveRunner, cpu: CpuSampler) -> None:
        self._console = console
        self._title = title
        self._runner = runner
        self._cpu = cpu
        self._interval_s = _TERMINAL_INTERVAL_S if console.is_terminal else _LINE_INTERVAL_S
        self._samples: deque[_Sample] = deque(maxlen=1 + max(1, round(_RATE_WINDOW_S / self._interval_s)))

    async def run(self) -> None:
        """Update the display until cancelled."""
        if not self._console.is_terminal:
            await self._print_lines()
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while True:
                self._sample()
                live.update(self._table(), refresh=True)
                await asyncio.sleep(self._interval_s)

    async def _print_lines(self) -> None:
        while True:
            self._sample()
            self._console.print(Text(self._line()), soft_wrap=True)
            await asyncio.sleep(self._interval_s)

    def _sample(self) -> None:
        tokens = {region: tally.tokens for region, tally in self._runner.tallies.items()}
        self._samples.append(_Sample(asyncio.get_running_loop().time(), tokens))

    def _rate(self, region: RegionName) -> float:
        first, last = self._samples[0], self._samples[-1]
        elapsed_s = last.at_s - first.at_s
        return (last.tokens[region] - first.tokens[region]) / elapsed_s if elapsed_s > 0 else 0.0

    def _table(self) -> RenderableType:
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for heading in ("", "done", "errors", "waiting", "streaming", "tokens/s", "forwarded"):
            table.add_column(
                heading, justify="right" if heading else "left", min_width=len("ap-northeast-1") * (not heading)
            )
        for region, tally in self._runner.tallies.items():
            table.add_row(region, *self._cells(region, tally))
        return Group(Text(f"{self._title}  {self._clock()}", style="bold"), self._bar(), table)

    def _cells(self, region: RegionName, tally: ClientTally) -> list[str]:
        return [
            str(tally.completed),
            str(tally.failed),
            str(tally.waiting),
            str(tally.streaming),
            f"{self._rate(region):.0f}",
            f"{tally.forwarded / tally.answered:.0%}" if tally.answered else "–",
        ]

    def _bar(self) -> ProgressBar:
        return ProgressBar(total=self._runner.planned_load_s, completed=self._runner.load_s, width=60)

    def _clock(self) -> str:
        share = self._cpu.latest_share
        cpu = "" if share is None else f"  CPU {share:.0%}"
        sent_s, planned_s = self._runner.load_s, self._runner.planned_load_s
        last = "  no more is sent, what runs may finish" if sent_s >= planned_s else ""
        return f"{sent_s:.0f} of {planned_s:.0f} s{cpu}{last}"

    def _line(self) -> str:
        regions = (
            f"{region} {tally.completed} done {tally.waiting} waiting {tally.forwarded} forwarded"
            for region, tally in self._runner.tallies.items()
        )
        return f"{self._title}  {self._clock()}  {' | '.join(regions)}"
