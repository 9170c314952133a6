"""Record sets of a tree in Route53: geolocation on top, latency below, and at the bottom the gateways' addresses.

    the mesh's name     geolocation: each place of a closed jurisdiction -> closed, all others -> open
    JURISDICTION.closed latency among the regions of that jurisdiction alone -> their pools
    open                latency among all regions in open jurisdictions -> their pools
    REGION.pool         one record for each gateway's address, up to eight of which are answered at a time
    the empty name      geolocation for a place where no clients are: an answer without an address
    REGION.(the name)   geolocation: places of other closed jurisdictions -> the empty name, all others -> the pool

With further gateways, HTTPS records of a region's name lead to two names below it, the nearest gateways' first. Those
of the mesh's name lead to no such names: Route53 would have to choose them too by location and latency.

    REGION.nearest      one record for each address of the nearest gateways
    REGION.further      the same for the further gateways
    nearest.REGION.(the name), further.REGION.(the name)
                        geolocation, as for the region's name

Of a pool, the first hundred addresses of each IP version are written. Only where no region is open, a pool `anywhere`
has the addresses for clients elsewhere. A region whose clients may be sent to no gateway leads to the empty name for
both kinds of address, and so does the kind that a region's gateways do not have: otherwise Route53 would lead its
clients to the next nearest region. The module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address

import dns.name

from controller.dns.claim import LABEL, TTL_S, OwnerClaim, claim_in
from controller.dns.config import Route53Config
from controller.dns.provider import PublishedRecords
from controller.dns.route53.record_sets import ELSEWHERE, NO_CLIENTS, Alias, RecordLocation, RecordSet, location_of
from gateway.core.vocabulary import Jurisdiction, RegionName
from mesh.naming.tree import Area, RecordTree
from mesh.naming.zone import HttpsTarget, Zone, https_set, https_targets, region_name, services, target_names

SETS_MAX = 100
"""Record sets of one name and kind that Route53 accepts, and so the most addresses of a pool of each IP version."""
KINDS = {"A": 4, "AAAA": 6}
_NOWHERE = {"A": "192.0.2.0", "AAAA": "2001:db8::"}
"""Documentation addresses (RFC 5737, RFC 3849): a record has to have an address."""
_NO_ADDRESS = "no-address"
"""Label of the records without an address."""
_Targets = Mapping[RegionName, Sequence[HttpsTarget]]


class Route53Layout:
    """Names of one zone."""

    def __init__(self, zone: str, hosted_zone: str, config: Route53Config) -> None:
        """`zone` is the mesh's name. Raises ValueError for places that Route53 does not know."""
        self.zone = zone
        self.below = f"{LABEL}.{zone}"
        self._hosted_zone = hosted_zone
        self._config = config
        self._places = {
            Jurisdiction(jurisdiction): tuple(location_of(each) for each in places)
            for jurisdiction, places in config.locations.items()
        }

    def wanted(self, tree: RecordTree, claim: OwnerClaim, checks: Mapping[str, str]) -> list[RecordSet]:
        """Return all record sets, targets before the aliases that lead to them. `checks`: ids of health checks by
        address. Raises ValueError, in words, for a tree that these records cannot express."""
        targets = https_targets(Zone(tree).name, tree)
        sets = [*self._leaves(tree, targets, checks), *self._branches(tree, targets), *self._services(tree, targets)]
        sets.append(self.claim_record(claim))
        counts: dict[tuple[str, str], int] = {}
        for each in sets:
            counts[each.name, each.kind] = counts.get((each.name, each.kind), 0) + 1
        for (name, kind), count in counts.items():
            if count > SETS_MAX:
                raise ValueError(f"{name} {kind} would be {count} record sets, and Route53 takes {SETS_MAX}")
        return sets

    def claim_record(self, claim: OwnerClaim) -> RecordSet:
        text = " ".join(f'"{each}"' for each in claim.strings())
        return RecordSet(self.below, "TXT", ttl_s=TTL_S, values=(text,))

    def claim_of(self, found: Iterable[RecordSet]) -> OwnerClaim | None:
        """Return the claim among the record sets; None where there is none, or not one of Nightside's."""
        texts = [each.values for each in found if each.key == (self.below, "TXT", "")]
        if len(texts) != 1 or len(texts[0]) != 1:
            return None
        return claim_in(texts[0][0].strip('"').split('" "'))

    def is_ours(self, each: RecordSet, claim: OwnerClaim) -> bool:
        """Return whether the claim covers the record set, by its name and kind."""
        if each.name == self.below or each.name.endswith(f".{self.below}"):
            return True
        return (each.name, each.kind) in self.owned(claim)

    def owned(self, claim: OwnerClaim) -> set[tuple[str, str]]:
        zone = dns.name.from_text(self.zone)
        names = [self.zone, *(self._region_name(region) for region in claim.regions)]
        targets = [each for region in claim.regions if claim.has_targets for each in target_names(region, zone)]
        return (
            {(name, kind) for name in names for kind in (*KINDS, "HTTPS")}
            | {(name.to_text(), kind) for name in targets for kind in KINDS}
            | {(name.to_text(), kind) for name, (kind, _) in services(zone, _serving(claim)).items()}
        )

    def published(self, found: Iterable[RecordSet], claim: OwnerClaim) -> PublishedRecords:
        pools: dict[str, set[str]] = {}
        second: dict[str, dns.name.Name] = {}
        for each in found:
            if each.kind in KINDS:
                pools.setdefault(each.name, set()).update(each.values)
            for priority, target in (text.split()[:2] for text in each.values if each.kind == "HTTPS"):
                if priority == "2":
                    second[each.name] = dns.name.from_text(target)
        areas = {region: frozenset(pools.get(self._pool(region), ())) for region in claim.regions}
        further = {
            region: frozenset(pools.get(self._target_pool(region, second[name]), ()))
            for region in claim.regions
            if (name := self._region_name(region)) in second
        }
        return PublishedRecords(claim.version, areas, frozenset(pools.get(self._anywhere, ())), further)

    # Addresses

    def _leaves(self, tree: RecordTree, targets: _Targets, checks: Mapping[str, str]) -> Iterator[RecordSet]:
        for kind, text in _NOWHERE.items():
            name = f"{_NO_ADDRESS}.{self.below}"
            yield RecordSet(name, kind, _NO_ADDRESS, tree.ttl_s, (text,), location=NO_CLIENTS)
        for name, addresses in self._pools(tree, targets).items():
            for kind in KINDS:
                for text in _of_kind(addresses, kind)[:SETS_MAX]:
                    check = checks.get(text, "")
                    yield RecordSet(name, kind, text, tree.ttl_s, (text,), is_multivalue=True, health_check=check)

    def addresses(self, tree: RecordTree) -> set[str]:
        """Return the addresses that the records name."""
        pools = self._pools(tree, {}).values()
        return {text for each in pools for kind in KINDS for text in _of_kind(each, kind)[:SETS_MAX]}

    def left_out(self, tree: RecordTree) -> str:
        """Say in words which pools have more addresses than Route53 takes; empty: none."""
        counts = [
            f"{name} {kind} {len(found)}"
            for name, addresses in self._pools(tree, {}).items()
            for kind in KINDS
            if len(found := _of_kind(addresses, kind)) > SETS_MAX
        ]
        return f"Route53 takes the first {SETS_MAX} of these addresses: {', '.join(counts)}" if counts else ""

    def _pools(self, tree: RecordTree, targets: _Targets) -> dict[str, Sequence[str]]:
        """Addresses by name. Those for unknown locations have one only where no open region is led to instead."""
        pools: dict[str, Sequence[str]] = {self._pool(each.region): each.addresses for each in tree.areas}
        if all(each.is_closed for each in tree.areas):
            pools[self._anywhere] = tree.anywhere
        for region, found in targets.items():
            pools |= {self._target_pool(region, each.name): each.addresses for each in found}
        return pools

    @property
    def _anywhere(self) -> str:
        return f"anywhere.{self.below}"

    def _pool(self, region: RegionName) -> str:
        return f"{region.lower()}.pool.{self.below}"

    def _target_pool(self, region: RegionName, target: dns.name.Name) -> str:
        return f"{region.lower()}.{target.labels[0].decode()}.{self.below}"

    # Aliases

    def _branches(self, tree: RecordTree, targets: _Targets) -> Iterator[RecordSet]:
        closed = dict.fromkeys(each.jurisdiction for each in tree.areas if each.is_closed)
        for jurisdiction in closed:
            if not self._places.get(jurisdiction):
                raise ValueError(f"{jurisdiction} is closed, and records.route53.locations does not say where it is")
        for kind in KINDS:
            is_open = [each for each in tree.areas if not each.is_closed]
            yield from self._nearest(f"open.{self.below}", kind, is_open)
            for jurisdiction in closed:
                inside = [each for each in tree.areas if each.is_closed and each.jurisdiction == jurisdiction]
                yield from self._nearest(self._closed(jurisdiction), kind, inside)
            for area in tree.areas:
                others = [each for each in closed if each != area.jurisdiction]
                turned_away = {place: self._no_address for each in others for place in self._places[each]}
                yield from self._by_place(self._region_name(area.region), kind, self._to(area, kind), turned_away)
                for each in targets.get(area.region, ()):
                    pool = self._target_pool(area.region, each.name) if _has(each.addresses, kind) else self._no_address
                    yield from self._by_place(each.name.to_text(), kind, pool, turned_away)
            kept = {place: self._closed(each) for each in closed for place in self._places[each]}
            elsewhere = f"open.{self.below}" if is_open else self._to_anywhere(tree, kind)
            yield from self._by_place(self.zone, kind, elsewhere, kept)

    def _nearest(self, name: str, kind: str, areas: Iterable[Area]) -> Iterator[RecordSet]:
        """Choose among those regions by latency. Route53 takes no other region where the nearest one has no address."""
        seen: dict[str, RegionName] = {}
        for area in areas:
            aws_region = self._config.regions.get(area.region, area.region)
            other = seen.setdefault(aws_region, area.region)
            if other != area.region:
                raise ValueError(f"{other} and {area.region} are both at {aws_region}, and Route53 takes one of them")
            alias = self._alias(self._to(area, kind))
            yield RecordSet(name, kind, area.region, alias=alias, region=aws_region)

    def _by_place(
        self, name: str, kind: str, elsewhere: str, places: Mapping[RecordLocation, str]
    ) -> Iterator[RecordSet]:
        for place, target in {**places, ELSEWHERE: elsewhere}.items():
            identifier = "elsewhere" if place == ELSEWHERE else str(place)
            yield RecordSet(name, kind, identifier, alias=self._alias(target), location=place)

    def _to(self, area: Area, kind: str) -> str:
        return self._pool(area.region) if _has(area.addresses, kind) else self._no_address

    def _to_anywhere(self, tree: RecordTree, kind: str) -> str:
        return self._anywhere if _has(tree.anywhere, kind) else self._no_address

    @property
    def _no_address(self) -> str:
        return f"{_NO_ADDRESS}.{self.below}"

    def _closed(self, jurisdiction: Jurisdiction) -> str:
        return f"{jurisdiction.lower()}.closed.{self.below}"

    def _alias(self, name: str) -> Alias:
        return Alias(self._hosted_zone, name)

    def _region_name(self, region: RegionName) -> str:
        name = region_name(region, dns.name.from_text(self.zone))
        if name is None:
            raise ValueError(f"{region} makes no name below {self.zone}")
        return name.to_text()

    # Services

    def _services(self, tree: RecordTree, targets: _Targets) -> Iterator[RecordSet]:
        zone = dns.name.from_text(self.zone)
        for name, (kind, words) in services(zone, tree).items():
            yield RecordSet(name.to_text(), kind, ttl_s=tree.ttl_s, values=(words,))
        if not tree.tls:
            return
        leads_to: dict[str, Sequence[HttpsTarget]] = {self.zone: ()}
        leads_to |= {
            self._region_name(each.region): targets.get(each.region, ()) for each in tree.areas if each.addresses
        }
        for text, found in leads_to.items():
            name = dns.name.from_text(text)
            records = https_set(name, tree, found or [HttpsTarget(name, ())])
            yield RecordSet(text, "HTTPS", ttl_s=tree.ttl_s, values=tuple(each.to_text() for each in records))


def _serving(claim: OwnerClaim) -> RecordTree:
    return RecordTree(claim.version, 0, (), (), port=claim.port, tls=claim.tls)


def _kind_of(address: str) -> str:
    return "A" if ip_address(address).version == 4 else "AAAA"


def _of_kind(addresses: Iterable[str], kind: str) -> list[str]:
    """Return each address of one kind once, in its usual spelling."""
    return list(dict.fromkeys(str(ip_address(each)) for each in addresses if _kind_of(each) == kind))


def _has(addresses: Iterable[str], kind: str) -> bool:
    return any(_kind_of(each) == kind for each in addresses)
