"""Orders that one gateway takes from a controller's snapshot. A snapshot is accepted or refused as a whole, with the
reason; only a replica that cannot or may not be served as described, and a peer whose place the operators' table
contradicts, are left out by themselves. Leaving them out cannot break a residency rule, since they are then sent no
requests.

This module puts no order in force, and holds what a snapshot configures to the checks of a region file.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import ValidationError

from gateway.config.checks import core_faults
from gateway.config.pools import PoolFile
from gateway.config.region_file import SIDE_CHANNEL_HOSTS_MAX, CoreFile, ReplicaDocument
from gateway.config.sections import GatewayConfig, ParametersRule
from gateway.config.targets import PeerConfig, ReplicaConfig
from gateway.core.config import CoreConfig
from gateway.core.kernel.regions import RegionTable
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import (
    Connector,
    ControlVersion,
    GatewayId,
    Jurisdiction,
    PeerSpec,
    Place,
    PoolName,
    PoolSpec,
    RegionName,
    ReplicaRole,
    ReplicaSpec,
)
from mesh.control.vocabulary import ControlSnapshot, PeerGrant, ReplicaGrant, ReplicaOwner
from mesh.environment import PROCESS_ENVIRONMENT
from mesh.faults import ConfigError
from mesh.naming.tree import RecordTree
from mesh.regions import announcement_fault
from mesh.settings import settings_as_file
from mesh.values import CERTIFICATE_NAME_PATTERN, ID_PATTERN, FileContext, parse_address
from mesh.yaml_file import faults_in

BY_CONTROLLER = "controller"
"""Source of a place that the region file does not state and a controller does."""

_CREDENTIAL_KEYS = ("api_key_env", "api_key_file")
_RANKS_PER_ADOPTED = 4
_FAULTS_TOLD_MAX = 3
_FAULT_LENGTH_MAX = 300


class OrdersRefused(ConfigError):
    """Snapshot refused by this gateway, with the reason in words."""


class Orders(Struct, frozen=True):
    """Config that this gateway serves by, as far as a controller decides it."""

    version: ControlVersion = field(default_factory=ControlVersion)
    replicas: tuple[ReplicaConfig, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Reasons, by id, why granted replicas cannot be served here."""
    misplaced: Mapping[str, str] = field(default_factory=dict)
    """Reasons, by replica or peer, why the operators' table does not allow the place stated for it."""
    away: frozenset[str] = frozenset()
    """Ids of replicas that another gateway serves, or no gateway by an operator's order."""
    adopted: frozenset[str] = frozenset()
    """Ids of replicas granted to this gateway whose home is another gateway."""
    pools: tuple[PoolSpec, ...] = ()
    """Descriptions of the pools in use: those of the region file, and of adopted pools of which a replica is served."""
    unread: Mapping[PoolName, tuple[Path, ...]] = field(default_factory=dict)
    """Files that adopted pools name and `control.artifacts` does not, by pool; these pools do without."""
    peers: tuple[PeerConfig, ...] = ()
    """All peers: the region file's, and those that the controller adds."""
    core: CoreConfig = field(default_factory=CoreConfig)
    narrowing: ResidencyPolicy | None = None
    records: RecordTree | None = None
    """DNS records of the mesh's name; None: as before."""
    documents: Mapping[str, str] = field(default_factory=dict)
    """Documents of the controller for optional features, by the feature's name, as it wrote them."""
    regions: RegionTable | None = None
    """The operators' table, for discovered replicas; None while there has been no usable one."""
    is_drained: bool = False
    """An operator drained this gateway at the controller: its clients and replicas go to other gateways."""


def without_orders(local: GatewayConfig, regions: RegionTable | None) -> Orders:
    """Orders before any snapshot of a controller."""
    misplaced = _misplaced_here(local, regions)
    peers = _placed(local.peers, misplaced)
    return Orders(pools=local.pools, peers=peers, core=local.core, misplaced=misplaced, regions=regions)


