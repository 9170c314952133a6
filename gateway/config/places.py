"""Where requests may be processed, as a key or a token narrows it: the keys of such a section. It decides nothing."""

from __future__ import annotations

from gateway.core.vocabulary import Jurisdiction, PlaceRule, RegionName
from gateway.ground.settings import FileModel
from gateway.ground.values import Id


class ProcessSection(FileModel):
    """Where requests may be processed, besides what the policy says: both have to allow a place."""

    jurisdictions: tuple[Id, ...] = ()
    regions: tuple[Id, ...] = ()
    denied_regions: tuple[Id, ...] = ()

    def rule(self) -> PlaceRule:
        return PlaceRule(
            frozenset(map(Jurisdiction, self.jurisdictions)),
            frozenset(map(RegionName, self.regions)),
            frozenset(map(RegionName, self.denied_regions)),
        )
