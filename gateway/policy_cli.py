"""`nightside policy`: holds the policy files of several regions against each other and says who may send to whom.

It decides nothing itself: every answer comes from the rules that the gateways apply.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.core.residency import (
    LoggingRule,
    ResidencyPolicy,
    Verdict,
    closed_policy,
    may_accept,
    may_enter,
    may_process,
    processing_rule,
)
from gateway.core.vocabulary import Place, PlaceRule, TenantName
from gateway.policy_file import (
    NameKind,
    PolicyContradiction,
    PolicyDocument,
    PolicyError,
    contradictions_in,
    folded,
    in_words,
    names_of,
    policy_schema,
    read_policy,
    rules_of,
    tenant_key,
)

EVERYONE_ELSE = TenantName("")
"""Stands for each tenant without a rule of its own; no tenant's name is empty."""
PLAIN_WIDTH = 100
"""Columns when the output is no terminal."""
NAMES_SHOWN = 4


class Severity(StrEnum):
    INVALID = "invalid"
    CONTRADICTION = "contradiction"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a reader of these files should know."""

    severity: Severity
    path: Path
    key: str
    message: str


@dataclass(frozen=True, slots=True)
class Region:
    """One region and the policy its gateways would apply: the file's, or the closed one if the file is at odds."""

    path: Path
    policy: ResidencyPolicy
    groups: list[tuple[TenantName, ...]]
    """Tenants who are treated alike, together; first, as an empty group, everyone without a rule."""

    @property
    def place(self) -> Place:
        return self.policy.place

    @property
    def is_closed(self) -> bool:
        return bool(self.policy.closed_reason)


@dataclass(frozen=True, slots=True)
class Flow:
    """May these tenants' requests go from one region to another? Both ends are asked."""

    origin: Place
    target: Place
    tenants: tuple[TenantName, ...]
    """Empty: every tenant without a rule of its own."""
    process: Verdict
    accept: Verdict

    @property
    def allowed(self) -> bool:
        return self.process.allowed and self.accept.allowed


@dataclass(frozen=True, slots=True)
class Check:
    """What the files say together."""

    regions: list[Region]
    findings: list[Finding]

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)

    @property
    def result(self) -> str:
        for severity in (Severity.INVALID, Severity.CONTRADICTION):
            if self.count(severity):
                return severity
        return "fine"

    @property
    def exit_code(self) -> int:
        return {"fine": 0, Severity.CONTRADICTION: 1, Severity.INVALID: 2}[self.result]


# The commands.


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def policy() -> None:
    """Check residency policy files and explain what they allow."""


@policy.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print a form for programs instead of words.")
@click.pass_context
def check(context: click.Context, files: tuple[Path, ...], *, as_json: bool) -> None:
    """Say who may send requests to whom, and why.

    FILES are residency policies, one per region; a directory stands for the YAML files in it. Give all regions of
    the mesh at once: only then can the files be held against each other.

    Exit codes: 0 they fit together, 1 a contradiction, 2 a file cannot be used.
    """
    checked = check_files(files)
    if as_json:
        click.echo(json.dumps(machine_form(checked), indent=2))
    else:
        print_check(checked, _console())
    context.exit(checked.exit_code)


@policy.command()
def schema() -> None:
    """Print the JSON Schema of a policy file, for editors and pipelines."""
    click.echo(schema_text(), nl=False)


def schema_text() -> str:
    return json.dumps(policy_schema(), indent=2) + "\n"


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


# Reading.


def check_files(files: Iterable[Path]) -> Check:
    regions: list[Region] = []
    findings: list[Finding] = []
    for path in dict.fromkeys(each for file in files for each in _policy_files(file)):
        region, faults = _read(path)
        findings += faults
        if region is not None:
            regions.append(region)
    return Check(_one_per_region(regions), sorted([*findings, *findings_between(regions)], key=_rank))


def _policy_files(path: Path) -> list[Path]:
    """A directory without policy files stands for itself, and is then reported as no file."""
    return sorted((*path.glob("*.yaml"), *path.glob("*.yml"))) or [path]


