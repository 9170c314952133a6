"""Descriptions of every series of the metrics page for `docs/reference/metrics.md`: name, type, labels, meaning, and
the alerts on it.

They come from the collectors themselves and from the file of alert rules. It must never count anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from gateway.core.kernel.description import ReplicaCondition
from gateway.core.vocabulary import (
    Category,
    LegResult,
    LegRole,
    Outcome,
    PlacementReason,
    RefusalReason,
    TargetKind,
)
from gateway.features.catalogue import KINDS
from gateway.records.model_labels import MODELS_MAX, OTHER
from gateway.records.tenant_labels import OTHER as OTHER_TENANT
from gateway.records.tenant_labels import TENANTS_MAX
from gateway.records.trace_metrics import NOT_KEPT
from gateway.request.usage import Counted
from mesh.naming.counters import ANSWERS, TYPES
from mesh.naming.counters import OTHER as OTHER_TYPE
from mesh.series import EVERY_SERIES, Described, Label
from mesh.tokens.counters import CAUSES, FAILED, FETCHED, RESULTS

_NAME = re.compile(r"\b(?:nightside|process)[a-z0-9_:]*")


_MODEL = f"Model or adapter that the request named; `{OTHER}` if nobody serves it, and beyond {MODELS_MAX} names."
_PEER = f"A gateway that the region file names; `{OTHER}` for any other."

LABELS: dict[str, Label] = {
    "model": Label(_MODEL),
    "source": Label("Who asked: a client, or a peer that forwarded.", ("client", "peer")),
    "outcome": Label("How the request ended.", tuple(Outcome)),
    "target": Label("Whether it was sent to an engine here or to another gateway.", tuple(TargetKind)),
    "result": Label("How the leg ended.", tuple(LegResult)),
    "reason": Label("The rule that picked the target.", tuple(PlacementReason)),
    "after": Label("How the leg before ended.", tuple(LegResult)),
    "ran": Label("Where it ran: in this region, or forwarded.", ("local", "forward")),
    "peer": Label(_PEER),
    "pool": Label("A pool that the region file names."),
    "category": Label("Of which kind a prompt's text is taken to be.", tuple(Category)),
    "region": Label("This gateway's own."),
    "group": Label("Decode workers that step in time."),
    "replica": Label("The replica's `id`, with its rank where it has several."),
    "task": Label("The background loop."),
    "seen_by": Label("Whether we were the caller or the called.", ("caller", "called")),
    "part": Label("What was read: `region`, `policy`, `keys`, a certificate, …"),
    "role": Label("Whom the certificate is shown to.", ("clients", "peers")),
    "tenant": Label(f"Whose request; `{OTHER_TENANT}` where logs may not name it, and beyond {TENANTS_MAX} of them."),
    "kind": Label("Which tokens.", ("prompt", "output")),
    "counted": Label(
        "Who counted the tokens: the engine, we by its events, or nobody: a guess by length.", tuple(Counted)
    ),
    "kept": Label("Why a request's spans are kept.", ("head", "failed", "resumed", "slow", "forwarded", NOT_KEPT)),
    "state": Label("The state that the replica is in, or is not.", tuple(ReplicaCondition)),
    "type": Label("What was asked for; `other` for any other kind of record.", (*TYPES, OTHER_TYPE)),
    "use": Label("Whom tokens are for.", ("clients", "operators")),
    "issuer": Label("As the region file calls it; empty for one that it does not name."),
    "answer": Label("`accepted`, or why it was refused.", ("accepted", *RefusalReason)),
    **{label: meaning for kind in KINDS for (series, label), meaning in kind.labels.items() if series == EVERY_SERIES},
}
"""Meaning of each label, for series without an entry in `LABELS_OF`."""

LABELS_OF: dict[tuple[str, str], Label] = {
    ("nightside_dns_queries_total", "answer"): Label(
        "`answered`; `nodata`: there is such a name, and nobody to be told of; else the DNS code, `failed` for ours.",
        ANSWERS,
    ),
    ("nightside_forwards_refused_total", "reason"): Label("Why the peer did not take it.", tuple(RefusalReason)),
    ("nightside_parts_total", "role"): Label(
        "Whether it read the prompt or wrote the answer.", (LegRole.PREFILL, LegRole.DECODE)
    ),
    ("nightside_refusals_total", "reason"): Label("The code told to the client."),
    ("nightside_control_snapshots_total", "result"): Label("What became of it.", ("taken", "rejected")),
    ("nightside_traces_dropped_total", "reason"): Label("What they met.", ("full", "refused")),
    ("nightside_token_verifications_total", "result"): Label(
        "Whether it was `valid`, was `remembered` as valid, or what was wrong with it.", RESULTS
    ),
    ("nightside_issuer_fetches_total", "result"): Label("Whether it brought keys.", (FETCHED, FAILED)),
    ("nightside_issuer_fetches_total", "cause"): Label("Why it was time.", CAUSES),
    ("nightside_reloads_total", "result"): Label("Whether it is in force now.", ("applied", "refused")),
    **{key: meaning for kind in KINDS for key, meaning in kind.labels.items() if key[0] != EVERY_SERIES},
}
"""Meaning of labels that differ by series."""


class Rule(Struct, frozen=True):
    """One recording or alerting rule of a file of Prometheus rules."""

    name: str
    expression: str
    is_alert: bool
    meaning: str


def sample_names(series: Described) -> tuple[str, ...]:
    """Names of the series' samples on the page."""
    if series.kind != "histogram":
        return (series.name,)
    return tuple(f"{series.name}{suffix}" for suffix in ("_bucket", "_sum", "_count"))


