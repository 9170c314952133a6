"""Page of a disaggregated pool that moves: streams, balance and waits, by stage, and the aims.

Every figure is measured elsewhere. It must never leave out a broken stream, nor call an aim met that was not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median, quantiles

from loadgen.pages.markdown import NOTHING, table
from loadgen.studies.composition.cases import HOME, CompositionOutcome
from loadgen.studies.composition.clients import StreamSeen
from loadgen.studies.composition.samples import PoolSample
from loadgen.studies.rendering import render, shortened

_SECOND_NS = 1_000_000_000
_MS_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class StageFigures:
    """Figures of one stage; None: nothing was measured in it."""

    stage: str
    seconds: float
    streams: int
    """Streams that began in the stage."""
    out_of_home: int
    """Streams of the pool's region that another region's engines ran."""
    into_pool: int
    """Streams of other regions that the pool ran."""
    first_token_ms: tuple[float, float] | None
    """Median and 90th percentile of the time to the first token, of whole answers."""
    pause_ms: tuple[float, float] | None
    """The same of each answer's longest pause between two parts."""
    imbalance: float | None
    """Mean over samples of the fullest decode worker's KV cache tokens less the emptiest one's."""
    load_max: float | None
    """Mean over samples of the fullest decode worker's KV cache tokens."""
    degraded: float | None
    """Share of samples in which the policy ran without its predictor."""
    by_experts: float | None
    """Share of the requests under expert locality that were placed by it."""
    policies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunFigures:
    case: str
    policy: str
    adopter: str
    stages: tuple[StageFigures, ...]
    broken_sound: tuple[str, ...]
    """Faults of streams that did not go through the killed process."""
    broken_dead: tuple[str, ...]
    """Faults of streams through the killed process, or sent to its address."""
    unended: int
    histories: tuple[int, int]
    """Histories that the adopter, and then the home, took."""


def figures_of(outcome: CompositionOutcome) -> RunFigures:
    stages = tuple(_stage(outcome, name, span) for name, span in outcome.stages.spans().items())
    broken = [each for each in outcome.streams if each.fault]
    dead = [each for each in broken if _is_explained(each, outcome)]
    sound = [each for each in broken if not _is_explained(each, outcome)]
    after = [each for each in outcome.samples if each.at_ns >= outcome.stages.killed_ns]
    return RunFigures(
        outcome.case,
        outcome.policy,
        outcome.adopter,
        stages,
        tuple(each.fault for each in sound),
        tuple(each.fault for each in dead),
        sum(each.ended_ns is None for each in outcome.streams),
        (
            max((each.histories_taken for each in after if each.gateway == outcome.adopter), default=0),
            max((each.histories_taken for each in after if each.gateway != outcome.adopter), default=0),
        ),
    )


def _is_explained(stream: StreamSeen, outcome: CompositionOutcome) -> bool:
    """True where the killed process explains a broken stream: it was in flight there, or found no process there."""
    stages = outcome.stages
    if outcome.dead_host in stream.tried:
        return stages.killed_ns <= (stream.ended_ns or 0) and stream.sent_ns <= stages.home_ns
    is_there = stream.host == outcome.dead_host and stream.sent_ns <= stages.adopted_ns
    return is_there and stream.ended_ns is not None and stream.ended_ns >= stages.killed_ns


def _stage(outcome: CompositionOutcome, name: str, span: tuple[int, int]) -> StageFigures:
    began_ns, over_ns = span
    streams = [each for each in outcome.streams if began_ns <= each.sent_ns < over_ns]
    whole = [each for each in streams if not each.fault and each.first_ns is not None]
    samples = [each for each in outcome.samples if began_ns <= each.at_ns < over_ns]
    busy = [each for each in samples if each.load_max_tokens]
    return StageFigures(
        name,
        (over_ns - began_ns) / _SECOND_NS,
        len(streams),
        sum(each.region == HOME and each.ran_in not in ("", HOME) for each in streams),
        sum(each.region != HOME and each.ran_in == HOME for each in streams),
        _middle([((each.first_ns or 0) - each.sent_ns) / _MS_NS for each in whole]),
        _middle([each.pause_ns / _MS_NS for each in whole]),
        mean(each.imbalance_tokens for each in busy) if busy else None,
        mean(each.load_max_tokens for each in busy) if busy else None,
        mean(each.is_degraded for each in busy) if busy else None,
        _by_experts(samples),
        tuple(sorted({each.policy for each in samples})),
    )


def _middle(values: Sequence[float]) -> tuple[float, float] | None:
    if len(values) < 2:
        return None
    return median(values), quantiles(values, n=10, method="inclusive")[-1]


def _by_experts(samples: Sequence[PoolSample]) -> float | None:
    used = counted = 0
    for gateway in {each.gateway for each in samples}:
        own = [each for each in samples if each.gateway == gateway]
        used += own[-1].signatures_used - own[0].signatures_used
        counted += own[-1].signatures - own[0].signatures
    return used / counted if counted > 0 else None