def read_orders(
    snapshot: ControlSnapshot,
    local: GatewayConfig,
    regions: RegionTable | None,
    environ: Mapping[str, str] = PROCESS_ENVIRONMENT,
) -> Orders:
    """Check a snapshot and return its orders. `regions` is this gateway's own operators' table: places in the snapshot
    are checked against it, and a replica or peer elsewhere is left out by itself. Raises OrdersRefused."""
    if snapshot.gateway_id != local.gateway_id:
        raise OrdersRefused(f"it is for gateway {snapshot.gateway_id}")
    if snapshot.narrowing is not None and snapshot.narrowing.place != local.place:
        raise OrdersRefused("narrowing: it is for another region")
    core = _with_parameters(local, snapshot.parameters)
    misplaced = _misplaced_here(local, regions)
    pools = _Pools(local)
    replicas, left_out, adopted = _replicas(snapshot.replicas, local, environ, _PlaceCheck(regions, misplaced), pools)
    replicas, unfit = _without_unfit(replicas, pools.specs)
    left_out |= unfit
    in_use = {*(each.name for each in local.pools), *(each.spec.pool for each in replicas)}
    further = tuple(_further_peers(snapshot.peers, local))
    misplaced |= _misplaced_peers(further, regions)
    return Orders(
        version=snapshot.version,
        replicas=replicas,
        pools=tuple(spec for name, spec in pools.specs.items() if name in in_use),
        unread={name: paths for name, paths in pools.unread.items() if name in in_use},
        left_out=left_out,
        away=away_from(local, snapshot.away),
        adopted=adopted,
        misplaced=misplaced,
        peers=_placed((*local.peers, *further), misplaced),
        core=core,
        narrowing=snapshot.narrowing,
        records=snapshot.records,
        documents={} if local.control.parameters is ParametersRule.IGNORE else dict(snapshot.documents),
        is_drained=snapshot.is_drained,
        regions=regions,
    )


def away_from(local: GatewayConfig, owners: Iterable[ReplicaOwner]) -> frozenset[str]:
    """Ids of replicas whose owner is another gateway, or no gateway."""
    return frozenset(each.replica_id for each in owners if each.owner != local.gateway_id)


# Replicas


class _Pools:
    """Pools that replicas are in: those of the region file, and those that granted replicas describe."""

    def __init__(self, local: GatewayConfig) -> None:
        self._local = local
        self.specs = {each.name: each for each in local.pools}
        self.unread: dict[PoolName, tuple[Path, ...]] = {}

    def adopt(self, pool: PoolFile, name: PoolName) -> None:
        """Add a pool that a grant describes, without the sections that name files which may not be read here. A pool of
        the own region file stays as described there."""
        if any(each.name == name for each in self._local.pools):
            return
        sections, unread = pool.sections.without_files(self._may_read)
        self.specs[name] = replace(pool.as_spec(), name=name, features=sections.texts())
        if unread:
            self.unread[name] = unread

    def _may_read(self, path: Path) -> bool:
        return _is_listed(path, self._local.control.artifacts, self._local)


