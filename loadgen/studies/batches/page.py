"""Page of batches: figures of large files, and of streams beside a backlog. Every figure is measured elsewhere; no aim
that was missed is called met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from loadgen.report import quantile
from loadgen.studies.batches import beside
from loadgen.studies.batches.beside import Beside
from loadgen.studies.batches.large_file import LargeFileRun
from loadgen.studies.rendering import render

PEAK_MAX_MIB = 512
RATE_SHARE_MIN = 0.7
LATER_MAX = 1.03
_P50, _P99 = 0.5, 0.99


def page_of(large: LargeFileRun, killed: LargeFileRun, windows: Sequence[Beside], machine: Mapping[str, object]) -> str:
    without = [each for each in windows if not each.has_backlog]
    with_backlog = [each for each in windows if each.has_backlog]
    pairs = list(zip(without, with_backlog, strict=True))
    ratios = {
        share: [_first(behind, share) / _first(alone, share) for alone, behind in pairs] for share in (_P50, _P99)
    }
    return render(
        "batches/page.j2", machine=machine, large=large, killed=killed, pairs=pairs, ratios=ratios, first=_first,
        beside=beside, p50=_P50, p99=_P99, median=median, judged=_judged(large, killed, ratios[_P99]),
    )  # fmt: skip


def _first(window: Beside, share: float) -> float:
    return quantile(window.first_s, share)


def _judged(large: LargeFileRun, killed: LargeFileRun, later: Sequence[float]) -> list[str]:
    peak_mib, rate_share = large.peak_kib / 1024, large.lines_per_s / large.requests_per_s
    lost, doubled = large.lost + killed.lost, large.doubled + killed.doubled
    return [
        f"{_word(peak_mib <= PEAK_MAX_MIB)}: memory of at most {PEAK_MAX_MIB} MiB ({peak_mib:.0f} MiB)",
        f"{_word(rate_share >= RATE_SHARE_MIN)}: lines at {RATE_SHARE_MIN:.0%} of the rate of interactive requests or"
        f" more ({rate_share:.0%})",
        f"{_word(not lost and not doubled)}: no line lost or doubled ({lost} and {doubled})",
        f"{_word(bool(later) and median(later) <= LATER_MAX)}: first tokens beside a backlog at most"
        f" {LATER_MAX - 1:.0%} later at p99 ({median(later) - 1:+.1%}, the median of {len(later)} rounds)",
    ]


def _word(is_met: bool) -> str:
    return "**met**" if is_met else "**not met**"
