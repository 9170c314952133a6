"""Recorded loads by short names: the lengths of their requests in recorded order, earlier ones apart from later ones.

It reads; it plays nothing. No load here was looked at while defaults were chosen: those were chosen on the paper's two
loads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from loadgen.planner.lengths import RequestShape, paired, quantiles_of, recorded
from loadgen.planner.sources import DRAWS, Source, cumulative
from loadgen.studies.recordings import MOONCAKE, SERVEGEN, SERVEGEN_SCALE, all_files
from loadgen.traces.files import Draw, TraceError, read_trace

_SEED = 1
EARLIER_SHARE = 0.4
"""Share of a load, in recorded order, by which a fleet is sized; the rest is held out."""


@dataclass(frozen=True, slots=True)
class BudgetWorkload:
    name: str
    title: str
    patterns: tuple[str, ...]
    """Files that it reads, beneath the folder of traces."""
    context_tokens: int
    """Window of a pool for all requests: the first power of two that nearly all of them fit into."""
    read: Callable[[Sequence[Path]], list[RequestShape]]
    note: str
    ttft_s: float = 2.0
    """The paper's objective; longer where prompts take longer even alone."""

    def files(self, folder: Path | None) -> list[Path] | None:
        """Files of the load; None where one is missing."""
        return all_files(folder, self.patterns)

    def shapes(self, folder: Path) -> list[RequestShape]:
        """Lengths in recorded order. Raises TraceError."""
        files = self.files(folder)
        if files is None:
            raise TraceError(f"there is no {' or no '.join(self.patterns)} in {folder}")
        return _read(self.name, tuple(files))

    def source(self, folder: Path) -> Source:
        shapes = self.shapes(folder)
        return Source(self.title, recorded(shapes), len(shapes), None, (self.note,))


@cache
def _read(name: str, files: tuple[Path, ...]) -> list[RequestShape]:
    found = WORKLOADS[name].read(files)
    return [each for each in found if each.prompt_tokens > 0 and each.output_tokens > 0]


def _from_curves(files: Sequence[Path]) -> list[RequestShape]:
    """Lengths drawn in random order, since curves have no time."""
    prompts, answers = (quantiles_of(cumulative(file)) for file in files)
    lengths = paired(prompts, answers, seed=_SEED, draws=DRAWS)
    shapes = [
        shape for shape, weight in zip(lengths.shapes, lengths.weights, strict=True) for _ in range(round(weight))
    ]
    order = sorted(range(len(shapes)), key=lambda number: (number * 7_919) % len(shapes))
    return [shapes[number] for number in order]


def _servegen(files: Sequence[Path]) -> list[RequestShape]:
    rows = read_trace(files[0], draw=Draw(files[1], _SEED, rate_scale=SERVEGEN_SCALE)).rows
    return [RequestShape(row.passage.tokens, row.output_tokens) for row in rows]


def _mooncake(files: Sequence[Path]) -> list[RequestShape]:
    rows = sorted(read_trace(files[0]).rows, key=lambda row: row.at_s)
    return [RequestShape(row.passage.tokens, row.output_tokens) for row in rows]


_INDEPENDENT = "prompts and answers are drawn independently, from Microsoft's plots: its rows were not at hand"
WORKLOADS = {
    each.name: each
    for each in (
        BudgetWorkload("azure_conv", "Azure 2024, conversation", ("azure2024_digitised/conv_input_cdf.csv",
                 "azure2024_digitised/conv_output_cdf.csv"), 16_384, _from_curves, _INDEPENDENT),
        BudgetWorkload("azure_code", "Azure 2024, code", ("azure2024_digitised/code_input_cdf.csv",
                 "azure2024_digitised/code_output_cdf.csv"), 16_384, _from_curves, _INDEPENDENT),
        BudgetWorkload("reasoning", "ServeGen, reasoning", SERVEGEN, 65_536, _servegen,
                 "prompts and answers are drawn independently within a client"),
        BudgetWorkload("mooncake", "Mooncake, conversations", (MOONCAKE,), 131_072, _mooncake,
                 "prompts are read whole; 37 % of their tokens would be in a prefix cache", 10.0),
    )
}  # fmt: skip


def present(folder: Path | None) -> list[str]:
    """Names of the loads whose files are present."""
    return [name for name, each in WORKLOADS.items() if each.files(folder) is not None]
