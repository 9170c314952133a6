"""Checks between the keys of a region file. Each fault names the key to change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gateway.config.content import content_faults
from gateway.config.names import PROMPT_BLOCKS_MAX
from gateway.config.oidc import oidc_faults
from gateway.config.placement_plug_ins import placement_faults
from gateway.config.pools import pool_faults
from gateway.config.region_file import RegionFile
from gateway.config.sections import ProbeConfig
from gateway.config.tracing import tracing_faults
from gateway.core.config import CoreConfig
from gateway.features.sections import CORE_CHECKS
from mesh.control.pool_history import MESSAGE_BYTES_MIN
from mesh.faults import FileFault
from mesh.operators_config import operator_faults
from mesh.values import CERTIFICATE_NAME_PATTERN, MILLISECOND_NS, Address

CLIENT_ADDRESSES_MAX = 16
_FORWARD_WINDOW_BYTES_MIN = 16 * 1024
_SECOND_NS = 1_000_000_000
_HEARTBEATS_TIME_MIN_NS = 5 * MILLISECOND_NS


def faults_between(file: RegionFile) -> Iterator[FileFault]:
    """Faults between keys that are valid by themselves."""
    yield from _name_faults(file)
    yield from _certificate_name_faults(file)
    yield from _jurisdiction_faults(file)
    yield from _exposure_faults(file)
    yield from _identity_faults(file)
    yield from _control_faults(file)
    yield from _dns_faults(file)
    yield from _number_faults(file)
    yield from _pool_faults(file)
    yield from tracing_faults(file.sections.tracing)
    for key, what in placement_faults(file.core.placement):
        yield FileFault(f"placement.{key}", what)
    for key, what in content_faults(file.sections.content):
        yield FileFault(key, what)
    for section in file.sections.of_features():
        yield from section.faults(file)


def _name_faults(file: RegionFile) -> Iterator[FileFault]:
    replica_ids = [each.id for each in file.replicas]
    gateway_ids = [file.gateway, *(each.gateway for each in file.peers)]
    for index, each in enumerate(replica_ids):
        if each in replica_ids[:index]:
            yield FileFault(f"replicas[{index}].id", f"{each!r} is used twice")
    for key, index, template in file.found():
        if template.id in replica_ids:
            yield FileFault(f"{key}[{index}].id", f"{template.id!r} is used twice")
        replica_ids.append(template.id)
    for index, peer in enumerate(file.peers):
        if peer.gateway in gateway_ids[: index + 1]:
            yield FileFault(f"peers[{index}].gateway", f"{peer.gateway!r} is used twice, or is this gateway")
        if peer.address.port == 0:
            yield FileFault(f"peers[{index}].address", "needs a port")


def _certificate_name_faults(file: RegionFile) -> Iterator[FileFault]:
    """Require names that fit host names in certificates; with other characters, two gateways could share one."""
    if file.sections.peering.tls is None:
        return
    named = [
        ("gateway", file.gateway),
        ("region", file.region),
        *((f"peers[{index}].gateway", each.gateway) for index, each in enumerate(file.peers)),
        *((f"peers[{index}].region", each.region) for index, each in enumerate(file.peers)),
    ]
    for path, name in named:
        if CERTIFICATE_NAME_PATTERN.fullmatch(name) is None:
            yield FileFault(
                path,
                f"with peering.tls, {name!r} should be up to 63 small letters, digits and inner dashes,"
                " to be part of a host name in certificates",
            )


def _jurisdiction_faults(file: RegionFile) -> Iterator[FileFault]:
    """Require one jurisdiction per region throughout the file."""
    known = {file.region: file.jurisdiction}
    named = [
        *((f"replicas[{index}]", each.region, each.jurisdiction) for index, each in enumerate(file.replicas)),
        *((f"{key}[{index}]", each.region, each.jurisdiction) for key, index, each in file.found()),
        *((f"peers[{index}]", each.region, each.jurisdiction) for index, each in enumerate(file.peers)),
    ]
    for path, region, jurisdiction in named:
        if region is None or jurisdiction is None:
            continue
        if known.setdefault(region, jurisdiction) != jurisdiction:
            yield FileFault(f"{path}.jurisdiction", f"region {region} is in {known[region]} elsewhere in this file")


def _exposure_faults(file: RegionFile) -> Iterator[FileFault]:
    """Require TLS for each address beyond this machine that the gateway listens on or dials. No other code checks
    this."""
    if file.insecure:
        return
    for path, address, has_tls, key in _exposed(file):
        if not has_tls and not address.is_loopback:
            yield FileFault(
                path,
                f"{address} is beyond this machine, without TLS ({key}); to allow that, write `insecure: true`",
            )


def _exposed(file: RegionFile) -> Iterator[tuple[str, Address, bool, str]]:
    """Each address with whether TLS protects it, and the key that turns TLS on."""
    listen, has_mesh_tls = file.sections.listen, file.sections.peering.tls is not None
    for name in ("http", "admin"):
        yield f"listen.{name}", getattr(listen, name), listen.tls is not None, "listen.tls"
    yield "listen.peers", listen.peers, has_mesh_tls, "peering.tls"
    for index, each in enumerate(file.peers):
        yield f"peers[{index}].address", each.address, has_mesh_tls, "peering.tls"
    for index, address in enumerate(file.sections.control.controllers):
        yield f"control.controllers[{index}]", address, has_mesh_tls, "peering.tls"


def _identity_faults(file: RegionFile) -> Iterator[FileFault]:
    """Require credentials from clients and operators that connect from beyond this machine."""
    http, admin = file.sections.listen.http, file.sections.listen.admin
    if not file.insecure and file.keys is None and not file.sections.oidc.issuers and not http.is_loopback:
        yield FileFault(
            "listen.http", f"{http} is beyond this machine, and no `keys` file says who may call, nor `oidc`"
        )
    keeps_usage = file.keeps_state
    yield from oidc_faults(file.sections.oidc, insecure=file.insecure, keeps_usage=keeps_usage)
    if file.admin_token_file is None and not file.sections.operators.are_any and not admin.is_loopback:
        yield FileFault(
            "listen.admin", f"{admin} is beyond this machine, and there is no `admin_token_file`, nor `operators`"
        )
    yield from operator_faults(file.sections.operators, insecure=file.insecure)


def _control_faults(file: RegionFile) -> Iterator[FileFault]:
    control = file.sections.control
    if (control.latitude is None) != (control.longitude is None):
        yield FileFault("control", "latitude and longitude are written together or not at all")
    if len(control.client_addresses) > CLIENT_ADDRESSES_MAX:
        yield FileFault("control.client_addresses", f"holds more than {CLIENT_ADDRESSES_MAX}")
    for index, address in enumerate(control.controllers):
        if address.port == 0 or address in control.controllers[:index]:
            yield FileFault(f"control.controllers[{index}]", "needs a port of its own")
    if control.controllers and not file.keeps_state:
        yield FileFault(
            "control.controllers",
            "needs `state.folder`, to keep what was last ordered for when no controller is there",
            beside="state.folder",
        )
    looks_apart_ns = control.adopted_max * _SECOND_NS // file.sections.probes.adopted_per_s
    if control.controllers and looks_apart_ns >= file.core.observation.replica_stale_ns:
        yield FileFault(
            "probes.adopted_per_s",
            "looks at each of control.adopted_max engines less often than observation.replica_stale",
            beside="observation.replica_stale",
        )
    if control.silence_max_ns <= control.report_interval_ns:
        yield FileFault("control.silence_max", "should be longer than control.report_interval")


def core_faults(core: CoreConfig, probes: ProbeConfig) -> Iterator[FileFault]:
    """Faults between settings that decisions depend on, from a region file or from a snapshot."""
    attempt, observation = core.attempt, core.observation
    if observation.replica_stale_ns <= probes.interval_ns:
        yield FileFault("observation.replica_stale", "should be longer than probes.interval", beside="probes.interval")
    if attempt.breaker_open_max_ns < attempt.breaker_open_ns:
        yield FileFault("attempt.breaker_open_max", "is below attempt.breaker_open", beside="attempt.breaker_open")
    if observation.keep_alive_ns < observation.publish_interval_ns:
        yield FileFault(
            "observation.keep_alive", "is below observation.publish_interval", beside="observation.publish_interval"
        )
    for faults in CORE_CHECKS:
        yield from faults(core)


def _dns_faults(file: RegionFile) -> Iterator[FileFault]:
    """Require numeric, distinct addresses: delegations name DNS servers by address, and resolvers ask them at one
    port."""
    listened = file.sections.dns.listen
    for index, address in enumerate(listened):
        if not address.is_numeric:
            yield FileFault(f"dns.listen[{index}]", f"{address} is not an address and a port such as 192.0.2.53:53")
        if address.port and address in listened[:index]:
            yield FileFault(f"dns.listen[{index}]", f"{address} is listed twice")


def _pool_faults(file: RegionFile) -> Iterator[FileFault]:
    names = [each.name for each in file.pools]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield FileFault(f"pools[{index}].name", f"{name!r} is used twice")
    pools = file.pool_specs()
    named = [(f"replicas[{index}]", each) for index, each in enumerate(file.replicas)]
    members = [*named, *((f"{key}[{index}]", each) for key, index, each in file.found())]
    identities = {each.name: each.identity for each in file.pools}
    yield from pool_faults(pools, [each.as_member(path, file.region, identities) for path, each in members])
    for index, pool in enumerate(file.pools):
        for key, section in pool.sections.of_features():
            for fault in section.faults(file):
                yield replace(fault, key=f"pools[{index}].{key}.{fault.key}")


def _number_faults(file: RegionFile) -> Iterator[FileFault]:
    sections = file.sections
    limits, peering, control = sections.limits, sections.peering, sections.control
    if limits.prompt_blocks_max > PROMPT_BLOCKS_MAX:
        yield FileFault("limits.prompt_blocks_max", f"should be at most {PROMPT_BLOCKS_MAX}: no forward carries more")
    if peering.message_max_bytes <= limits.body_max_bytes:
        yield FileFault(
            "peering.message_max",
            "should exceed limits.body_max, or large requests could never be forwarded",
            beside="limits.body_max",
        )
    if peering.forwards_held_peer_max_bytes < peering.message_max_bytes:
        yield FileFault(
            "peering.forwards_held_peer_max",
            "is below peering.message_max, so that no forward could come in",
            beside="peering.message_max",
        )
    if control.message_max_bytes < MESSAGE_BYTES_MIN:
        yield FileFault("control.message_max", "is below 64KiB, so that the history of a pool would break the stream")
    if peering.forward_window_bytes < _FORWARD_WINDOW_BYTES_MIN:
        yield FileFault("peering.forward_window", "is below 16KiB, so that each answer would wait at every turn")
    followed_ns = peering.ping_interval_ns + peering.ping_timeout_ns  # forwards follow a ping to the next connection
    if peering.connection_grace_ns < limits.request_deadline_ns + followed_ns:
        running = "is below limits.request_deadline and the time of a ping, so running calls would be cut"
        yield FileFault("peering.connection_grace", running, beside="limits.request_deadline")
    if peering.heartbeats_time_max_ns < _HEARTBEATS_TIME_MIN_NS:
        yield FileFault("peering.heartbeats_time_max", "is below 5ms, too little for a peer that behaves")
    yield from core_faults(file.core, sections.probes)
    for key, value_ns, least, least_ns in (
        ("peering.reconnect_max", peering.reconnect_max_ns, "peering.reconnect_min", peering.reconnect_min_ns),
        ("control.reconnect_max", control.reconnect_max_ns, "control.reconnect_min", control.reconnect_min_ns),
        (
            "peering.forwards_held_max",
            peering.forwards_held_max_bytes,
            "peering.forwards_held_peer_max",
            peering.forwards_held_peer_max_bytes,
        ),
        ("limits.bodies_held_max", limits.bodies_held_max_bytes, "limits.body_max", limits.body_max_bytes),
        ("probes.slow_max", sections.probes.slow_max_ns, "probes.timeout", sections.probes.timeout_ns),
        (
            "discovery.interval_max",
            sections.discovery.interval_max_ns,
            "discovery.interval_min",
            sections.discovery.interval_min_ns,
        ),
    ):
        if value_ns < least_ns:
            yield FileFault(key, f"is below {least}", beside=least)
