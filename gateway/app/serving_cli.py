"""`nightside gateway run` and `check`: serve a region, and check its file.

The module adds signals and process limits to a gateway, and wires no parts itself.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click
import uvloop
import yaml

from gateway.app.fleet import check_engine_certificates
from gateway.app.gateway import GatewayHandle, run_gateway
from gateway.app.identities import Identities
from gateway.app.memory import describe_memory, fitted
from gateway.app.open_files import open_records, open_secrets
from gateway.app.takeover import socket_path
from gateway.config.orders import without_orders
from gateway.config.reading import read_region_file
from gateway.config.region_file import RegionFile
from gateway.config.sections import GatewayConfig
from gateway.core.kernel.regions import RegionTable
from gateway.core.kernel.residency import ResidencyPolicy, closed_policy
from gateway.engines.shared_caches import shared_cache_notes
from gateway.features.catalogue import KINDS
from gateway.policy.file import load_policy_or_closed
from gateway.records.audit import head_signer
from gateway.security.keyring import read_keys
from gateway.security.tls import Certificates
from gateway.takeover.successor import Successor
from gateway.takeover.wire import TakeOverFault
from mesh.allocator import fix_allocator
from mesh.certificates import CertificateFault
from mesh.clock import Clock
from mesh.faults import ConfigError
from mesh.logs import announce, make_logger
from mesh.machine_memory import memory_bytes
from mesh.regions import announcement_fault, networks_of

_GARBAGE_THRESHOLDS = (20_000, 20, 50)
"""Thresholds of the garbage collector; Python's own suit programs that are short or leave many cycles."""
_OPEN_FILES = 2**20
_UNUSABLE = (OSError, ConfigError, CertificateFault, TakeOverFault)
"""Exceptions raised for files that cannot be used."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--take-over", is_flag=True, help="Take over from the process that runs this gateway here, if there is one."
)
def run(file: Path, *, take_over: bool) -> None:
    """Run the gateway that FILE describes, until SIGTERM or SIGINT; a second signal does not wait for requests.

    SIGHUP reads FILE and what it names anew, without ending any request.

    With --take-over no connection is refused and no request ends early: the process that serves hands its listening
    sockets over once this one is ready, finishes what runs there, and leaves. FILE has to name its state.folder.
    """
    fix_allocator()
    region = _read(file)
    _raise_open_files_limit()
    with _complaints():
        successor = _begin_to_take_over(region.as_config()) if take_over else None
        status = uvloop.run(_run_until_signalled(region, successor))
    raise SystemExit(status)


def _begin_to_take_over(config: GatewayConfig) -> Successor | None:
    """Begin a take-over; None where no process serves. Raises TakeOverFault."""
    if config.state.folder is None:
        raise TakeOverFault("--take-over: the region file names no state.folder, in which both processes would meet")
    return Successor.begin(socket_path(config.state.folder, config.gateway_id), config.gateway_id)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of YAML.")
def check(file: Path, as_json: bool) -> None:
    """Check FILE and its residency policy, and print the region file with every default filled in.

    The gateway's maximum of memory is printed on standard error.
    """
    region = _read(file)
    if complaints := list(dict.fromkeys(_against_what_it_names(file, region.as_config()))):
        raise click.ClickException("\n".join(complaints))
    if region.policy is None:
        click.echo(f"{file.name}: policy: none is named, so no request crosses the border of its region", err=True)
    for path, mode in (*open_secrets(region.as_config()), *open_records(region.as_config())):
        click.echo(f"{file.name}: warning: {path} has mode {mode}, and should have 0640 or less", err=True)
    for note in _notes(region.as_config()):
        click.echo(f"{file.name}: {note}", err=True)
    document = region.as_document()
    click.echo(f"{file.name}: {describe_memory(region.as_config(), memory_bytes())}", err=True)
    click.echo(json.dumps(document, indent=2) if as_json else yaml.safe_dump(document, sort_keys=False), nl=as_json)


def _notes(config: GatewayConfig) -> Iterator[str]:
    """Notes on a valid config: what it leaves out, or does otherwise than its author may expect."""
    policy = _policy(config)
    yield from _not_lent(config, policy.regions)
    yield from _bounded_by_the_table(config, policy.regions)
    yield from shared_cache_notes(config)
    for kind in KINDS:
        yield from kind.check_notes(config, policy)


def _policy(config: GatewayConfig) -> ResidencyPolicy:
    if config.policy_file is None:
        return closed_policy(config.place, "no policy file is configured")
    return load_policy_or_closed(config.policy_file, config.place)[0]


def _not_lent(config: GatewayConfig, regions: RegionTable | None) -> Iterator[str]:
    """Notes on replicas that no other gateway may serve, by the operators' table."""
    if regions is None or not config.control.controllers:
        return
    for each in config.replicas:
        place, name = each.spec.place, each.spec.replica_id
        fault = announcement_fault(regions, config.place, place, each.url)
        if fault or not regions.lends(place.region):
            why = fault or f"the table has no ranges for region {place.region}"
            yield f"replica {name} is served by no other gateway: {why}"


