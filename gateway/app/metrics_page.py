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
    HintKind,
    LegResult,
    LegRole,
    Outcome,
    PlacementReason,
    RefusalReason,
    TargetKind,
)
from gateway.features.catalogue import KINDS
from gateway.peers.caller_refusal import CallerRefusal
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


_MODEL = f"Model or adapter that the request names; `{OTHER}` for unknown models, and beyond {MODELS_MAX} names."
_PEER = f"Peer by its name in the region file; `{OTHER}` for any other gateway."
_TENANT = f"Tenant of the request; `{OTHER_TENANT}` for tenants that logs may not name, and beyond {TENANTS_MAX}."

LABELS: dict[str, Label] = {
    "model": Label(_MODEL),
    "source": Label(
        "Sender of the request: a client, a peer that forwards it, or a batch of this gateway.",
        ("client", "peer", "batch"),
    ),
    "outcome": Label("Outcome of the request.", tuple(Outcome)),
    "target": Label("Kind of the target: a replica of this gateway, or a peer.", tuple(TargetKind)),
    "result": Label("Result of the leg.", tuple(LegResult)),
    "reason": Label("Placement rule that chose the target.", tuple(PlacementReason)),
    "after": Label("Result of the attempt before.", tuple(LegResult)),
    "ran": Label("Place where the request ran: in this region, or forwarded.", ("local", "forward")),
    "peer": Label(_PEER),
    "pool": Label("Pool by its name in the region file."),
    "category": Label("Category of the prompt's text.", tuple(Category)),
    "region": Label("Region of this gateway."),
    "group": Label("Group of decode workers that run their steps in lockstep."),
    "replica": Label("Id of the replica, with its data-parallel rank if there are several."),
    "task": Label("Name of the background task."),
    "seen_by": Label("Side of the connection that saw the event.", ("caller", "called")),
    "part": Label("Part of the configuration that was read: `region`, `policy`, `keys`, a certificate, and others."),
    "hint": Label("Kind of the hint.", tuple(HintKind)),
    "role": Label("Audience of the certificate.", ("clients", "peers")),
    "tenant": Label(_TENANT),
    "kind": Label("Kind of the tokens.", ("prompt", "output")),
    "counted": Label(
        "Source of the count: usage reported by the engine, stream events, or an estimate by bytes.", tuple(Counted)
    ),
    "kept": Label("Reason for which the spans are kept.", ("head", "failed", "resumed", "slow", "forwarded", NOT_KEPT)),
    "state": Label("State of the replica.", tuple(ReplicaCondition)),
    "type": Label("Type of the queried records; `other` for unsupported types.", (*TYPES, OTHER_TYPE)),
    "use": Label("Holders of the tokens.", ("clients", "operators")),
    "issuer": Label("Issuer by its name in the configuration; empty for unknown issuers."),
    "answer": Label("`accepted`, or the reason for the refusal.", ("accepted", *RefusalReason)),
    **{label: meaning for kind in KINDS for (series, label), meaning in kind.labels.items() if series == EVERY_SERIES},
}
"""Meaning of each label, for series without an entry in `LABELS_OF`."""

LABELS_OF: dict[tuple[str, str], Label] = {
    ("nightside_dns_queries_total", "answer"): Label(
        "`answered`; `nodata` for a name without records of the type; else the DNS response code, `failed` "
        "for SERVFAIL.",
        ANSWERS,
    ),
    ("nightside_forwards_refused_total", "reason"): Label("Reason for the peer's refusal.", tuple(RefusalReason)),
    ("nightside_parts_total", "role"): Label(
        "Part of the request that the leg runs.", (LegRole.PREFILL, LegRole.DECODE)
    ),
    ("nightside_refusals_total", "reason"): Label("Error code in the response."),
    ("nightside_control_snapshots_total", "result"): Label("Result of applying the snapshot.", ("taken", "rejected")),
    ("nightside_traces_dropped_total", "reason"): Label("Reason for dropping the spans.", ("full", "refused")),
    ("nightside_token_verifications_total", "result"): Label(
        "Result of the verification: `valid`, `remembered` for a cached result, or the fault of the token.", RESULTS
    ),
    ("nightside_issuer_fetches_total", "result"): Label("Result of the fetch.", (FETCHED, FAILED)),
    ("nightside_issuer_fetches_total", "cause"): Label("Cause of the fetch.", CAUSES),
    ("nightside_peers_refused_total", "reason"): Label(
        "`identity`: a certificate or claim that is not valid; `not_a_peer`: a gateway that is not among the peers.",
        tuple(CallerRefusal),
    ),
    ("nightside_reloads_total", "result"): Label("Result of the reload.", ("applied", "refused")),
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
    "about each alert, is on [alerts.md](../how_to/alerts.md); which gateway counts a forwarded request is on",
    "[counting.md](counting.md).",
    "",
    "```console",
    "$ curl --silent http://127.0.0.1:9900/metrics",
    "```",
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
