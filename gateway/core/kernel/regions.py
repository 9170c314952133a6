"""Operators' table of regions: the regions that exist, the jurisdiction of each, and where its replicas may run. The
table is the only trusted source on places; claims of gateways, controllers and peers are checked against it.

`mesh.regions` reads the table. A region that is absent from it receives no traffic.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field

from gateway.core.vocabulary import Jurisdiction, Place, PlaceRule, RegionName, RegionsWithin


class KnownRegion(Struct, frozen=True):
    """One region as its operators declared it."""

    jurisdiction: Jurisdiction
    replicas: tuple[str, ...] = ()
    """Addresses at which gateways of other regions reach this region's replicas: networks, host names, and host name
    suffixes that begin with a dot. Empty: only the region's own gateways serve its replicas."""
    announced_by: tuple[RegionName, ...] = ()
    """Further regions whose gateways may announce replicas in this region."""


class RegionTable(Struct, frozen=True):
    """All known regions. A region outside the table is unknown."""

    regions: dict[RegionName, KnownRegion] = field(default_factory=dict)

    def rule(self) -> PlaceRule:
        """Rule that allows exactly the places of the table; `both` of it and another rule keeps that rule to the
        table."""
        within: dict[Jurisdiction, list[RegionName]] = {}
        for name, known in self.regions.items():
            within.setdefault(known.jurisdiction, []).append(name)
        return PlaceRule(
            regions_within=tuple(
                RegionsWithin(frozenset(names), frozenset({jurisdiction}))
                for jurisdiction, names in sorted(within.items())
            )
        )

    def place_fault(self, place: Place) -> str:
        """Reason why the place is not trusted to lie in its jurisdiction; empty if the table confirms it."""
        known = self.regions.get(place.region)
        if known is None:
            return f"region {place.region} is not in the operators' table of regions"
        if known.jurisdiction != place.jurisdiction:
            said = f"in {known.jurisdiction}, not in {place.jurisdiction}"
            return f"the operators' table has region {place.region} {said}"
        return ""

    def lends(self, region: RegionName) -> bool:
        """Return whether the table says where the region's replicas run, so that other gateways may serve them."""
        return region in self.regions and bool(self.regions[region].replicas)


def only(place: Place) -> RegionTable:
    """Table that contains only the region of `place`: the default for a policy without a table."""
    return RegionTable({place.region: KnownRegion(place.jurisdiction)})


def places_in(table: RegionTable) -> Iterator[Place]:
    """Yield every place of the table, in its order."""
    for name, known in table.regions.items():
        yield Place(name, known.jurisdiction)