def _bounded_by_the_table(config: GatewayConfig, regions: RegionTable | None) -> Iterator[str]:
    """Notes on pods that are used only within the operators' ranges for their region."""
    for each in config.kubernetes_replicas:
        region = each.template.spec.place.region
        ranges = [] if regions is None or each.networks else networks_of(regions, region)
        if ranges:
            yield (
                f"kubernetes_replicas {each.template.spec.replica_id}: pods are used only at addresses in "
                f"{', '.join(ranges)}, as the operators' table has region {region}: name networks if they are elsewhere"
            )


def _against_what_it_names(file: Path, config: GatewayConfig) -> Iterator[str]:
    """Faults of all files that the region file names, in one pass. Places that contradict the operators' table are
    reported here beforehand; a gateway leaves them out."""
    if config.policy_file is not None:
        policy, problem = load_policy_or_closed(config.policy_file, config.place)
        if problem is not None:
            yield f"{file.name}: policy: {problem}"
        else:
            for name, why in without_orders(config, policy.regions).misplaced.items():
                yield f"{file.name}: {name}: {why}"
    for prefix, check_one in _checks(file, config):
        try:
            check_one()
        except _UNUSABLE as error:
            yield f"{prefix}{error}"


def _checks(file: Path, config: GatewayConfig) -> Iterator[tuple[str, Callable[[], object]]]:
    if config.keys_file is not None:
        yield "", partial(read_keys, config.keys_file, keeps_usage=config.state.folder is not None)
    yield "", partial(head_signer, config.audit)
    for kind in KINDS:
        yield "", partial(kind.check_files, config, None)
    yield "", partial(Identities, config, Clock(), make_logger(config.logging, config.gateway_id))
    yield "", partial(_check_dates, config)
    yield f"{file.name}: ", partial(check_engine_certificates, config)


def _check_dates(config: GatewayConfig) -> None:
    if faults := Certificates(config, Clock()).date_faults():
        raise CertificateFault("\n".join(faults))


def _read(file: Path) -> RegionFile:
    with _complaints():
        return fitted(read_region_file(file), memory_bytes())


@contextmanager
def _complaints() -> Iterator[None]:
    try:
        yield
    except _UNUSABLE as error:
        raise click.ClickException(str(error)) from error


async def _run_until_signalled(region: RegionFile, successor: Successor | None) -> int:
    stop, stop_at_once = asyncio.Event(), asyncio.Event()
    running: list[GatewayHandle] = []

    def on_signal() -> None:
        (stop_at_once if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)

    def on_hangup() -> None:
        for gateway in running:
            gateway.reloader.request()

    def on_ready(gateway: GatewayHandle) -> None:
        running.append(gateway)
        _announce(gateway)
        _set_garbage_collection()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hangup)
    config = region.as_config()
    return await run_gateway(
        config, stop=stop, ready=on_ready, stop_at_once=stop_at_once, region=region, successor=successor
    )


def _announce(gateway: GatewayHandle) -> None:
    config = gateway.config
    announce(
        config.logging,
        config.gateway_id,
        "ready",
        region=config.place.region,
        jurisdiction=config.place.jurisdiction,
        clients=gateway.http_url,
        admin=gateway.admin_url,
        peers=str(gateway.peers_address),
    )


def _set_garbage_collection() -> None:
    """Freeze existing objects and raise the thresholds. Requests leave no cycles that hold large objects, so the
    collector need run neither often nor over all objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GARBAGE_THRESHOLDS)


def _raise_open_files_limit() -> None:
    """Raise the soft limit of open files: each request holds two connections, and the usual limit suits shells, not
    servers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
