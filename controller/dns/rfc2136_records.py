"""Records of a tree in a zone that cannot tell clients apart: the mesh's name with all living gateways, a name for each
region, and the claim on these names. HTTPS records of the regions' names alone say which gateways are the nearest: the
mesh's name has the same for all clients. The module does no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import dns.name
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.rdtypes.txtbase
import dns.rrset

from controller.dns.claim import LABEL, TTL_S, OwnerClaim, claim_in
from controller.dns.provider import PublishedRecords
from gateway.core.vocabulary import RegionName
from mesh.naming.tree import Area, RecordTree
from mesh.naming.zone import (
    HttpsTarget,
    Zone,
    address_sets,
    https_set,
    https_targets,
    region_name,
    services,
    target_names,
)

ADDRESSES_MAX = 100
"""Addresses of one kind under one name."""
Key = tuple[dns.name.Name, dns.rdatatype.RdataType]
Records = Mapping[Key, dns.rrset.RRset]

_A, _AAAA, _HTTPS, _SRV, _TXT = (dns.rdatatype.from_text(each) for each in ("A", "AAAA", "HTTPS", "SRV", "TXT"))
_OF_A_NAME = (_A, _AAAA, _HTTPS)
_OF_A_TARGET = (_A, _AAAA)


def claim_key(zone: dns.name.Name) -> Key:
    return dns.name.from_text(LABEL, origin=zone), _TXT


def owned_keys(zone: dns.name.Name, claim: OwnerClaim) -> Iterator[Key]:
    """Yield the keys of all records under that claim, its own included. Raises ValueError."""
    yield claim_key(zone)
    for kind in _OF_A_NAME:
        yield zone, kind
    for name, (kind_name, _) in services(zone, _serving(claim)).items():
        yield name, dns.rdatatype.from_text(kind_name)
    for region in claim.regions:
        name = name_of(region, zone)
        yield dns.name.from_text(LABEL, origin=name), _TXT
        for kind in _OF_A_NAME:
            yield name, kind
        if claim.has_targets:
            yield from ((target, kind) for target in target_names(region, zone) for kind in _OF_A_TARGET)


def _serving(claim: OwnerClaim) -> RecordTree:
    return RecordTree(claim.version, 0, (), (), port=claim.port, tls=claim.tls)


def name_of(region: RegionName, zone: dns.name.Name) -> dns.name.Name:
    """Return a region's name in the zone. Raises ValueError where the region makes none."""
    name = region_name(region, zone)
    if name is None:
        raise ValueError(f"{region} makes no name below {zone}")
    return name


def wanted(tree: RecordTree, claim: OwnerClaim) -> dict[Key, dns.rrset.RRset]:
    """Return the record sets of a tree. Raises ValueError, in words, for a tree that they cannot express."""
    zone = Zone(tree).name
    closed = sorted({each.jurisdiction for each in tree.areas if each.is_closed})
    if closed:
        raise ValueError(f"{' and '.join(closed)}: closed, and this server gives every client the same answer")
    sets = [*_at(zone, tree.anywhere, tree)]
    for name, (kind, words) in services(zone, tree).items():
        sets.append(dns.rrset.from_text(name, tree.ttl_s, "IN", kind, words))
    targets = https_targets(zone, tree)
    for area in tree.areas:
        name = name_of(area.region, zone)
        mark = dns.name.from_text(LABEL, origin=name)
        leads_to = targets.get(area.region, ())
        for each in leads_to:
            sets += _checked(each.name, each.addresses, tree)
        sets += [*_at(name, _fitting(area), tree, leads_to), txt_set(mark, [f"heritage=nightside owner={claim.owner}"])]
    sets.append(txt_set(claim_key(zone)[0], claim.strings()))
    return {(each.name, each.rdtype): each for each in sets}


def _fitting(area: Area) -> tuple[str, ...]:
    """Return the addresses of an area, without the further gateways' where all are too many for one name."""
    by_version = Counter(":" in each for each in area.addresses)
    if max(by_version.values(), default=0) <= ADDRESSES_MAX:
        return area.addresses
    return tuple(each for each in area.addresses if each not in area.further)


def txt_set(name: dns.name.Name, strings: Iterable[str]) -> dns.rrset.RRset:
    data = dns.rdtypes.txtbase.TXTBase  # type of a TXT record, for the type checker
    record = dns.rdata.from_text(dns.rdataclass.IN, _TXT, " ".join(f'"{each}"' for each in strings))
    assert isinstance(record, data)
    return dns.rrset.from_rdata(name, TTL_S, record)


def claim_of(found: Records, zone: dns.name.Name) -> OwnerClaim | None:
    """Return the claim among the records; None where there is none, or not one of Nightside's."""
    record = found.get(claim_key(zone))
    if record is None or len(record) != 1:
        return None
    return claim_in(each.decode("ascii", "replace") for each in record[0].strings)


def published(found: Records, claim: OwnerClaim, zone: dns.name.Name) -> PublishedRecords:
    areas = {region: frozenset(_addresses(found, name_of(region, zone))) for region in claim.regions}
    further = {region: frozenset(_further(found, region, zone)) for region in claim.regions if claim.has_targets}
    named = {region: addresses for region, addresses in further.items() if addresses}
    return PublishedRecords(claim.version, areas, frozenset(_addresses(found, zone)), named)


def _further(found: Records, region: RegionName, zone: dns.name.Name) -> Iterator[str]:
    """Yield the addresses of the target that the HTTPS records of a region name second."""
    for each in found.get((name_of(region, zone), _HTTPS), ()):
        if each.priority == 2:
            yield from _addresses(found, each.target)


def is_same(one: dns.rrset.RRset | None, other: dns.rrset.RRset | None) -> bool:
    return one == other and (one is None or other is None or one.ttl == other.ttl)


def _addresses(found: Records, name: dns.name.Name) -> Iterator[str]:
    for kind in (_A, _AAAA):
        for each in found.get((name, kind), ()):
            yield each.to_text()


def _at(
    name: dns.name.Name, addresses: Collection[str], tree: RecordTree, targets: Sequence[HttpsTarget] = ()
) -> Iterator[dns.rrset.RRset]:
    yield from _checked(name, addresses, tree)
    if addresses and tree.tls:
        yield https_set(name, tree, targets or [HttpsTarget(name, ())])


def _checked(name: dns.name.Name, addresses: Iterable[str], tree: RecordTree) -> Iterator[dns.rrset.RRset]:
    for each in address_sets(name, addresses, tree.ttl_s):
        if len(each) > ADDRESSES_MAX:
            raise ValueError(f"{name} has {len(each)} addresses, and at most {ADDRESSES_MAX} are published by one name")
        yield each
