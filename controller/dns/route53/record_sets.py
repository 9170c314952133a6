"""A record set of Route53 as a plain value, converted from and to the API's form without loss: a deletion has to name
the record set exactly as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

if TYPE_CHECKING:
    from types_boto3_route53.type_defs import ResourceRecordSetTypeDef

_OWN_KEYS = frozenset(
    {
        "AliasTarget",
        "GeoLocation",
        "HealthCheckId",
        "MultiValueAnswer",
        "Name",
        "Region",
        "ResourceRecords",
        "SetIdentifier",
        "TTL",
        "Type",
    }
)


class RecordLocation(Struct, frozen=True):
    """Place of clients."""

    continent: str = ""
    country: str = ""
    """Country code; `*`: clients in no other listed place, and those whose place is unknown."""
    subdivision: str = ""

    def __str__(self) -> str:
        if self.continent:
            return f"continent:{self.continent}"
        return f"{self.country}-{self.subdivision}" if self.subdivision else self.country


ELSEWHERE = RecordLocation(country="*")
NO_CLIENTS = RecordLocation(continent="AN")
"""Place where no clients are."""


def location_of(text: str) -> RecordLocation:
    """Parse `DE`, `US-CA` or `continent:EU`. Raises ValueError."""
    kind, _, continent = text.rpartition("continent:")
    country, dash, subdivision = text.partition("-")
    if not kind and continent != text:
        if continent in {"AF", "AN", "AS", "EU", "NA", "OC", "SA"}:
            return RecordLocation(continent=continent)
    elif _is_code(country, 2, 2) and (not dash or _is_code(subdivision, 1, 3)):
        return RecordLocation(country=country, subdivision=subdivision)
    raise ValueError(f"{text!r} is not a place as Route53 has them, such as DE, US-CA or continent:EU")


def _is_code(text: str, shortest: int, longest: int) -> bool:
    return text.isascii() and text.isalnum() and text.upper() == text and shortest <= len(text) <= longest


class Alias(Struct, frozen=True):
    zone_id: str
    name: str
    evaluates_health: bool = False


class RecordSet(Struct, frozen=True):
    name: str
    """Lower-case name with the final dot."""
    kind: str
    identifier: str = ""
    ttl_s: int | None = None
    values: tuple[str, ...] = ()
    """Values; their order has no meaning."""
    alias: Alias | None = None
    region: str = ""
    """AWS region: this record set is for the clients nearest to it, by latency."""
    location: RecordLocation | None = None
    is_multivalue: bool = False
    health_check: str = ""
    rest: str = ""
    """Fields that Nightside's own record sets never have, as JSON."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.name, self.kind, self.identifier

    @property
    def policy(self) -> str:
        """Routing policy; all record sets of one name and kind have the same."""
        if self.rest:
            return self.rest
        if self.location is not None:
            return "geolocation"
        return "latency" if self.region else "multivalue" if self.is_multivalue else "simple"

    def __str__(self) -> str:
        what = f"alias of {self.alias.name}" if self.alias else " ".join(sorted(self.values))
        where = "" if self.location is None else f" for clients in {self.location}"
        nearest = f" nearest to {self.region}" if self.region else ""
        check = f" checked by {self.health_check}" if self.health_check else ""
        ttl = "" if self.ttl_s is None else f" {self.ttl_s}"
        return f"{self.name}{ttl} {self.kind} {what}{where}{nearest}{check}{self.rest}"


def from_api(said: Mapping[str, Any]) -> RecordSet:
    alias, place = said.get("AliasTarget"), said.get("GeoLocation")
    rest = {key: each for key, each in said.items() if key not in _OWN_KEYS}
    return RecordSet(
        name=said["Name"].lower(),
        kind=said["Type"],
        identifier=said.get("SetIdentifier", ""),
        ttl_s=said.get("TTL"),
        values=tuple(sorted(_written(each["Value"]) for each in said.get("ResourceRecords", ()))),
        alias=None
        if alias is None
        else Alias(alias["HostedZoneId"], alias["DNSName"].lower(), alias["EvaluateTargetHealth"]),
        region=said.get("Region", ""),
        location=None
        if place is None
        else RecordLocation(
            place.get("ContinentCode", ""), place.get("CountryCode", ""), place.get("SubdivisionCode", "")
        ),
        is_multivalue=said.get("MultiValueAnswer", False),
        health_check=said.get("HealthCheckId", ""),
        rest=json.dumps(rest, sort_keys=True) if rest else "",
    )


def _written(text: str) -> str:
    """Return one spelling of an IPv6 address, which has many; other text unchanged."""
    try:
        return str(ip_address(text))
    except ValueError:
        return text


def as_api(each: RecordSet) -> ResourceRecordSetTypeDef:
    said: dict[str, Any] = {"Name": each.name, "Type": each.kind}
    words = {"SetIdentifier": each.identifier, "Region": each.region, "HealthCheckId": each.health_check}
    said |= {key: text for key, text in words.items() if text}
    if each.ttl_s is not None:
        said["TTL"] = each.ttl_s
    if each.values:
        said["ResourceRecords"] = [{"Value": text} for text in each.values]
    if each.alias is not None:
        said["AliasTarget"] = {
            "HostedZoneId": each.alias.zone_id,
            "DNSName": each.alias.name,
            "EvaluateTargetHealth": each.alias.evaluates_health,
        }
    if each.location is not None:
        place = each.location
        codes = (
            ("ContinentCode", place.continent),
            ("CountryCode", place.country),
            ("SubdivisionCode", place.subdivision),
        )
        said["GeoLocation"] = {key: code for key, code in codes if code}
    if each.is_multivalue:
        said["MultiValueAnswer"] = True
    if each.rest:
        said |= json.loads(each.rest)
    return cast("ResourceRecordSetTypeDef", said)