def _read(path: Path) -> tuple[Region | None, list[Finding]]:
    try:
        document = read_policy(path)
    except PolicyError as error:
        return None, [Finding(Severity.INVALID, path, each.key, each.message) for each in (error, *error.further)]
    return _region(path, document)


def _region(path: Path, document: PolicyDocument) -> tuple[Region, list[Finding]]:
    policy = document.policy()
    faults = contradictions_in(policy)
    if not faults:
        return Region(path, policy, _groups(policy)), []
    findings = [Finding(Severity.CONTRADICTION, path, fault.key, fault.message) for fault in faults]
    error = PolicyContradiction(path, faults[0].key, faults[0].message)
    closed = closed_policy(policy.place, str(error))
    return Region(path, closed, _groups(closed)), findings


def _one_per_region(regions: list[Region]) -> list[Region]:
    first: dict[str, Region] = {}
    for region in regions:
        first.setdefault(region.place.region, region)
    return list(first.values())


def _rank(finding: Finding) -> int:
    return list(Severity).index(finding.severity)


# Holding the files against each other.


def findings_between(regions: list[Region]) -> list[Finding]:
    """What no file shows alone. A file at odds with itself is left out: its region is closed until that is mended."""
    sound = [region for region in regions if not region.is_closed]
    known = _one_per_region(sound)
    return [
        *_stated_twice(regions),
        *_spelled_twice(sound),
        *_mistaken_kinds(sound),
        *_sent_but_not_accepted(known),
        *_unknown_names(sound, {region.place for region in regions}),
        *_denials_without_effect(known),
        *_tenants_forgotten(known),
        *_tenants_wider_than_region(known),
    ]


def _stated_twice(regions: list[Region]) -> Iterator[Finding]:
    first: dict[str, Region] = {}
    for region in regions:
        other = first.setdefault(region.place.region, region)
        if other is not region:
            message = f"{other.path} is a policy for this region too, and states it as {in_words(other.place)}"
            yield Finding(Severity.CONTRADICTION, region.path, "region", message)


def _spelled_twice(regions: list[Region]) -> Iterator[Finding]:
    first: dict[tuple[NameKind, str], tuple[str, Path]] = {}
    for region in regions:
        for kind, name, key in names_of(region.policy):
            spelling, path = first.setdefault((kind, folded(kind, name)), (name, region.path))
            if spelling != name:
                message = f"{kind} {name} is written {spelling} in {path}"
                yield Finding(Severity.CONTRADICTION, region.path, key, message)


def _mistaken_kinds(regions: list[Region]) -> Iterator[Finding]:
    kinds = _kinds_of_places({region.place for region in regions})
    for region in regions:
        for kind, name, key in names_of(region.policy):
            known = kinds.get(name)
            if known is not None and kind is not NameKind.TENANT and kind not in known:
                message = f"{name} stands here as a {kind}, but other files know it as a {min(known)}"
                yield Finding(Severity.CONTRADICTION, region.path, key, message)


def _kinds_of_places(places: set[Place]) -> dict[str, set[NameKind]]:
    kinds: dict[str, set[NameKind]] = {}
    for place in places:
        kinds.setdefault(place.region, set()).add(NameKind.REGION)
        kinds.setdefault(place.jurisdiction, set()).add(NameKind.JURISDICTION)
    return kinds


def _sent_but_not_accepted(regions: list[Region]) -> Iterator[Finding]:
    """Naming a region is a claim about it, which its refusal contradicts; naming a jurisdiction claims less."""
    for region in regions:
        for key, rule in _sending_rules(region):
            for target in _others(region, regions):
                accepted = may_accept(target.policy, region.place)
                if rule.allows(target.place) and not accepted.allowed:
                    yield _not_accepted(region, key, rule, target, accepted)