def _replicas(
    grants: Iterable[ReplicaGrant],
    local: GatewayConfig,
    environ: Mapping[str, str],
    places: _PlaceCheck,
    pools: _Pools,
) -> tuple[tuple[ReplicaConfig, ...], dict[str, str], frozenset[str]]:
    """Return replicas to serve, reasons for those left out, and ids of those at home elsewhere. Their pools are added
    to `pools`. A replica in the own region file is served as described there, whatever the snapshot says of it."""
    own = _own_replicas(local)
    served: dict[str, tuple[ReplicaConfig, ...]] = {}
    left_out: dict[str, str] = {}
    adopted: set[str] = set()
    grants = tuple(grants)
    too_many = _too_many(grants, local)
    described, unreadable = _described(grants, local, own)
    left_out |= unreadable
    for index, name, document in described:
        grant = grants[index]
        if grant.home != local.gateway_id:
            adopted.add(name)
        elif name in own:
            served[name] = own[name]
            continue
        home = grant.home_place if name in adopted else local.place
        why = too_many.get(index) or places.fault_of(name, document, home) or _may_not_use(document, local)
        if why := why or _says_nothing_of_policy(grant, local):
            left_out[name] = why
            continue
        try:
            file = ReplicaDocument.model_validate(document, context=FileContext(local.folder, environ))
        except (ValidationError, RecursionError) as error:
            left_out[name] = _in_words(error)
        else:
            connectors: dict[str, Connector | None] = {each.name: each.connector for each in local.pools}
            configs = file.as_configs(grant.home_place, local.probes, connectors)
            pool = file.pool_name
            if not isinstance(file.pool, str) or (file.role is not ReplicaRole.UNIFIED and name in adopted):
                pool = PoolName(f"{pool}@{grant.home}") if name in adopted else pool
            if not isinstance(file.pool, str):
                pools.adopt(file.pool, pool)
            place_by = f"announced_by:{grant.home}"
            served[name] = tuple(
                replace(
                    each,
                    spec=replace(each.spec, accepts=grant.accepts, pool=pool, place_by=place_by),
                    is_adopted=name in adopted,
                )
                for each in configs
            )
    for name in _with_too_many_ranks(served, local):
        del served[name]
        left_out[name] = "the ranks that are adopted here are more than four times control.adopted_max"
    replicas = tuple(each for configs in served.values() for each in configs)
    return replicas, left_out, frozenset(adopted)


def _described(
    grants: Sequence[ReplicaGrant], local: GatewayConfig, own: Mapping[str, object]
) -> tuple[list[tuple[int, str, dict[str, Any]]], dict[str, str]]:
    """Return (index, id, description) of each usable grant; and the faults of grants that are unreadable or share an
    id, by id or else by index. A replica of the own region file stays usable where another grant uses its id."""
    described: dict[str, tuple[int, str, dict[str, Any]]] = {}
    unreadable: dict[str, str] = {}
    for index, grant in enumerate(grants):
        what = f"replicas[{index}]"
        try:
            document = _json_object(grant.document, what)
        except OrdersRefused as fault:
            unreadable[what] = f"{fault} (announced by {grant.home})"
            continue
        name = document.get("id")
        if not isinstance(name, str) or ID_PATTERN.fullmatch(name) is None:
            unreadable[what] = f"{what}: id: it is no id (announced by {grant.home})"
        elif name in own and (grant.home != local.gateway_id or name in described):
            unreadable[what] = f"{what}: {name} is in this gateway's own region file (announced by {grant.home})"
        elif name in described or name in unreadable:
            described.pop(name, None)
            unreadable[name] = f"{what}: {name} is granted twice, and which is meant is not known"
        else:
            described[name] = (index, name, document)
    return list(described.values()), unreadable


def _says_nothing_of_policy(grant: ReplicaGrant, local: GatewayConfig) -> str:
    """Fault of an adopted replica whose grant does not say what its home accepts: without that it may take no
    request."""
    is_silent = grant.home != local.gateway_id and grant.accepts is None
    return "nothing says what its home accepts" if is_silent else ""


def _too_many(grants: Iterable[ReplicaGrant], local: GatewayConfig) -> dict[int, str]:
    """Reasons, by grant index, why adopted replicas above the maximum are left out. The last of each home go first, so
    that a home that names thousands leaves room for the others'."""
    by_home: Counter[GatewayId] = Counter()
    adopted: list[tuple[int, int]] = []
    for index, grant in enumerate(grants):
        if grant.home != local.gateway_id:
            by_home[grant.home] += 1
            adopted.append((by_home[grant.home], index))
    most = local.control.adopted_max
    return {index: f"more than {most} are adopted here (control.adopted_max)" for _, index in sorted(adopted)[most:]}