def label_of(series: str, label: str) -> Label:
    """Label of a series. Raises KeyError where it is not described."""
    return LABELS_OF.get((series, label)) or LABELS[label]


def rules_in(document: Mapping[str, Iterable[Mapping[str, object]]]) -> list[Rule]:
    """All rules of a file of Prometheus rules, read as YAML."""
    return [_rule(rule) for group in document["groups"] for rule in _listed(group["rules"])]


def markdown(all_series: Iterable[Described], rules: Iterable[Rule]) -> str:
    """Whole page in Markdown."""
    series, rules = list(all_series), list(rules)
    return "\n".join(_page(series, rules)) + "\n"


def names_in(expression: str) -> set[str]:
    """Series and recordings that an expression names, without the suffixes of histograms."""
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in _NAME.findall(expression)}


def _rule(rule: Mapping[str, object]) -> Rule:
    is_alert = "alert" in rule
    annotations = rule.get("annotations")
    meaning = str(annotations["summary"]) if isinstance(annotations, Mapping) else ""
    return Rule(str(rule["alert" if is_alert else "record"]), str(rule["expr"]), is_alert, meaning)


def _listed(rules: object) -> list[Mapping[str, object]]:
    assert isinstance(rules, list), "a group of rules holds a list"
    return rules


def _page(series: list[Described], rules: list[Rule]) -> Iterator[str]:
    yield from _INTRODUCTION
    yield from _table(("series", "type", "labels", "meaning", "alerts"), (_row(each, rules) for each in series))
    yield from ("", "## Labels", "")
    yield "Every label is bounded: by the region file, a closed set of words, or a limit beyond which all is `other`."
    yield ""
    yield from _table(("label", "meaning", "values"), _label_rows(series))
    if rules:
        yield from ("", "## Recorded", "")
        yield "Worked out by the recording rules, for dashboards and alerts."
        yield ""
        recorded = ((f"`{rule.name}`", f"`{_on_a_line(rule.expression)}`") for rule in rules if not rule.is_alert)
        yield from _table(("series", "expression"), recorded)


_INTRODUCTION = (
    "# Metrics",
    "",
    "Every series at `/metrics` of a gateway's admin address, as `nightside gateway metrics` lists them: this page is",
    "made by `make metrics-page`. A histogram has a `_bucket`, a `_sum` and a `_count`. What to scrape, and what to do",
    "about each alert, is on [alerts.md](../how_to/alerts.md); who counts what, so that sums come out right, on",
    "[counting.md](counting.md).",
    "",
)


def _row(series: Described, rules: list[Rule]) -> tuple[str, ...]:
    labels = ", ".join(f"`{label}`" for label in series.labels)
    alerts = ", ".join(f"[{name}](../how_to/alerts.md#{name.lower()})" for name in alerts_on(series.name, rules))
    return f"`{series.name}`", series.kind, labels, series.words, alerts


def alerts_on(series: str, rules: Iterable[Rule]) -> list[str]:
    """Alerts that use a series, directly or through a recording rule."""
    rules = list(rules)
    recordings = {rule.name: rule.expression for rule in rules if not rule.is_alert}
    return [rule.name for rule in rules if rule.is_alert and series in _looked_at(rule.expression, recordings)]


def _looked_at(expression: str, recordings: Mapping[str, str]) -> set[str]:
    found = names_in(expression)
    return found.union(*(_looked_at(recordings[name], recordings) for name in found & recordings.keys()))


def _label_rows(series: list[Described]) -> Iterator[tuple[str, ...]]:
    for label in dict.fromkeys(label for each in series for label in each.labels):
        users = [each.name for each in series if label in each.labels]
        own = [name for name in users if (name, label) in LABELS_OF]
        if own != users:
            yield _label_row(f"`{label}`", LABELS[label])
        for name in own:
            yield _label_row(f"`{label}` of `{name}`", LABELS_OF[name, label])


def _label_row(name: str, label: Label) -> tuple[str, ...]:
    return name, label.meaning, ", ".join(f"`{value}`" for value in label.values)


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    for row in (header, ("---",) * len(header), *rows):
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def _on_a_line(expression: str) -> str:
    return " ".join(expression.split())
