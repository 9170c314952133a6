"""Config section of a key or a token that narrows where its requests may be processed. It decides nothing."""

from __future__ import annotations

from gateway.core.vocabulary import Jurisdiction, PlaceRule, RegionName
from mesh.settings import FileModel
from mesh.values import Id


class ProcessSection(FileModel):
    """Places where requests may be processed; both this section and the policy have to allow a place."""

    jurisdictions: tuple[Id, ...] = ()
    regions: tuple[Id, ...] = ()
    denied_regions: tuple[Id, ...] = ()

    def rule(self) -> PlaceRule:
        return PlaceRule(
            frozenset(map(Jurisdiction, self.jurisdictions)),
            frozenset(map(RegionName, self.regions)),
            frozenset(map(RegionName, self.denied_regions)),
        )
