"""Config section of a key or a token that narrows where its requests may be processed. It decides nothing."""

from __future__ import annotations

from gateway.core.vocabulary import Jurisdiction, PlaceRule, RegionName
from mesh.settings import FileModel
from mesh.values import Id


class ProcessSection(FileModel):
    """Rule on where requests may be processed; the residency policy has to permit a place as well."""

    jurisdictions: tuple[Id, ...] = ()
    """Jurisdictions in which requests may be processed, besides `regions`. Empty: only in `regions`."""
    regions: tuple[Id, ...] = ()
    """Regions in which requests may be processed, besides those of `jurisdictions`. Empty: only in `jurisdictions`."""
    denied_regions: tuple[Id, ...] = ()
    """Regions in which requests are never processed. Empty: none."""

    def rule(self) -> PlaceRule:
        return PlaceRule(
            frozenset(map(Jurisdiction, self.jurisdictions)),
            frozenset(map(RegionName, self.regions)),
            frozenset(map(RegionName, self.denied_regions)),
        )