def _not_accepted(region: Region, key: str, rule: PlaceRule, target: Region, accepted: Verdict) -> Finding:
    name = target.place.region
    if name in rule.regions:
        message = f"names {name}, which takes in nothing from here: in {target.path}, {accepted.why}"
        return Finding(Severity.CONTRADICTION, region.path, f"{key}.regions", message)
    message = f"lets requests go to {in_words(target.place)}, which takes in nothing from here: {accepted.why}"
    return Finding(Severity.NOTE, region.path, f"{key}.jurisdictions", message)


def _sending_rules(region: Region) -> Iterator[tuple[str, PlaceRule]]:
    """One rule for tenants who are treated alike; a tenant that is refused on arrival sends nothing anywhere."""
    for tenants in region.groups:
        if may_enter(region.policy, _one_of(tenants)).allowed:
            yield _rule_key(tenants), processing_rule(region.policy, _one_of(tenants))


def _rule_key(tenants: tuple[TenantName, ...]) -> str:
    return tenant_key(tenants[0]) if tenants else "process"


def _unknown_names(regions: list[Region], places: set[Place]) -> Iterator[Finding]:
    """A name that resembles a known one is a contradiction already."""
    kinds = _kinds_of_places(places)
    resembling = {(kind, folded(kind, name)) for name, known in kinds.items() for kind in known}
    for region in regions:
        for kind, name, key in names_of(region.policy):
            if kind is NameKind.TENANT or name in kinds or (kind, folded(kind, name)) in resembling:
                continue
            severity = Severity.WARNING if kind is NameKind.REGION else Severity.NOTE
            whose = "for region" if kind is NameKind.REGION else "for a region in jurisdiction"
            yield Finding(severity, region.path, key, f"none of the given files is {whose} {name}")


def _denials_without_effect(regions: list[Region]) -> Iterator[Finding]:
    places = {region.place.region: region.place for region in regions}
    for region in regions:
        inherited = region.policy.process.denied_regions
        for key, rule in rules_of(region.policy):
            denied = rule.denied_regions - inherited if key.startswith("tenants.") else rule.denied_regions
            for place in (places[name] for name in sorted(denied & places.keys())):
                if place.jurisdiction not in rule.jurisdictions:
                    message = f"denies {in_words(place)}, which nothing beside it would allow"
                    yield Finding(Severity.NOTE, region.path, f"{key}.denied_regions", message)


def _tenants_forgotten(regions: list[Region]) -> Iterator[Finding]:
    every_tenant = dict.fromkeys(name for region in regions for name in region.policy.tenants)
    for region in regions:
        missing = [name for name in every_tenant if name not in region.policy.tenants]
        if missing:
            have = _verb(missing, "has a rule", "have rules")
            message = f"{_tenants(missing)} {have} in other files and none here, where the region's `process` applies"
            yield Finding(Severity.WARNING, region.path, "tenants", message)


def _tenants_wider_than_region(regions: list[Region]) -> Iterator[Finding]:
    for region in regions:
        for tenants in region.groups:
            if not tenants or not may_enter(region.policy, tenants[0]).allowed:
                continue
            places = [other.place for other in _others(region, regions)]
            wider = [place for place in places if _is_wider(region.policy, tenants[0], place)]
            if wider:
                message = f"{_tenants(tenants)} may go to {_places(wider)}, where the region's own `process` does not"
                yield Finding(Severity.NOTE, region.path, tenant_key(tenants[0]), message)


def _is_wider(policy: ResidencyPolicy, tenant: TenantName, place: Place) -> bool:
    return may_process(policy, tenant, place).allowed and not policy.process.allows(place)


def _others(region: Region, regions: list[Region]) -> list[Region]:
    return [other for other in regions if other.place.region != region.place.region]


# Who may send to whom.


def flows_between(regions: list[Region]) -> list[Flow]:
    return [
        _flow(region, target, tenants)
        for region in regions
        for tenants in region.groups
        for target in _others(region, regions)
    ]


def _flow(region: Region, target: Region, tenants: tuple[TenantName, ...]) -> Flow:
    tenant = _one_of(tenants)
    if may_enter(region.policy, tenant).allowed:
        process = may_process(region.policy, tenant, target.place)
    else:
        process = Verdict(False, "requests are refused on arrival")
    return Flow(region.place, target.place, tenants, process, may_accept(target.policy, region.place))


