"""Replicas that a simulated gateway serves: those of its snapshot, its own that are not away, and none of another's."""

from __future__ import annotations

from gateway.core.vocabulary import ControlVersion, GatewayId, Jurisdiction, Place, PlaceRule, RegionName, ReplicaId
from loadgen.simulator.attachments import served
from mesh.control.vocabulary import ControlSnapshot, ReplicaGrant, ReplicaOwner

US, EU = GatewayId("us/gw"), GatewayId("eu/gw")
OWN = (ReplicaId("us/0"), ReplicaId("us/1"))
PLACE = Place(RegionName("eu"), Jurisdiction("EU"))


def snapshot(*granted: str, away: dict[str, GatewayId] | None = None) -> ControlSnapshot:
    grants = tuple(ReplicaGrant(each, EU, PLACE, PlaceRule()) for each in granted)
    owners = tuple(ReplicaOwner(ReplicaId(each), US, owner) for each, owner in (away or {}).items())
    return ControlSnapshot(ControlVersion(1, 1), US, grants, owners)


def test_without_a_snapshot_its_own() -> None:
    assert served(OWN, US, None, ()) == OWN


def test_with_one_what_it_gives_and_its_own_that_it_does_not_name() -> None:
    assert set(served(OWN, US, snapshot("eu/0", "us/0"), ())) == {"eu/0", "us/0", "us/1"}


def test_what_is_away_is_not_served_and_what_is_away_to_here_is() -> None:
    assert served(OWN, US, snapshot(away={"us/0": EU}), ()) == ("us/1",)
    assert set(served(OWN, US, snapshot("eu/0", away={"eu/0": US}), ())) == {"eu/0", *OWN}


def test_what_peers_say_is_anothers_is_not_served() -> None:
    assert served(OWN, US, snapshot("eu/0"), [ReplicaId("eu/0"), OWN[0]]) == ("us/1",)


def test_nor_by_one_that_has_no_snapshot_at_all() -> None:
    assert served(OWN, US, None, [OWN[0]]) == ("us/1",)