def page_of(runs: Sequence[RunFigures], machine: Mapping[str, object]) -> str:
    cases: dict[str, list[RunFigures]] = {}
    for each in runs:
        cases.setdefault(each.case, []).append(each)
    return render(
        "composition/page.j2", machine=machine, rounds=max(map(len, cases.values()), default=0),
        tables={case: _table(played) for case, played in cases.items()}, broken=_broken(cases),
        faults=_faults(runs), judged=_judged(runs),
    )  # fmt: skip


_HEAD = (
    "stage", "s", "streams", "out of the region", "into the pool", "first token, ms", "longest pause, ms",
    "imbalance, tokens", "fullest worker, tokens", "without predictor", "by experts",
)  # fmt: skip


def _table(runs: Sequence[RunFigures]) -> str:
    rows = []
    for at, stage in enumerate(runs[0].stages):
        played = [run.stages[at] for run in runs]
        rows.append(
            [
                stage.stage,
                _spread([each.seconds for each in played], ".1f"),
                f"{sum(each.streams for each in played):,}",
                f"{sum(each.out_of_home for each in played):,}",
                f"{sum(each.into_pool for each in played):,}",
                _pair([each.first_token_ms for each in played]),
                _pair([each.pause_ms for each in played]),
                _mean([each.imbalance for each in played], ".0f"),
                _mean([each.load_max for each in played], ".0f"),
                _mean([each.degraded for each in played], ".0%"),
                _mean([each.by_experts for each in played], ".0%"),
            ]
        )
    return table(_HEAD, rows)


def _spread(values: Sequence[float], form: str) -> str:
    least, most = format(min(values), form), format(max(values), form)
    return least if least == most else f"{least}–{most}"


def _mean(values: Iterable[float | None], form: str) -> str:
    known = [each for each in values if each is not None]
    return format(mean(known), form) if known else NOTHING


def _pair(values: Iterable[tuple[float, float] | None]) -> str:
    """Mean over the rounds of the median, and of the 90th percentile."""
    known = [each for each in values if each is not None]
    return f"{mean(a for a, _ in known):,.0f} / {mean(b for _, b in known):,.0f}" if known else NOTHING


def _broken(cases: Mapping[str, Sequence[RunFigures]]) -> str:
    rows = [
        [
            case,
            f"{sum(stage.streams for run in runs for stage in run.stages):,}",
            str(sum(len(run.broken_dead) for run in runs)),
            str(sum(len(run.broken_sound) for run in runs)),
            str(sum(run.unended for run in runs)),
            ", ".join(sorted({run.adopter for run in runs})),
        ]
        for case, runs in cases.items()
    ]
    head = ["policy", "streams", "broken with the killed process", "broken, but sound", "without an end", "adopted by"]
    return table(head, rows)


def _faults(runs: Sequence[RunFigures]) -> list[str]:
    """Faults of streams in the client's own words, so that readers can check the classes."""
    said = Counter(("sound", shortened(fault)) for run in runs for fault in run.broken_sound)
    said += Counter(("killed", shortened(fault)) for run in runs for fault in run.broken_dead)
    return [f"{count} × {kind}: `{fault}`" for (kind, fault), count in said.most_common(12)]


def _judged(runs: Sequence[RunFigures]) -> list[str]:
    sound = sum(len(run.broken_sound) for run in runs)
    unended = sum(run.unended for run in runs)
    policies = {policy for run in runs for stage in run.stages for policy in stage.policies if policy != run.policy}
    over = sum(stage.out_of_home for run in runs for stage in run.stages)
    into = sum(stage.into_pool for run in runs for stage in run.stages)
    least = min((min(run.histories) for run in runs), default=0)
    first = [stage.degraded for run in runs if run.policy == "br_h" for stage in run.stages if stage.stage == "adopted"]
    worst = max((each for each in first if each is not None), default=None)
    experts = [
        stage.by_experts for run in runs if run.policy == "eldr" for stage in run.stages if stage.by_experts is not None
    ]
    return [
        f"{_word(bool(runs) and not sound)}: no stream breaks but those through the killed process ({sound} did)",
        f"{_word(bool(runs) and not unended)}: every stream ends ({unended} did not)",
        f"{_word(bool(runs) and not policies)}: the pool is served by its own policy in every stage"
        f"{_but(sorted(policies))}",
        f"{_word(over > 0 and into > 0)}: requests overflow out of the pool's region ({over}) and into it ({into})",
        f"{_word(least > 0)}: the history of the pool comes to the adopter and home again, in every run",
        f"{_word(worst == 0)}: under BR-H, an adopted pool is never without its predictor"
        f" ({NOTHING if worst is None else format(worst, '.0%')} of the samples were, at worst)",
        f"{_word(bool(experts) and min(experts) == 1)}: under ELDR, every request is placed by its experts"
        f" ({NOTHING if not experts else format(min(experts), '.0%')} in the worst stage)",
    ]


def _but(policies: Sequence[str]) -> str:
    return f" (also by {', '.join(policies)})" if policies else ""


def _word(is_met: bool) -> str:
    return "**met**" if is_met else "**not met**"