def _groups(policy: ResidencyPolicy) -> list[tuple[TenantName, ...]]:
    groups: dict[PlaceRule | None, list[TenantName]] = {}
    for name in policy.tenants:
        rule = processing_rule(policy, name) if may_enter(policy, name).allowed else None
        groups.setdefault(rule, []).append(name)
    return [(), *map(tuple, groups.values())]


def _one_of(tenants: tuple[TenantName, ...]) -> TenantName:
    return tenants[0] if tenants else EVERYONE_ELSE


def machine_form(checked: Check) -> dict[str, Any]:
    return {
        "result": checked.result,
        "regions": [_region_form(region) for region in checked.regions],
        "flows": [_flow_form(flow) for flow in flows_between(checked.regions)],
        "findings": [{**asdict(finding), "path": str(finding.path)} for finding in checked.findings],
    }


def _region_form(region: Region) -> dict[str, Any]:
    return {
        "region": region.place.region,
        "jurisdiction": region.place.jurisdiction,
        "path": str(region.path),
        "digest": region.policy.digest,
        "closed": region.is_closed,
        "refused_on_arrival": [name for name in region.policy.tenants if not may_enter(region.policy, name).allowed],
        "logging": asdict(region.policy.logging),
    }


def _flow_form(flow: Flow) -> dict[str, Any]:
    return {
        "from": flow.origin.region,
        "to": flow.target.region,
        "tenants": list(flow.tenants) or None,
        "allowed": flow.allowed,
        "process": asdict(flow.process),
        "accept": asdict(flow.accept),
    }


# In words.


def region_sentences(region: Region, regions: list[Region]) -> list[str]:
    if region.is_closed:
        return [
            "This file is at odds with itself, so a gateway here runs closed: its requests stay in the region, and "
            "nobody's overflow is taken in."
        ]
    others = _others(region, regions)
    return [
        *_sending([_flow(region, other, ()) for other in others], region, regions),
        *_taking([_flow(other, region, tenants) for other in others for tenants in other.groups], region),
        *(_tenant_sentence(region, regions, tenants) for tenants in region.groups if tenants),
        _logging_sentence(region.policy.logging),
    ]


def _sending(flows: list[Flow], region: Region, regions: list[Region]) -> Iterator[str]:
    if not flows:
        yield "Requests stay here, for no other region was given."
    policies = {each.place: each.policy for each in regions}
    sentences: dict[str, list[Place]] = {}
    for flow in sorted(flows, key=lambda flow: (not flow.allowed, not flow.process.allowed)):
        sentence = _sending_sentence(flow, region.policy, policies[flow.target])
        sentences.setdefault(sentence, []).append(flow.target)
    yield from _filled(sentences)


def _sending_sentence(flow: Flow, sender: ResidencyPolicy, receiver: ResidencyPolicy) -> str:
    ground = _ground(sender.process, flow.target)
    if flow.allowed:
        return f"Requests may be sent to {{places}}: `process` {ground}."
    if not flow.process.allowed:
        return f"Requests are kept away from {{places}}: `process` {ground}."
    if receiver.closed_reason:
        return (
            f"Requests are not sent to {{places}}, though `process` {ground}: closed until the policy there is mended."
        )
    return f"Requests are not sent to {{places}}, though `process` {ground}: `accept` there does not take them in."


def _taking(flows: list[Flow], region: Region) -> Iterator[str]:
    senders = {flow.origin for flow in flows if flow.allowed}
    accepted = {flow.origin for flow in flows if flow.accept.allowed}
    sentences: dict[str, list[Place]] = {}
    for origin in sorted(
        dict.fromkeys(flow.origin for flow in flows), key=lambda origin: (origin not in senders, origin not in accepted)
    ):
        ground = _ground(region.policy.accept, origin)
        if origin in senders:
            sentence = f"Overflow is taken in from {{places}}: `accept` {ground}."
        elif origin in accepted:
            sentence = f"Overflow would be taken in from {{places}}, for `accept` {ground}, but none is sent."
        else:
            sentence = f"Overflow is refused from {{places}}: `accept` {ground}."
        sentences.setdefault(sentence, []).append(origin)
    yield from _filled(sentences)


