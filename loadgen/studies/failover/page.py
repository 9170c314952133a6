"""Page of a gateway failover's costs: live measurements, the costs of the controller's core, and the aims.

Every figure is measured elsewhere. It must never leave out a failed request, nor call an aim met that was not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

from loadgen.bench.controller import SIZES, figure_at
from loadgen.demo.watch import Cause
from loadgen.pages.markdown import NOTHING, bullets, table
from loadgen.studies.failover.cases import Outcome

REASSIGNED_MAX_S = 3.0
RENAMED_MAX_S = 5.0
_COSTS = (
    ("a report of a gateway, µs", "report_us"),
    ("a probe, µs", "probe_us"),
    ("a gateway's death, ms", "death_ms"),
    ("its own recovery, ms", "recovery_ms"),
    ("largest snapshot, KiB", "snapshot_bytes"),
    ("making one to push, ms", "push_ms"),
)
_STEPS: tuple[tuple[str, Callable[[Outcome], float | None]], ...] = (
    ("peers stop forwarding, s", lambda each: each.unforwarded_s),
    ("DNS answer changed, s", lambda each: each.renamed_s),
    ("replicas reassigned, s", lambda each: each.reassigned_s),
    ("first request served by an adopter, s", lambda each: each.served_s),
)


def page_of(outcomes: Sequence[Outcome], bench: Mapping[str, object], machine: Mapping[str, object]) -> str:
    killed = [each for each in outcomes if not each.is_silent]
    parts = [
        _head(outcomes, machine),
        "## From the kill\n",
        _steps(outcomes),
        _SEEN,
        "## What clients saw\n",
        _clients(outcomes),
        _EXPLAINED,
        _faults(outcomes),
        "## Aims\n",
        bullets(_judged(killed, outcomes)),
        "## What the controller costs\n",
        _costs(bench),
    ]
    return "\n".join(filter(None, parts))


def _head(outcomes: Sequence[Outcome], machine: Mapping[str, object]) -> str:
    rounds = max(Counter(each.case for each in outcomes).values(), default=0)
    return f"""# When a gateway dies

Written by `make results NAME=failover`; do not edit. Gateways, a controller and emulated engines as processes on one
machine, {rounds} times each: {machine["cpu"]}, {machine["cores"]} cores, {machine["memory_gib"]} GiB,
Linux {machine["kernel"]}, {machine["python"]}; the core is {machine["core"]}.
{float(str(machine["busy"])):.0%} of its CPU was in use meanwhile, by all that ran there.

All decisions have their default settings. Every region has one gateway with two replicas (beside a sibling: two
regions with four replicas each, in one of them between two gateways) and three clients, each of which asks again as
soon as it was answered, through the OpenAI SDK with its own two retries. It knows one name and no address: the
resolver, which keeps answers for their TTL (five seconds), is handed in through the SDK's own HTTP client.
What it takes where records are published at a provider is in [failover_records.md](failover_records.md).
How long it takes until another controller leads, by store, is in [succession.md](succession.md).
"""


_SEEN = """Median, and the lowest and highest in brackets; of several deaths, the last. The first three steps are looked
for up to twenty times a second, at the gateways that are left and at the controller's name server; the fourth is seen
by clients, and so may be seen before the third. A dash: it did not come within 45 s each time, or cannot be told
(beside a sibling, who serves the region's requests anyway).
"""
_EXPLAINED = """*In flight*: sent before the process had ended, and failed after the kill. *Old answer*: nobody listened
at the address that the name had named until then, for longer than the SDK tries again. An error that a gateway itself
answers with is unclassified, whenever it comes: it lives. A failed request whose answer had not begun is one that a
client could send again unharmed. *Hung*: without an end when the case was over, at a host that says nothing; the SDK
waits ten minutes for it. Where no host is silent it has no class.
"""


def _by_case(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = {}
    for each in outcomes:
        found.setdefault(each.case, []).append(each)
    return found


def _steps(outcomes: Sequence[Outcome]) -> str:
    rows = [
        [case, *(_spread([value(each) for each in played]) for _, value in _STEPS)]
        for case, played in _by_case(outcomes).items()
    ]
    return table(["case", *(title for title, _ in _STEPS)], rows)


def _spread(values: Sequence[float | None]) -> str:
    known = [each for each in values if each is not None]
    if len(known) < len(values) or not known:
        return NOTHING
    return f"{median(known):.2f} ({min(known):.2f}–{max(known):.2f})"


def _clients(outcomes: Sequence[Outcome]) -> str:
    rows = []
    for case, played in _by_case(outcomes).items():
        failures = [each for outcome in played for each in outcome.failures]
        causes = Counter(cause for cause, _, _ in failures)
        unbegun = sum(not has_begun for _, has_begun, _ in failures)
        figures = [sum(each.requests for each in played), len(failures), *(causes[cause] for cause in Cause), unbegun]
        rows.append([case, *(f"{each:,}" for each in (*figures, sum(each.hung for each in played)))])
    head = [
        "case",
        "requests",
        "failed",
        "in flight",
        "old answer",
        "unclassified",
        "failed before the answer began",
        "hung",
    ]
    return table(head, rows)


def _faults(outcomes: Sequence[Outcome]) -> str:
    """Failures in the client's own words, so that readers can check the classes."""
    said = Counter((cause, _shortened(fault)) for each in outcomes for cause, _, fault in each.failures)
    if not said:
        return ""
    return "As the SDK says it:\n\n" + bullets(
        [f"{count} × {cause}: `{fault}`" for (cause, fault), count in said.most_common(12)]
    )


def _shortened(text: str) -> str:
    return " ".join(text.replace("`", "'").split())[:160]


def _judged(killed: Sequence[Outcome], outcomes: Sequence[Outcome]) -> list[str]:
    beside = [each for each in killed if each.has_sibling]
    alone = [each for each in killed if not each.has_sibling]
    unbegun = sum(not has_begun for each in beside for _, has_begun, _ in each.failures)
    unknown = sum(cause is Cause.OTHER for each in outcomes for cause, _, _ in each.failures)
    unknown += sum(each.hung for each in killed)  # refused at once by a killed process's host
    return [
        _within("replicas reassigned after a kill -9", [each.reassigned_s for each in killed], REASSIGNED_MAX_S),
        _within("the DNS answer changed after a kill -9", [each.renamed_s for each in killed], RENAMED_MAX_S),
        f"{_word(bool(beside) and not unbegun)}: with a sibling, no request failed whose answer had not begun"
        f" ({unbegun} did)",
        f"{_word(not unknown)}: no failed request without a class ({unknown} had none)",
        f"{_word(bool(alone) and all(each.served_s is not None for each in alone))}: without one, an adopter serves"
        " requests on what it adopted",
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
    return table(head, rows) + (
        "\nFrom `nightside bench controller`: simulated gateways that all hear each other, medians of several rounds.\n"
        "The snapshot is that of the gateway that has most once a neighbour has died, and pushing it is making its\n"
        "bytes; recovery goes from an empty core to everybody told.\n"
    )


def _cost(bench: Mapping[str, object], figure: str, replicas: int, regions: int) -> str:
    value = bench.get(figure_at(figure, replicas, regions))
    if not isinstance(value, int | float):
        return NOTHING
    if figure == "snapshot_bytes":
        value = value / 1024
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
