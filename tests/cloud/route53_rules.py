"""Checks that Route53 makes and its emulators do not, as its API reference and its table of limits describe them.

A batch is checked change by change, in the strictest reading: the target of an alias must exist before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from typing import Any

import boto3

RECORDS_MAX = 1_000
CHARACTERS_MAX = 32_000
SETS_MAX = 100
CONTINENTS = {"AF", "AN", "AS", "EU", "NA", "OC", "SA"}
POLICIES = ("Weight", "Region", "Failover", "GeoLocation", "MultiValueAnswer", "CidrRoutingConfig")
KINDS = {"A", "AAAA", "CAA", "CNAME", "DS", "HTTPS", "MX", "NAPTR", "NS", "PTR", "SOA", "SPF", "SRV", "SVCB", "TXT"}
AWS_REGIONS = frozenset(boto3.session.Session().get_available_regions("ec2"))
_STRINGS = re.compile(r'"((?:[^"\\]|\\.)*)"(?: "((?:[^"\\]|\\.)*)")*')

Sets = dict[tuple[str, str, str], dict[str, Any]]
Changes = list[tuple[str, dict[str, Any]]]


def faults_of_batch(
    zone: str, zone_id: str, before: Iterable[dict[str, Any]], changes: Changes, check_ids: Iterable[str]
) -> list[str]:
    """Faults of a batch of changes; empty if Route53 accepts it."""
    faults = [*_size_faults(changes)]
    sets: Sets = {key_of(each): each for each in before}
    checks = set(check_ids)
    for action, each in changes:
        faults += _fault_of(action, each, sets, zone=zone, zone_id=zone_id, checks=checks)
        if action == "DELETE":
            sets.pop(key_of(each), None)
        else:
            sets[key_of(each)] = each
    return faults + list(_group_faults(sets))


def key_of(each: Mapping[str, Any]) -> tuple[str, str, str]:
    return str(each["Name"]).lower(), str(each["Type"]), str(each.get("SetIdentifier", ""))


def _size_faults(changes: Changes) -> Iterator[str]:
    records = characters = 0
    for action, each in changes:
        values = each.get("ResourceRecords", ())
        times = 2 if action == "UPSERT" else 1
        records += times * max(1, len(values))
        characters += times * sum(map(len, values))
    if records > RECORDS_MAX:
        yield f"Number of records limit of {RECORDS_MAX} exceeded."
    if characters > CHARACTERS_MAX:
        yield f"Number of characters limit of {CHARACTERS_MAX} exceeded."
    if not changes:
        yield "a batch has one change at least"


def _fault_of(
    action: str, each: dict[str, Any], sets: Sets, *, zone: str, zone_id: str, checks: set[str]
) -> Iterator[str]:
    name, kind, _ = key_of(each)
    what = f"[{action} {name} {kind}]"
    if name != zone and not name.endswith(f".{zone}"):
        yield f"{what} RRSet with DNS name {name} is not permitted in zone {zone}"
    if action == "CREATE" and key_of(each) in sets:
        yield f"{what} Tried to create resource record set but it already exists"
    if action == "DELETE":
        found = sets.get(key_of(each))
        if found is None:
            yield f"{what} Tried to delete resource record set but it was not found"
        elif _values(found) != _values(each):
            yield f"{what} Tried to delete resource record set but the values provided do not match the current values"
        if name == zone and kind in {"NS", "SOA"}:
            yield f"{what} A HostedZone must contain at least one NS record and exactly one SOA record"
        return
    if kind not in KINDS:
        yield f"{what} no such type"
    if kind == "CNAME" and name == zone:
        yield f"{what} CNAME is not permitted at apex in zone {zone}"
    others = {other for at, other, _ in sets if at == name}
    if (kind == "CNAME" and others - {"CNAME"}) or (kind != "CNAME" and "CNAME" in others):
        yield f"{what} RRSet of type {kind} conflicts with others of that name"
    yield from (f"{what} {fault}" for fault in (*_policy_faults(each), *_content_faults(each)))
    alias = each.get("AliasTarget")
    if alias is not None:
        target = alias["DNSName"].lower()
        if alias["HostedZoneId"] != zone_id:
            yield f"{what} alias to another hosted zone"
        elif not any(at == target and other == kind for at, other, _ in sets):
            yield f"{what} Tried to create an alias that targets {target}, type {kind}, but that was not found"
    if each.get("HealthCheckId") and each["HealthCheckId"] not in checks:
        yield f"{what} The specified health check does not exist"


def _policy_faults(each: dict[str, Any]) -> Iterator[str]:
    policies = [key for key in POLICIES if key in each]
    if len(policies) > 1:
        yield f"mixes {' and '.join(policies)}"
    if bool(policies) != bool(each.get("SetIdentifier")):
        yield "SetIdentifier goes with a routing policy, and with it alone"
    if len(each.get("SetIdentifier", "")) > 128:
        yield "SetIdentifier is too long"
    if each.get("MultiValueAnswer") and "AliasTarget" in each:
        yield "multivalue answer alias records are not supported"
    if "Region" in each and each["Region"] not in AWS_REGIONS:
        yield f"{each['Region']} is no AWS region"
    if ("Region" in each or "MultiValueAnswer" in each) and len(each.get("ResourceRecords", ())) > 1:
        yield "one ResourceRecord at most"
    if "Weight" in each and not 0 <= int(each["Weight"]) <= 255:
        yield "Weight is between 0 and 255"
    place = each.get("GeoLocation")
    if place is not None:
        yield from _place_faults(place)


def _place_faults(place: Mapping[str, str]) -> Iterator[str]:
    continent, country = place.get("ContinentCode"), place.get("CountryCode")
    if (continent is None) == (country is None):
        yield "a place is a continent or a country"
    if continent is not None and continent not in CONTINENTS:
        yield f"{continent} is no continent"
    if country is not None and country != "*" and not re.fullmatch("[A-Z]{2}", country):
        yield f"{country} is no country"
    if place.get("SubdivisionCode") and country not in {"US", "UA", "CA"}:
        yield f"{country} has no subdivisions here"


def _content_faults(each: dict[str, Any]) -> Iterator[str]:
    values = each.get("ResourceRecords", ())
    if "AliasTarget" in each:
        if values or "TTL" in each:
            yield "an alias has neither values nor a TTL"
        return
    if not values:
        yield "neither values nor an alias"
    if "TTL" not in each or not 0 <= int(each["TTL"]) < 1 << 31:
        yield "TTL is missing"
    if len(set(values)) < len(values):
        yield "Duplicate Resource Record"
    for value in values:
        if each["Type"] in {"A", "AAAA"} and not _is_address(value, 4 if each["Type"] == "A" else 6):
            yield f"Value is not a valid address: {value}"
        if each["Type"] == "TXT":
            found = _STRINGS.fullmatch(value)
            if found is None or len(value) > 4_000 or any(len(text) > 255 for text in value[1:-1].split('" "')):
                yield "InvalidCharacterString"


def _group_faults(sets: Sets) -> Iterator[str]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for (name, kind, _), each in sets.items():
        groups.setdefault((name, kind), []).append(each)
    for (name, kind), group in groups.items():
        policies = {next((key for key in POLICIES if key in each), "") for each in group}
        if len(policies) > 1:
            yield f"RRSet with DNS name {name}, type {kind} cannot mix {' and '.join(sorted(policies))}"
        if len(group) > SETS_MAX:
            yield f"more than {SETS_MAX} record sets of {name} {kind}"
        for key in ("Region", "GeoLocation"):
            found = [str(each[key]) for each in group if key in each]
            if len(set(found)) < len(found):
                yield f"{name} {kind}: the same {key} twice"


def faults_of_check(reference: str, config: Mapping[str, Any], used_references: Iterable[str]) -> list[str]:
    """Faults of a health check; empty if Route53 accepts it."""
    faults = []
    if not 1 <= len(reference) <= 64:
        faults.append("CallerReference has 1 to 64 characters")
    if reference in set(used_references):
        faults.append("HealthCheckAlreadyExists")
    if not ip_address(config["IPAddress"]).is_global:
        faults.append(f"Invalid IPAddress: {config['IPAddress']} is in a range that cannot be checked")
    if int(config.get("RequestInterval", 30)) not in {10, 30}:
        faults.append("RequestInterval is 10 or 30")
    if not 1 <= int(config.get("FailureThreshold", 3)) <= 10:
        faults.append("FailureThreshold is between 1 and 10")
    if not 1 <= int(config.get("Port", 0)) <= 65535:
        faults.append("Port is missing")
    if config["Type"] not in {"HTTP", "HTTPS", "TCP"}:
        faults.append("Type")
    if config["Type"] == "TCP" and ("ResourcePath" in config or "EnableSNI" in config):
        faults.append("a TCP check has no path")
    return faults


def _values(each: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: value for key, value in each.items() if key not in {"Name", "Type"}}
    if "ResourceRecords" in found:
        found["ResourceRecords"] = sorted(found["ResourceRecords"])
    return found


def _is_address(text: str, version: int) -> bool:
    try:
        return ip_address(text).version == version
    except ValueError:
        return False