def _filled(sentences: dict[str, list[Place]]) -> Iterator[str]:
    for sentence, places in sentences.items():
        it, its = ("it", "its jurisdiction") if len(places) == 1 else ("them", "their jurisdictions")
        yield sentence.format(places=_places(places), it=it, its=its)


def _ground(rule: PlaceRule, place: Place) -> str:
    """The part of the rule that decides, as a template to be filled for one place or several."""
    if place.region in rule.denied_regions:
        return "denies {it}"
    if place.region in rule.regions:
        return "names {it}"
    if place.jurisdiction in rule.jurisdictions:
        return "names {its}"
    return "names neither {it} nor {its}"


def _tenant_sentence(region: Region, regions: list[Region], tenants: tuple[TenantName, ...]) -> str:
    who, are = _capitalised(_tenants(tenants)), _verb(tenants, "is", "are")
    if not may_enter(region.policy, tenants[0]).allowed:
        return f"{who} {are} refused here (HTTP 421) before any content is read: `tenants` leaves this region out."
    targets = [other.place for other in _others(region, regions) if _flow(region, other, tenants).allowed]
    if not targets:
        return f"{who} {are} processed here and nowhere else."
    return f"{who} may be processed here and in {_places(targets)}, nowhere else."


def _logging_sentence(rule: LoggingRule) -> str:
    details = {"tenant": rule.tenant, "client address": rule.client_address, "session key": rule.session_key}
    shown = [f"the {name}" for name, may_show in details.items() if may_show]
    hidden = [f"the {name}" for name, may_show in details.items() if not may_show]
    never = _joined([*hidden, "the content of a request"], "or")
    return f"Logs may show {_joined(shown, 'and')}, never {never}." if shown else f"Logs never show {never}."


def _places(places: Iterable[Place]) -> str:
    return _joined([in_words(place) for place in places], "and")


def _tenants(names: Sequence[TenantName]) -> str:
    shown: list[str] = [*names[:NAMES_SHOWN]]
    if len(names) > NAMES_SHOWN:
        shown.append(f"{len(names) - NAMES_SHOWN} more")
    return f"{_verb(names, 'tenant', 'tenants')} {_joined(shown, 'and')}"


def _verb(names: Sequence[TenantName], one: str, several: str) -> str:
    return one if len(names) == 1 else several


def _joined(words: list[str], last: str) -> str:
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else "".join(words)


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


# On the screen.

_LEGEND = {
    "here": "processed in the region where it arrives",
    "yes": "may be sent there when that region has room",
    "keeps": "the sender's `process` keeps it away from there",
    "refused": "the receiver's `accept` does not take it in",
    "neither": "both: the sender keeps it, and the receiver would not take it in",
    "421": "refused on arrival (HTTP 421), before any content is read",
    "-": "does not arise",
}
_COLUMN_GAP = 2
_STYLES = {"yes": "bold green", "here": "green", "421": "bold red"}
_FINDING_STYLES = {Severity.INVALID: "bold red", Severity.CONTRADICTION: "bold red", Severity.WARNING: "yellow"}


def print_check(checked: Check, console: Console) -> None:
    if checked.regions:
        _print_matrix(checked.regions, console)
    for region in checked.regions:
        _print_region(region, checked.regions, console)
    for finding in checked.findings:
        _print_finding(finding, console)
    console.print(Text(_conclusion(checked), style="bold green" if checked.exit_code == 0 else "bold red"))


def _print_matrix(regions: list[Region], console: Console) -> None:
    rows = list(_matrix_rows(regions))
    names = [_column_title(region.place) for region in regions]
    numbers = [str(number) for number, _ in enumerate(regions, start=1)]
    titles = next((titles for titles in (names, numbers) if _width(titles, rows) <= console.width), None)
    console.print(Text("Who may send requests to whom", style="bold"))
    if titles is None:
        console.print(Text("The table is too wide for this screen; the sentences below say the same.", style="dim"))
    else:
        console.print(_table(titles, rows))
        _print_legend({cell for _, cells in rows for cell in cells}, console)


