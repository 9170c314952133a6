"""What a controller's snapshot comes to at one gateway. It is taken whole or refused whole, with the reason; only a
replica whose key this gateway has not, or may not use, is left out by itself.

Nothing here is put in force, and nothing is asked of the snapshot that a region file would not be asked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gateway.config.checks import core_faults
from gateway.config.region_file import CoreFile, ReplicaFile
from gateway.config.sections import GatewayConfig, ParametersRule
from gateway.config.targets import PeerConfig, ReplicaConfig
from gateway.core.config import CoreConfig
from gateway.core.decode.config import check_decode
from gateway.core.residency import ResidencyPolicy
from gateway.core.vocabulary import (
    Connector,
    ControlVersion,
    Jurisdiction,
    PeerSpec,
    Place,
    PoolName,
    PoolSpec,
    RegionName,
    ReplicaRole,
    ReplicaSpec,
)
from gateway.ground.control.vocabulary import PeerGrant, ReplicaGrant, ReplicaOwner, Snapshot
from gateway.ground.environment import PROCESS_ENVIRONMENT
from gateway.ground.faults import ConfigError
from gateway.ground.naming.tree import RecordTree
from gateway.ground.settings import settings_as_file
from gateway.ground.values import CERTIFICATE_NAME_PATTERN, Surroundings, parse_address
from gateway.ground.yaml_file import faults_in

_CREDENTIAL_KEYS = ("api_key_env", "api_key_file")


class OrdersRefused(ConfigError):
    """A snapshot that this gateway cannot serve by: why, in words."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What to serve by, as far as a controller has a say in it."""

    version: ControlVersion = field(default_factory=ControlVersion)
    replicas: tuple[ReplicaConfig, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    """By id, those that are granted and cannot be served here, and why."""
    away: frozenset[str] = frozenset()
    """Ids of those that somebody else serves, or nobody by an operator's order."""
    adopted: frozenset[str] = frozenset()
    """Ids of those that are granted here, and at home elsewhere."""
    pools: tuple[PoolSpec, ...] = ()
    """Those of the replicas above of which there is more to say than their names."""
    peers: tuple[PeerConfig, ...] = ()
    """All: the region file's, and further ones."""
    core: CoreConfig = field(default_factory=CoreConfig)
    narrowing: ResidencyPolicy | None = None
    records: RecordTree | None = None
    """What the mesh's one name says; None: as before."""


def without_orders(local: GatewayConfig) -> Orders:
    """Where no controller ever said anything."""
    return Orders(peers=local.peers, core=local.core)


def read_orders(snapshot: Snapshot, local: GatewayConfig, environ: Mapping[str, str] = PROCESS_ENVIRONMENT) -> Orders:
    """Raises OrdersRefused."""
    if snapshot.gateway_id != local.gateway_id:
        raise OrdersRefused(f"it is for gateway {snapshot.gateway_id}")
    _check_jurisdictions(snapshot, local)
    if snapshot.narrowing is not None and snapshot.narrowing.place != local.place:
        raise OrdersRefused("narrowing: it is for another region")
    core = _with_parameters(local, snapshot.parameters)
    _check_own_pools(local, core)
    replicas, left_out, adopted, pools = _replicas(snapshot.replicas, local, environ)
    replicas, unfit = _without_unfit(replicas, pools, core)
    left_out |= unfit
    return Orders(
        version=snapshot.version,
        replicas=replicas,
        pools=tuple(pools.values()),
        left_out=left_out,
        away=away_from(local, snapshot.away),
        adopted=adopted,
        peers=(*local.peers, *_further_peers(snapshot.peers, local)),
        core=core,
        narrowing=snapshot.narrowing,
        records=snapshot.records,
    )


def away_from(local: GatewayConfig, owners: Iterable[ReplicaOwner]) -> frozenset[str]:
    """Ids of those that others serve, or NOBODY."""
    return frozenset(each.replica_id for each in owners if each.owner != local.gateway_id)


# Replicas


def _replicas(
    grants: Iterable[ReplicaGrant], local: GatewayConfig, environ: Mapping[str, str]
) -> tuple[tuple[ReplicaConfig, ...], dict[str, str], frozenset[str], dict[PoolName, PoolSpec]]:
    """Those to serve, those left out and why, which of all of them are at home elsewhere, and the pools."""
    served: dict[str, tuple[ReplicaConfig, ...]] = {}
    pools = {each.name: each for each in local.pools}
    left_out: dict[str, str] = {}
    adopted: set[str] = set()
    for index, grant in enumerate(grants):
        what = f"replicas[{index}]"
        document = _json_object(grant.document, what)
        name = str(document.get("id", ""))
        if name in served or name in left_out:
            raise OrdersRefused(f"{what}: {name} is granted twice")
        if grant.home != local.gateway_id:
            adopted.add(name)
            if grant.accepts is None:
                raise OrdersRefused(f"{what}: nothing says what the home of {name} accepts")
        if why := _may_not_use(document, local):
            left_out[name] = why
            continue
        try:
            file = ReplicaFile.model_validate(document, context=Surroundings(local.folder, environ))
        except ValidationError as error:
            left_out[name] = _want_of_credential(error, what)
        else:
            connectors: dict[str, Connector | None] = {each.name: each.connector for each in local.pools}
            configs = file.as_configs(grant.home_place, local.probes, connectors)
            pool = file.pool_name
            if not isinstance(file.pool, str) or (file.role is not ReplicaRole.UNIFIED and name in adopted):
                pool = PoolName(f"{pool}@{grant.home}") if name in adopted else pool
            if not isinstance(file.pool, str):
                pools[pool] = replace(file.pool.as_spec(), name=pool)
            served[name] = tuple(
                replace(each, spec=replace(each.spec, accepts=grant.accepts, pool=pool)) for each in configs
            )
    replicas = tuple(each for configs in served.values() for each in configs)
    return replicas, left_out, frozenset(adopted), pools


def _check_own_pools(local: GatewayConfig, core: CoreConfig) -> None:
    for pool in local.pools:
        try:
            if pool.connector is not None:
                check_decode(core.decode, pool.connector)
        except ValueError as error:
            raise OrdersRefused(f"parameters: decode: {error} (pool {pool.name})") from error


def _without_unfit(
    replicas: tuple[ReplicaConfig, ...], pools: Mapping[PoolName, PoolSpec], core: CoreConfig
) -> tuple[tuple[ReplicaConfig, ...], dict[str, str]]:
    """Those that can be served, and by id why others cannot: parts of pools that nobody describes, that stand in
    several places, or that our own settings for decoding do not fit."""
    homes: dict[PoolName, object] = {}
    left_out: dict[str, str] = {}
    for each in replicas:
        spec = each.spec
        if spec.role is ReplicaRole.UNIFIED:
            continue
        why = _why_unfit(spec, pools.get(spec.pool), core)
        if not why and homes.setdefault(spec.pool, (spec.place, spec.accepts)) != (spec.place, spec.accepts):
            why = f"pool {spec.pool}: it stands elsewhere than the rest of it, or takes what that does not"
        if why:
            left_out[spec.replica_id] = why
    return tuple(each for each in replicas if each.spec.replica_id not in left_out), left_out


def _why_unfit(spec: ReplicaSpec, pool: PoolSpec | None, core: CoreConfig) -> str:
    if pool is None or pool.connector is None:
        return f"role {spec.role}: nobody describes pool {spec.pool}, or it is not disaggregated"
    try:
        check_decode(core.decode, pool.connector)
    except ValueError as error:
        return f"pool {spec.pool}: decode: {error}"
    return ""


def _may_not_use(document: Mapping[str, Any], local: GatewayConfig) -> str:
    """Why a key must not be sent to the engine; empty where nothing speaks against it. Whoever describes a replica says
    where its key is read from and where it is sent, so this gateway's own operator says which ones there are."""
    for key in _CREDENTIAL_KEYS:
        name = document.get(key)
        if isinstance(name, str) and not _is_allowed(name, key, local):
            return f"{key} {name} is named neither in this gateway's region file nor by control.credentials"
    return ""


def _is_allowed(name: str, key: str, local: GatewayConfig) -> bool:
    allowed = {*local.engine_credentials, *local.control.credentials}
    if key == "api_key_env":
        return name in allowed
    path = Path(os.path.normpath(local.folder / name))
    folders = [os.path.normpath(local.folder / each) for each in local.control.credentials]
    return str(path) in allowed or any(path.is_relative_to(each) for each in folders)


def _want_of_credential(error: ValidationError, what: str) -> str:
    """Why this replica alone is left out. Raises OrdersRefused where anything else is wrong with it."""
    faults = list(faults_in(error))
    if other := [each for each in faults if each.key not in _CREDENTIAL_KEYS]:
        raise OrdersRefused(f"{what}: {other[0]}")
    return "; ".join(map(str, faults))


# Peers


def _further_peers(grants: Iterable[PeerGrant], local: GatewayConfig) -> Iterator[PeerConfig]:
    """The region file's count before these."""
    known = {local.gateway_id, *(peer.spec.gateway_id for peer in local.peers)}
    for index, grant in enumerate(grants):
        if grant.gateway_id not in known:
            yield _peer(grant, local, f"peers[{index}]")


def _peer(grant: PeerGrant, local: GatewayConfig, what: str) -> PeerConfig:
    address = parse_address(grant.address)
    if local.peering.tls is None and not (local.insecure or address.is_loopback):
        raise OrdersRefused(f"{what}: {address} is beyond this machine, and there is no peering.tls")
    if local.peering.tls is not None:
        for name in (grant.gateway_id, grant.place.region):
            if CERTIFICATE_NAME_PATTERN.fullmatch(name) is None:
                raise OrdersRefused(f"{what}: {name!r} cannot be part of a host name in certificates")
    return PeerConfig(PeerSpec(grant.gateway_id, grant.place), address)


# Parameters


def _with_parameters(local: GatewayConfig, text: str) -> CoreConfig:
    """Key by key: what the snapshot does not name stays as the region file has it."""
    if not text or local.control.parameters is ParametersRule.IGNORE:
        return local.core
    sections = _json_object(text, "parameters")
    written = settings_as_file(local.core)
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise OrdersRefused(f"parameters: {name} should be a section")
        written[name] = {**_base(written.get(name, {}), section), **section}
    try:
        core = CoreFile.model_validate(written).as_config()
    except ValidationError as error:
        raise OrdersRefused(f"parameters: {'; '.join(map(str, faults_in(error)))}") from error
    if faults := list(core_faults(core, local.probes)):
        raise OrdersRefused(f"parameters: {'; '.join(map(str, faults))}")
    return core


def _base(section: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Options and version are those of one policy, and mean nothing to another."""
    if over.get("policy", section.get("policy")) == section.get("policy"):
        return section
    return {key: value for key, value in section.items() if key not in ("policy_version", "policy_options")}


# Places


def _check_jurisdictions(snapshot: Snapshot, local: GatewayConfig) -> None:
    """One region lies in one jurisdiction, and this gateway's own operator has said in which."""
    known: dict[RegionName, Jurisdiction] = {}
    for place in _places_known(local):
        known.setdefault(place.region, place.jurisdiction)
    for what, place in _places_in(snapshot):
        if known.setdefault(place.region, place.jurisdiction) != place.jurisdiction:
            raise OrdersRefused(
                f"{what}: region {place.region} is in {known[place.region]} here, not in {place.jurisdiction}"
            )


def _places_known(local: GatewayConfig) -> Collection[Place]:
    replicas = (each.spec.place for each in local.replicas)
    templates = (each.spec.place for each in local.templates)
    return (local.place, *replicas, *templates, *(each.spec.place for each in local.peers))


def _places_in(snapshot: Snapshot) -> Iterator[tuple[str, Place]]:
    for index, grant in enumerate(snapshot.replicas):
        what = f"replicas[{index}]"
        yield what, grant.home_place
        document = _json_object(grant.document, what)
        region, jurisdiction = document.get("region"), document.get("jurisdiction")
        if isinstance(region, str) and isinstance(jurisdiction, str):
            yield what, Place(RegionName(region), Jurisdiction(jurisdiction))
    for index, peer in enumerate(snapshot.peers):
        yield f"peers[{index}]", peer.place


def _json_object(text: str, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OrdersRefused(f"{what}: it is not JSON") from error
    if not isinstance(found, dict):
        raise OrdersRefused(f"{what}: it is not a JSON object")
    return found