def _with_too_many_ranks(served: Mapping[str, tuple[ReplicaConfig, ...]], local: GatewayConfig) -> list[str]:
    """Ids of adopted replicas whose ranks do not fit the bound, filled in the snapshot's order."""
    found: list[str] = []
    ranks = 0
    for name, configs in served.items():
        count = sum(each.is_adopted for each in configs)
        if count and ranks + count > _RANKS_PER_ADOPTED * local.control.adopted_max:
            found.append(name)
        else:
            ranks += count
    return found


def _without_unfit(
    replicas: tuple[ReplicaConfig, ...], pools: Mapping[PoolName, PoolSpec]
) -> tuple[tuple[ReplicaConfig, ...], dict[str, str]]:
    """Return the replicas that can be served, and reasons by id for the others: their pool is not described, or spans
    several places."""
    homes: dict[PoolName, object] = {}
    left_out: dict[str, str] = {}
    for each in replicas:
        spec = each.spec
        if spec.role is ReplicaRole.UNIFIED:
            continue
        why = _why_unfit(spec, pools.get(spec.pool))
        if not why and homes.setdefault(spec.pool, (spec.place, spec.accepts)) != (spec.place, spec.accepts):
            why = f"pool {spec.pool}: it stands elsewhere than the rest of it, or takes what that does not"
        if why:
            left_out[spec.replica_id] = why
    return tuple(each for each in replicas if each.spec.replica_id not in left_out), left_out


def _why_unfit(spec: ReplicaSpec, pool: PoolSpec | None) -> str:
    if pool is None or pool.connector is None:
        return f"role {spec.role}: no file describes pool {spec.pool}, or it is not disaggregated"
    return ""


def _may_not_use(document: Mapping[str, Any], local: GatewayConfig) -> str:
    """Reason why a key must not be sent to the engine; empty if it may. A replica's description names both the key's
    source and the address that it is sent to, so this gateway's own operator lists the allowed sources."""
    for key in _CREDENTIAL_KEYS:
        name = document.get(key)
        if isinstance(name, str) and not _is_allowed(name, key, local):
            return f"{key} {name} is named neither in this gateway's region file nor by control.credentials"
    return ""


def _is_allowed(name: str, key: str, local: GatewayConfig) -> bool:
    allowed = {*local.engine_credentials, *local.control.credentials}
    if key == "api_key_env":
        return name in allowed
    path = os.path.normpath(local.folder / name)
    return path in allowed or _is_listed(Path(path), local.control.credentials, local)


def _is_listed(path: Path, listed: Iterable[str], local: GatewayConfig) -> bool:
    """True if the path is among the listed files, or in one of the listed folders."""
    normal = Path(os.path.normpath(local.folder / path))
    return any(normal.is_relative_to(os.path.normpath(local.folder / each)) for each in listed)


def _in_words(error: ValidationError | RecursionError) -> str:
    """Faults of a replica's description. The text comes from another gateway, so only a short, printable part is
    shown."""
    if isinstance(error, RecursionError):
        return "its description has too many levels"
    told = "; ".join(map(str, islice(faults_in(error), _FAULTS_TOLD_MAX)))
    return "".join(each if each.isprintable() else "?" for each in told[:_FAULT_LENGTH_MAX])


# Peers


def _further_peers(grants: Iterable[PeerGrant], local: GatewayConfig) -> Iterator[PeerConfig]:
    """Configs of granted peers that the region file does not name."""
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
    return PeerConfig(PeerSpec(grant.gateway_id, grant.place, place_by=BY_CONTROLLER), address)


# Parameters


def _with_parameters(local: GatewayConfig, text: str) -> CoreConfig:
    """Core config with the snapshot's keys laid over the region file's, key by key."""
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
    """Section without the placement policy's version and options where the snapshot names another policy, which they do
    not belong to."""
    if over.get("policy", section.get("policy")) == section.get("policy"):
        return section
    return {key: value for key, value in section.items() if key not in ("policy_version", "policy_options")}


# Places