def _width(titles: list[str], rows: list[tuple[str, list[str]]]) -> int:
    columns = zip(titles, *(cells for _, cells in rows), strict=True)
    widths = [max(len(line) for text in column for line in text.splitlines()) for column in columns]
    return sum(width + _COLUMN_GAP for width in (max(len(label) for label, _ in rows), *widths)) + _COLUMN_GAP


def _column_title(place: Place) -> str:
    return f"{place.region}\n{place.jurisdiction}".replace("-", "-\n", 1)


def _matrix_rows(regions: list[Region]) -> Iterator[tuple[str, list[str]]]:
    for number, region in enumerate(regions, start=1):
        for tenants in region.groups:
            label = f"   {_short(tenants)}" if tenants else f"{number:2} {in_words(region.place)}"
            yield label, [_cell(region, target, tenants) for target in regions]


def _short(tenants: tuple[TenantName, ...]) -> str:
    return tenants[0] if len(tenants) == 1 else f"{tenants[0]} +{len(tenants) - 1}"


def _cell(region: Region, target: Region, tenants: tuple[TenantName, ...]) -> str:
    if not may_enter(region.policy, _one_of(tenants)).allowed:
        return "421" if target is region else "-"
    if target is region:
        return "here"
    flow = _flow(region, target, tenants)
    match flow.process.allowed, flow.accept.allowed:
        case True, True:
            return "yes"
        case True, False:
            return "refused"
        case False, True:
            return "keeps"
        case _:
            return "neither"


def _table(titles: list[str], rows: list[tuple[str, list[str]]]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(Text("from / to"), no_wrap=True, vertical="bottom")
    for title in titles:
        table.add_column(Text(title), no_wrap=True)
    for label, cells in rows:
        table.add_row(Text(label), *(Text(cell, style=_STYLES.get(cell, "dim")) for cell in cells))
    return table


def _print_legend(used: set[str], console: Console) -> None:
    for word, meaning in _LEGEND.items():
        if word in used:
            console.print(Text.assemble(("  " + word.ljust(9), _STYLES.get(word, "")), (meaning, "dim")))
    console.print(Text("  A request that was sent on is never sent on to another region.", style="dim"))


def _print_region(region: Region, regions: list[Region], console: Console) -> None:
    source = f"  {region.path}, digest {region.policy.digest}"
    console.print()
    console.print(Text.assemble((in_words(region.place), "bold"), (source, "dim")))
    for sentence in region_sentences(region, regions):
        console.print(Text(_wrapped(f"- {sentence}", console)))


def _print_finding(finding: Finding, console: Console) -> None:
    severity = _capitalised(finding.severity)
    where = f"{finding.path}: {finding.key}" if finding.key else str(finding.path)
    text = Text(f"{severity}  {where}\n{_wrapped(finding.message, console)}")
    text.stylize(_FINDING_STYLES.get(finding.severity, "bold"), 0, len(severity))
    console.print()
    console.print(text)


def _wrapped(text: str, console: Console) -> str:
    indent = "    " if text.startswith("- ") else "  "
    return textwrap.fill(text, console.width, initial_indent="  ", subsequent_indent=indent, break_on_hyphens=False)


def _conclusion(checked: Check) -> str:
    counts = ", ".join(
        f"{checked.count(severity)} {noun}{'' if checked.count(severity) == 1 else 's'}"
        for severity, noun in (
            (Severity.INVALID, "fault"),
            (Severity.CONTRADICTION, "contradiction"),
            (Severity.WARNING, "warning"),
            (Severity.NOTE, "note"),
        )
    )
    verdict = "The policies fit together" if checked.exit_code == 0 else "The policies cannot stand as they are"
    return f"\n{verdict}: {counts}."
