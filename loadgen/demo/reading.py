"""Describes the comparison of two runs in words. Every claim is computed from the figures; the absence of a difference
is stated too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gateway.core.kernel.residency import ResidencyPolicy, may_process
from gateway.core.vocabulary import RegionName, TenantName
from loadgen.demo.report import RunReport
from loadgen.figures import Figures
from loadgen.pages.markdown import listed

BUSY_MACHINE_SHARE = 0.6
"""CPU share above which the machine's own queueing shows in the latencies."""
_SAME_WITHIN = 0.02
_FACTOR_FROM = 1.5
_SMALL_SAMPLE = 100
_NOT_COMPARABLE = "not comparable"


def read_comparison(mesh: RunReport, alone: RunReport) -> str:
    """Latency, throughput and cache hits with the mesh against without, the busiest region first."""
    if mesh.total["ttft_ms"] is None or alone.total["ttft_ms"] is None:
        return "A run without answers leaves nothing to compare."
    regions = sorted(mesh.regions, key=lambda region: -alone.regions[region]["requests"])
    pairs = [(region, mesh.regions[region], alone.regions[region]) for region in regions]
    latencies = [f"{_latency(one, other)} in {region}{_seconds(one, other)}" for region, one, other in pairs]
    tokens = [f"{_tokens(one, other)} in {region}" for region, one, other in pairs]
    tokens.append(f"{_tokens(mesh.total, alone.total)} in all")
    sentences = [
        f"With the mesh, p90 TTFT is {listed(latencies)}.",
        f"Tokens/s are {listed(tokens)}.",
        *_hit_rates(mesh.total, alone.total),
    ]
    return " ".join(sentences)


def read_caveats(reports: Sequence[RunReport]) -> str:
    """Caveats about the figures; empty if there are none."""
    return " ".join(_caveats(reports))


def read_forwarding(report: RunReport) -> str:
    """Number of requests that each region sent to each other region."""
    sent = {region: _sent_by(region, report) for region in report.regions}
    senders = [f"{region} sent {listed(moves)}" for region, moves in sent.items() if moves]
    others = [region for region, moves in sent.items() if not moves]
    silent = [f"{listed(others)} sent none"] if others else []
    return f"Forwarded requests: {'; '.join([*senders, *silent])}."


def _sent_by(region: RegionName, report: RunReport) -> list[str]:
    moves = [
        (count, engine) for (client, engine), count in report.answered.items() if client == region and engine != region
    ]
    return [f"{count} to {engine}" for count, engine in sorted(moves, reverse=True)]


def residency_breaches(
    report: RunReport, policies: Mapping[RegionName, ResidencyPolicy], tenant: TenantName
) -> list[str]:
    """Requests that ran where their region's policy does not allow it. There must be none."""
    return [
        f"{count} from {client} in {engine}"
        for (client, engine), count in report.answered.items()
        if engine not in policies or not may_process(policies[client], tenant, policies[engine].place).allowed
    ]


def _latency(mesh: Figures, alone: Figures) -> str:
    if mesh["ttft_ms"] is None or alone["ttft_ms"] is None:
        return _NOT_COMPARABLE
    return _compared(mesh["ttft_ms"]["p90"], alone["ttft_ms"]["p90"])


def _seconds(mesh: Figures, alone: Figures) -> str:
    if mesh["ttft_ms"] is None or alone["ttft_ms"] is None:
        return ""
    return f" ({mesh['ttft_ms']['p90'] / 1000:.2f} s against {alone['ttft_ms']['p90'] / 1000:.2f} s)"


def _tokens(mesh: Figures, alone: Figures) -> str:
    return _compared(mesh["tokens_per_s"], alone["tokens_per_s"])


def _hit_rates(mesh: Figures, alone: Figures) -> Iterator[str]:
    if mesh["prefix_hit_rate"] is not None and alone["prefix_hit_rate"] is not None:
        mesh_rate, alone_rate = mesh["prefix_hit_rate"], alone["prefix_hit_rate"]
        yield f"Prefix caches held {mesh_rate:.0%} of prompt tokens against {alone_rate:.0%}."


def _compared(value: float, reference: float) -> str:
    """`3.1× lower`, `4% higher`, or `about the same` where they differ too little to tell."""
    if min(value, reference) <= 0:
        return _NOT_COMPARABLE
    factor = max(value, reference) / min(value, reference)
    word = "higher" if value > reference else "lower"
    if factor < 1 + _SAME_WITHIN:
        return "about the same"
    if factor >= _FACTOR_FROM:
        return f"{factor:.1f}× {word}"
    return f"{abs(value / reference - 1):.0%} {word}"


def _caveats(reports: Sequence[RunReport]) -> Iterator[str]:
    for report in reports:
        run = report.run
        if run.machine is not None and run.machine.mean_share > BUSY_MACHINE_SHARE:
            yield (
                f"Caution: {run.machine.mean_share:.0%} of the machine's CPU was busy in the {run.name} run, "
                f"so its latencies include waiting for the CPU."
            )
        if run.is_partial:
            yield f"The {run.name} run was stopped early."
        if unfinished := report.total["unfinished"]:
            yield f"{_requests(unfinished)} of the {run.name} run had not ended when it was over."
    regions = reports[0].regions if reports else {}
    small = [region for region in regions if any(_is_small(report.regions[region]) for report in reports)]
    if small:
        yield f"With fewer than {_SMALL_SAMPLE} requests, the p99 of {listed(small)} is the slowest one."


def _is_small(figures: Figures) -> bool:
    return bool(figures["requests"] < _SMALL_SAMPLE)


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"
