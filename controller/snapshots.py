"""Builds a gateway's snapshot from a view of the stored state. Pure: the same view gives the same snapshot."""

from __future__ import annotations

from controller import documents
from controller.registry import RegisteredReplica
from controller.views import View
from gateway.core.kernel.residency import accepted_origins
from gateway.core.vocabulary import GatewayId, PlaceRule
from mesh.control.vocabulary import ControlSnapshot, ReplicaGrant


def snapshot_for(gateway_id: GatewayId, view: View) -> ControlSnapshot:
    """Return the snapshot of a registered gateway."""
    registry = view.registry
    place = registry.gateways[gateway_id].place
    grants = (each.grant for each in registry.gateways.values() if each.gateway_id != gateway_id)
    return ControlSnapshot(
        version=view.version,
        gateway_id=gateway_id,
        replicas=tuple(_grant(each, gateway_id, view) for each in view.owned.get(gateway_id, ())),
        away=view.away,
        peers=tuple(each for each in grants if each is not None),
        narrowing=registry.narrowings.get(place.region),
        parameters=registry.parameters,
        records=view.records,
        documents=((documents.PRICES, registry.prices),) if registry.prices else (),
        is_drained=registry.gateways[gateway_id].is_drained,
    )


def _grant(replica: RegisteredReplica, owner: GatewayId, view: View) -> ReplicaGrant:
    policy = view.policies.get(replica.home_place.region)
    accepts = PlaceRule() if policy is None else accepted_origins(policy)
    is_own = replica.home == owner
    return ReplicaGrant(replica.document, replica.home, replica.home_place, None if is_own else accepts)
