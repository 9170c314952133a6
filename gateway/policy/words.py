"""Describes in sentences which regions may send requests to which: sentences about each region, and lists of places and
of tenants.

It must never say anything that the flows between the regions do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gateway.core.kernel.regions import RegionTable
from gateway.core.kernel.residency import LoggingRule, ResidencyPolicy, may_enter
from gateway.core.vocabulary import Place, PlaceRule, TenantName
from gateway.policy.file import in_words
from gateway.policy.flows import Region, RegionFlow, flow_between, others, region_of

NAMES_SHOWN = 4
"""Most tenants named in one sentence; the rest are counted."""


def region_sentences(region: Region, regions: list[Region]) -> list[str]:
    """Sentences about a region: where its requests may go, whose overflow it accepts, what differs for tenants, and
    what logs may show."""
    if region.is_closed and region.policy.narrowed_by:
        return [
            "A gateway here runs closed, as the controller narrows it: its requests stay in the region, and no "
            "overflow is accepted."
        ]
    if region.is_closed:
        return [
            "This file is at odds with itself, so a gateway here runs closed: its requests stay in the region, and "
            "no overflow is accepted."
        ]
    elsewhere = others(region, regions)
    return [
        *_sending([flow_between(region, other, ()) for other in elsewhere], region, regions),
        *_taking([flow_between(other, region, tenants) for other in elsewhere for tenants in other.groups], region),
        *(_tenant_sentence(region, regions, tenants) for tenants in region.groups if tenants),
        _logging_sentence(region.policy.logging),
    ]


def sentences_seen_from(policy: ResidencyPolicy, places: Sequence[Place]) -> list[str]:
    """Sentences about a region whose own policy alone is known. The other regions are assumed to send and accept
    everything; their own policies may restrict more."""
    if policy.closed_reason:
        closed = f"Closed, {policy.closed_reason}: requests stay in the region, and no overflow is accepted."
        return [closed, _logging_sentence(policy.logging)]
    region = region_of(Path(), policy)
    return region_sentences(region, [region, *(region_of(Path(), _open_to(policy.place, place)) for place in places)])


def _open_to(other: Place, place: Place) -> ResidencyPolicy:
    either = PlaceRule(regions=frozenset({other.region, place.region}))
    return ResidencyPolicy(place, process=either, accept=either)


def _sending(flows: list[RegionFlow], region: Region, regions: list[Region]) -> Iterator[str]:
    if not flows:
        yield "Requests stay here, for no other region was given."
    policies = {each.place: each.policy for each in regions}
    sentences: dict[str, list[Place]] = {}
    for flow in sorted(flows, key=lambda flow: (not flow.allowed, not flow.process.allowed)):
        sentence = _sending_sentence(flow, region.policy, policies[flow.target])
        sentences.setdefault(sentence, []).append(flow.target)
    yield from _filled(sentences)


def _sending_sentence(flow: RegionFlow, sender: ResidencyPolicy, receiver: ResidencyPolicy) -> str:
    ground = _ground(sender.process, flow.target, sender.regions)
    if flow.allowed:
        return f"Requests may be sent to {{places}}: `process` {ground}."
    if not flow.process.allowed:
        return f"Requests are kept away from {{places}}: `process` {ground}."
    if receiver.closed_reason:
        return (
            f"Requests are not sent to {{places}}, though `process` {ground}: closed until the policy there is mended."
        )
    return f"Requests are not sent to {{places}}, though `process` {ground}: `accept` there does not take them in."


def _taking(flows: list[RegionFlow], region: Region) -> Iterator[str]:
    senders = {flow.origin for flow in flows if flow.allowed}
    accepted = {flow.origin for flow in flows if flow.accept.allowed}
    sentences: dict[str, list[Place]] = {}
    for origin in sorted(
        dict.fromkeys(flow.origin for flow in flows), key=lambda origin: (origin not in senders, origin not in accepted)
    ):
        ground = _ground(region.policy.accept, origin, region.policy.regions)
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
        yield sentence.format(places=places_in_words(places), it=it, its=its)


def _ground(rule: PlaceRule, place: Place, table: RegionTable | None) -> str:
    """Clause on the part of the rule that decides, as a template for one place or several."""
    if place.region in rule.denied_regions:
        return "denies {it}"
    if table is not None and table.place_fault(place):
        return "keeps to the operators' table of regions, which does not have {it} there"
    if place.region in rule.regions:
        return "names {it}"
    if place.jurisdiction in rule.jurisdictions:
        return "names {its}"
    if rule.allows(place):
        return "names {it} and {its}"
    return "names neither {it} nor {its}"


def _tenant_sentence(region: Region, regions: list[Region], tenants: tuple[TenantName, ...]) -> str:
    who, are = capitalised(tenants_in_words(tenants)), by_number(tenants, "is", "are")
    if not may_enter(region.policy, tenants[0]).allowed:
        return f"{who} {are} refused here (HTTP 421) before any content is read: `tenants` leaves this region out."
    targets = [other.place for other in others(region, regions) if flow_between(region, other, tenants).allowed]
    if not targets:
        return f"{who} {are} processed here and nowhere else."
    return f"{who} may be processed here and in {places_in_words(targets)}, nowhere else."


def _logging_sentence(rule: LoggingRule) -> str:
    details = {"tenant": rule.tenant, "client address": rule.client_address, "session key": rule.session_key}
    shown = [f"the {name}" for name, may_show in details.items() if may_show]
    hidden = [f"the {name}" for name, may_show in details.items() if not may_show]
    never = _joined([*hidden, "the content of a request"], "or")
    return f"Logs may show {_joined(shown, 'and')}, never {never}." if shown else f"Logs never show {never}."


def places_in_words(places: Iterable[Place]) -> str:
    return _joined([in_words(place) for place in places], "and")


def tenants_in_words(names: Sequence[TenantName]) -> str:
    shown: list[str] = [*names[:NAMES_SHOWN]]
    if len(names) > NAMES_SHOWN:
        shown.append(f"{len(names) - NAMES_SHOWN} more")
    return f"{by_number(names, 'tenant', 'tenants')} {_joined(shown, 'and')}"


def by_number(names: Sequence[TenantName], one: str, several: str) -> str:
    return one if len(names) == 1 else several


def _joined(words: list[str], last: str) -> str:
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else "".join(words)


def capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]
