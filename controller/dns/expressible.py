"""Limits of each provider, as far as the controller's file shows them: settings that a provider cannot follow are
refused as the file is read, so that nothing is published that only nearly says what was meant."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from controller.aws_regions import aws_region_faults
from controller.dns.config import HealthCheckKind, RecordsConfig, RecordsKind, Rfc2136Config, Route53Config, secret_of
from controller.dns.route53.record_sets import NO_CLIENTS, RecordLocation, location_of
from gateway.core.kernel.regions import RegionTable
from gateway.core.vocabulary import Jurisdiction, RegionName
from mesh.faults import FileFault

_HOSTED_ZONE = re.compile(r"[A-Z0-9]{1,32}")
_FAILURES_MAX = 10


def zone_of(text: str | None) -> str:
    """Return the fully qualified name, with the final dot; empty without a zone."""
    return "" if text is None else f"{text.rstrip('.').lower()}."


def record_faults(
    records: RecordsConfig,
    zone: str,
    closed: Collection[Jurisdiction],
    said: Mapping[str, bool],
    key: str,
    *,
    regions: RegionTable,
) -> Iterator[FileFault]:
    """Yield the faults of the records' settings. `said`: keys of naming that only Nightside's own name servers could
    follow, and whether each is set. `key` is the content of key_file, `regions` the table of all regions."""
    if records.provider is RecordsKind.NONE:
        return
    if not zone:
        yield FileFault(
            "naming.zone", f"is missing, and records.provider is {records.provider}", beside="records.provider"
        )
    reasons = {
        "naming.networks": {
            RecordsKind.ROUTE53: "Route53 finds out by itself where clients are",
            RecordsKind.RFC2136: "the name server tells all clients the same",
        },
        "naming.name_servers": dict.fromkeys(RecordsKind, "others answer for the zone then"),
    }
    for name, is_said in said.items():
        if is_said:
            reason = reasons[name][records.provider]
            yield FileFault(name, f"cannot be followed where records.provider is {records.provider}: {reason}")
    if records.provider is RecordsKind.ROUTE53:
        yield from _route53_faults(records.route53, closed, regions)
    else:
        yield from _rfc2136_faults(records.rfc2136, zone, closed, key)


def lease_faults(records: RecordsConfig, left_ns: int) -> Iterator[FileFault]:
    """Yield a fault where `left_ns`, the rest of a lease that is about to be renewed, is no longer than a write may
    take: no write would ever begin."""
    if records.write_longest_ns >= left_ns:
        yield FileFault(
            f"records.{records.provider}.timeout",
            "a write may take longer than is left of a lease before it is renewed, and would never be begun",
            beside="store.lease",
        )


def _route53_faults(
    config: Route53Config, closed: Collection[Jurisdiction], regions: RegionTable
) -> Iterator[FileFault]:
    at = "records.route53"
    if config.hosted_zone is None or not _HOSTED_ZONE.fullmatch(config.hosted_zone):
        yield FileFault(f"{at}.hosted_zone", "should be the id of the hosted zone, such as Z0123456789ABC")
    yield from aws_region_faults(config.regions, f"{at}.regions")
    seen: dict[tuple[str, str], str] = {}
    for region in dict.fromkeys((*regions.regions, *map(RegionName, config.regions))):
        known = regions.regions.get(region)
        led_among = known.jurisdiction if known is not None and known.jurisdiction in closed else ""
        aws_region = config.regions.get(region, region)
        other = seen.setdefault((led_among, aws_region), region)
        if other != region:
            words = f"two regions are at one AWS region, and Route53 takes one of them: {other} and {region}"
            yield FileFault(f"{at}.regions", f"{words} at {aws_region}")
    taken: dict[RecordLocation, str] = {}
    for jurisdiction, places in config.locations.items():
        for index, text in enumerate(places):
            key = f"{at}.locations.{jurisdiction}[{index}]"
            try:
                place = location_of(text)
            except ValueError as error:
                yield FileFault(key, str(error))
                continue
            if place == NO_CLIENTS:
                yield FileFault(key, "continent:AN is taken by the records that no client gets")
            if taken.setdefault(place, jurisdiction) != jurisdiction:
                yield FileFault(key, f"{text} is {taken[place]}'s already")
    for jurisdiction in closed:
        if not config.locations.get(jurisdiction):
            yield FileFault(
                f"{at}.locations",
                f"does not say where {jurisdiction} is, which is closed: its clients could not be kept there",
                beside="decisions.closed_jurisdictions",
            )
    checks = config.health_checks
    if checks.kind is not HealthCheckKind.NONE and not 1 <= checks.failures <= _FAILURES_MAX:
        yield FileFault(f"{at}.health_checks.failures", f"Route53 takes 1 to {_FAILURES_MAX}")
    if not checks.path.startswith("/"):
        yield FileFault(f"{at}.health_checks.path", "should begin with a slash")


def _rfc2136_faults(
    config: Rfc2136Config, zone: str, closed: Collection[Jurisdiction], key: str
) -> Iterator[FileFault]:
    at = "records.rfc2136"
    if closed:
        yield FileFault(
            "decisions.closed_jurisdictions",
            f"{', '.join(sorted(closed))}: a name server that tells all clients the same cannot keep any in a place",
            beside="records.provider",
        )
    if config.server is None:
        yield FileFault(f"{at}.server", "is missing: the zone's primary, such as 192.0.2.53:53")
    if config.key_file is None:
        yield FileFault(f"{at}.key_file", "is missing: updates are signed, or not made at all")
    else:
        try:
            secret_of(key)
        except ValueError as error:
            yield FileFault(f"{at}.key_file", str(error))
    if config.zone is not None and zone and not f".{zone}".endswith(f".{zone_of(config.zone)}"):
        yield FileFault(f"{at}.zone", f"{config.zone} does not hold {zone}", beside="naming.zone")