class _PlaceCheck(Struct, frozen=True):
    """Checks grants against the operators' table, and keeps the refusals."""

    regions: RegionTable | None
    misplaced: dict[str, str]

    def fault_of(self, name: str, document: Mapping[str, Any], home: Place) -> str:
        """Reason why only its home may serve a replica so described; empty if any gateway may."""
        region, jurisdiction = document.get("region"), document.get("jurisdiction")
        place = home
        if isinstance(region, str) and isinstance(jurisdiction, str):
            place = Place(RegionName(region), Jurisdiction(jurisdiction))
        fault = self._fault(home, place, str(document.get("url", ""))) or self._stray(home, place, document)
        if fault:
            self.misplaced[f"replica {name}"] = fault
        return fault

    def _stray(self, home: Place, place: Place, document: Mapping[str, Any]) -> str:
        """Check side channel hosts like the replica's own address, since decode workers connect to them."""
        hosts = document.get("side_channel_hosts", ())
        if not isinstance(hosts, list):
            return ""  # `ReplicaDocument` refuses such a description
        if len(hosts) > SIDE_CHANNEL_HOSTS_MAX:
            return f"side_channel_hosts: it names more than {SIDE_CHANNEL_HOSTS_MAX}"
        for host in hosts:
            if not isinstance(host, str):
                return "side_channel_hosts: one of them is no text"
            if "/" in host:
                return "side_channel_hosts: one that is adopted names no networks"
            url = f"http://[{host}]" if ":" in host else f"http://{host}"
            if fault := self._fault(home, place, url):
                return f"side_channel_hosts: {fault}"
        return ""

    def _fault(self, home: Place, place: Place, url: str) -> str:
        if self.regions is None:
            return "this region has no usable policy, and so no table of regions"
        if fault := announcement_fault(self.regions, home, place, url):
            return fault
        lends = self.regions.lends(place.region)
        return "" if lends else f"the operators' table has no ranges of addresses for region {place.region}"


def _own_replicas(local: GatewayConfig) -> dict[str, tuple[ReplicaConfig, ...]]:
    """Replicas of the region file, by the id that they are described under."""
    own: dict[str, tuple[ReplicaConfig, ...]] = {}
    for each in local.replicas:
        name = _described_id(each)
        own[name] = (*own.get(name, ()), each)
    return own


def _described_id(replica: ReplicaConfig) -> str:
    """Id that all ranks of an engine share."""
    replica_id = replica.spec.replica_id
    return replica_id if replica.rank is None else replica_id.rpartition("@")[0]


def _misplaced_here(local: GatewayConfig, regions: RegionTable | None) -> dict[str, str]:
    """Replicas and peers whose place in the region file contradicts the table. The policy's rules keep requests from
    such replicas; such peers are left out. A closed region exchanges no requests and has no table."""
    if regions is None:
        return {}
    engines = {f"replica {each.spec.replica_id}": each.spec.place for each in (*local.replicas, *local.templates)}
    found = {name: regions.place_fault(place) for name, place in engines.items()}
    return {name: fault for name, fault in found.items() if fault} | _misplaced_peers(local.peers, regions)


def _misplaced_peers(peers: Iterable[PeerConfig], regions: RegionTable | None) -> dict[str, str]:
    if regions is None:
        return {}
    found = {_peer_name(each): regions.place_fault(each.spec.place) for each in peers}
    return {name: fault for name, fault in found.items() if fault}


def _placed(peers: Iterable[PeerConfig], misplaced: Mapping[str, str]) -> tuple[PeerConfig, ...]:
    return tuple(each for each in peers if _peer_name(each) not in misplaced)


def _peer_name(peer: PeerConfig) -> str:
    return f"peer {peer.spec.gateway_id}"


def _json_object(text: str, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OrdersRefused(f"{what}: it is not JSON") from error
    if not isinstance(found, dict):
        raise OrdersRefused(f"{what}: it is not a JSON object")
    return found
