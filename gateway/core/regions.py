"""The operators' table of regions: which there are, the jurisdiction that each lies in, and where replicas of each may
stand. It is the only word on a place that is believed; a gateway's, a controller's and a peer's are held against it.

Reading the table is the edge's work (`gateway.ground.regions`). A region that is not in it gets nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gateway.core.vocabulary import Jurisdiction, Place, PlaceRule, RegionName, RegionsWithin


@dataclass(frozen=True, slots=True)
class KnownRegion:
    """One region, as its operators signed it off."""

    jurisdiction: Jurisdiction
    replicas: tuple[str, ...] = ()
    """Where its replicas are reached by gateways other than their own: networks, host names, and endings of host names
    that begin with a dot. Without any, no gateway but their own serves them."""
    announced_by: tuple[RegionName, ...] = ()
    """Further regions whose gateways may announce replicas here."""


@dataclass(frozen=True, slots=True)
class RegionTable:
    """All regions that there are. Nothing is known of any other."""

    regions: dict[RegionName, KnownRegion] = field(default_factory=dict)

    def rule(self) -> PlaceRule:
        """Exactly the places of the table: a rule beside which any other one keeps to them."""
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
        """Why a region is not believed to lie there; empty where the table says so."""
        known = self.regions.get(place.region)
        if known is None:
            return f"region {place.region} is not in the operators' table of regions"
        if known.jurisdiction != place.jurisdiction:
            said = f"in {known.jurisdiction}, not in {place.jurisdiction}"
            return f"the operators' table has region {place.region} {said}"
        return ""

    def lends(self, region: RegionName) -> bool:
        """Do operators say where replicas of that region stand, so that other gateways may serve them?"""
        return region in self.regions and bool(self.regions[region].replicas)


def only(place: Place) -> RegionTable:
    """The table of a region whose policy has none: the region itself."""
    return RegionTable({place.region: KnownRegion(place.jurisdiction)})


def places_in(table: RegionTable) -> Iterator[Place]:
    """In the order of the table."""
    for name, known in table.regions.items():
        yield Place(name, known.jurisdiction)
