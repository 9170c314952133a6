"""Page of a gateway failover's costs: live measurements, the costs of the controller's core, and the aims.

Every figure is measured elsewhere. It must never leave out a failed request, nor call an aim met that was not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

from loadgen.bench.controller import SIZES, figure_at
from loadgen.demo.watch import Cause
from loadgen.pages.markdown import NOTHING, listed, table
from loadgen.report import quantile
from loadgen.studies.failover.cases import CaseOutcome, EarlyCall
from loadgen.studies.rendering import percent, render, shortened

REASSIGNED_MAX_S = 3.0
RENAMED_MAX_S = 5.0
SILENCE_MAX_S = 2.0
_MILLISECOND_NS = 1_000_000
_COSTS = (
    ("a report of a gateway, µs", "report_us"),
    ("a probe, µs", "probe_us"),
    ("a gateway's death, ms", "death_ms"),
    ("its own recovery, ms", "recovery_ms"),
    ("largest snapshot, KiB", "snapshot_bytes"),
    ("making one to push, ms", "push_ms"),
)


def page_of(outcomes: Sequence[CaseOutcome], bench: Mapping[str, object], machine: Mapping[str, object]) -> str:
    cases = _by_case(outcomes)
    killed = [each for each in outcomes if not each.is_silent]
    silent = [each for each in outcomes if each.is_silent]
    return render(
        "failover/page.j2", machine=machine, cases=cases, rounds=max(map(len, cases.values()), default=0),
        causes=list(Cause), spread=_spread, failures_of=_failures, faults=_faults(outcomes),
        first_reached=_first_reached(outcomes),
        judged=[*_judged(killed, outcomes), *_judged_of_silence(silent)], costs=_costs(bench),
    )  # fmt: skip


def _by_case(outcomes: Sequence[CaseOutcome]) -> dict[str, list[CaseOutcome]]:
    cases: dict[str, list[CaseOutcome]] = {}
    for each in outcomes:
        cases.setdefault(each.case, []).append(each)
    return cases


def _unbegun(outcomes: Sequence[CaseOutcome]) -> int:
    return sum(not has_begun for each in outcomes for _, has_begun, _ in each.failures)


def _spread(values: Sequence[float | None]) -> str:
    known = [each for each in values if each is not None]
    if len(known) < len(values) or not known:
        return NOTHING
    return f"{median(known):.2f} ({min(known):.2f}–{max(known):.2f})"


def _failures(outcomes: Sequence[CaseOutcome]) -> list[tuple[Cause, bool, str]]:
    return [each for outcome in outcomes for each in outcome.failures]


def _faults(outcomes: Sequence[CaseOutcome]) -> list[str]:
    """Failures in the client's own words, so that readers can check the classes."""
    said = Counter((cause, shortened(fault)) for cause, _, fault in _failures(outcomes))
    return [f"{count} × {cause}: `{fault}`" for (cause, fault), count in said.most_common(12)]


def _first_reached(outcomes: Sequence[CaseOutcome]) -> str:
    """Table of the calls before the kill, which until then are alike in cases with the same gateways."""
    alike: dict[tuple[bool, int], list[CaseOutcome]] = {}
    for each in outcomes:
        alike.setdefault((each.has_sibling, each.further_gateways), []).append(each)
    head = ["before the kill", "calls", "further address first", "of these forwarded"]
    head += [f"{which}, p{share}, ms" for which in ("nearest", "further") for share in (50, 99)]
    return table(head, [_reached_row(played) for played in alike.values()])


def _reached_row(played: Sequence[CaseOutcome]) -> list[str]:
    early = [each for outcome in played for each in outcome.early]
    near, further = ([each for each in early if each.is_further is wanted] for wanted in (False, True))
    return [
        listed(list(_by_case(played))),
        f"{len(early):,}",
        percent(len(further) / len(early) if early else None),
        percent(sum(each.is_forwarded for each in further) / len(further) if further else None),
        *(_first_token(calls, share) for calls in (near, further) for share in (0.5, 0.99)),
    ]


def _first_token(calls: Sequence[EarlyCall], share: float) -> str:
    if not calls:
        return NOTHING
    return f"{quantile([each.first_token_ns for each in calls], share) / _MILLISECOND_NS:.1f}"


def _judged(killed: Sequence[CaseOutcome], outcomes: Sequence[CaseOutcome]) -> list[str]:
    beside = [each for each in killed if each.has_sibling]
    alone = [each for each in killed if not each.has_sibling]
    unbegun = _unbegun(beside)
    unknown = sum(cause is Cause.OTHER for each in outcomes for cause, _, _ in each.failures)
    unknown += sum(each.hung for each in killed)  # refused at once by a killed process's host
    return [
        _within("replicas reassigned after a kill -9", [each.reassigned_s for each in killed], REASSIGNED_MAX_S),
        _within("the DNS answer changed after a kill -9", [each.renamed_s for each in killed], RENAMED_MAX_S),
        f"{_word(bool(beside) and not unbegun)}: with a sibling, no request failed whose answer had not begun"
        f" ({unbegun} did)",
        *[_judged_unbegun(case, played) for case, played in _by_case(alone).items()],
        f"{_word(not unknown)}: no failed request without a class ({unknown} had none)",
        f"{_word(bool(alone) and all(each.served_s is not None for each in alone))}: without one, an adopter serves"
        " requests on what it adopted",
    ]


def _judged_unbegun(case: str, played: Sequence[CaseOutcome]) -> str:
    count = _unbegun(played)
    return f"{_word(not count)}: {case}, no request failed whose answer had not begun ({count} did)"


def _judged_of_silence(silent: Sequence[CaseOutcome]) -> list[str]:
    if not silent:
        return []
    return [
        _within("peers stop forwarding to a silent gateway", [each.unforwarded_s for each in silent], SILENCE_MAX_S),
        _within("the DNS answer changed after silence", [each.renamed_s for each in silent], SILENCE_MAX_S),
    ]


def _within(what: str, values: Sequence[float | None], most_s: float) -> str:
    known = [each for each in values if each is not None]
    is_met = bool(values) and len(known) == len(values) and max(known) <= most_s
    worst = f"{max(known):.2f} s at worst" if known else "never seen"
    never = f", and {len(values) - len(known)} times not at all" if known and len(known) < len(values) else ""
    return f"{_word(is_met)}: {what} within {most_s:.0f} s ({worst}{never})"


def _word(is_met: bool) -> str:
    return "**met**" if is_met else "**not met**"


def _costs(bench: Mapping[str, object]) -> str:
    rows = [[title, *(_cost(bench, figure, *size) for size in SIZES)] for title, figure in _COSTS]
    head = ["of the controller's core", *(f"{replicas:,} replicas, {regions} regions" for replicas, regions in SIZES)]
    return table(head, rows)


def _cost(bench: Mapping[str, object], figure: str, replicas: int, regions: int) -> str:
    value = bench.get(figure_at(figure, replicas, regions))
    if not isinstance(value, int | float):
        return NOTHING
    if figure == "snapshot_bytes":
        value = value / 1024
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
