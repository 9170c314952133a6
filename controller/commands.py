"""`nightside controller`: runs a controller, checks its file, replays its journal.

The commands add signals to a controller, and wire nothing themselves.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import uvloop
import yaml

from controller import metrics_page
from controller.app import ControllerHandle, run_controller
from controller.config import ControllerFile, read_controller_file
from controller.config_keys_cli import config_keys
from controller.dns.provider import DnsError
from controller.dns.publisher import DEADLINE_S
from controller.dns.publishing import provider_of
from controller.journal import replay as replay_journal
from controller.lease import Lease
from controller.state_manager import records_in
from controller.store.opening import open_store
from controller.store.store import StoreError
from mesh.certificates import CertificateFault, date_fault
from mesh.clock import Clock
from mesh.faults import ConfigError
from mesh.journal import JournalUnreadable
from mesh.journal_lines import report_as_text
from mesh.logs import announce
from mesh.private_files import open_to_others
from mesh.runs import files_of_one_run
from mesh.tls import ControllerTls, HttpTls

EXIT_DIVERGED = 1
EXIT_UNREADABLE = 2
EXIT_WOULD_CHANGE = 3


@click.group()
def cli() -> None:
    """Run a mesh's controller, check its file, or replay its journal."""


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
def run(file: Path) -> None:
    """Run the controller that FILE describes, until SIGTERM or SIGINT. SIGHUP reloads FILE and the files that it names.

    Exit codes: 0 it was told to stop; 1 it could not begin, met an error of its own, or lost its store to another one.
    """
    with _complaints():
        status = uvloop.run(_run_until_signalled(read_controller_file(file)))
    raise SystemExit(status)


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of YAML.")
def check(file: Path, as_json: bool) -> None:
    """Check FILE with the certificates that it names, and print it with every default filled in."""
    with _complaints():
        controller = read_controller_file(file)
        _check_certificates(controller)
    for path, mode in open_to_others(_secret_files(controller)):
        click.echo(f"{file.name}: warning: {path} has mode {mode}, and should have 0640 or less", err=True)
    document = controller.as_document()
    click.echo(json.dumps(document, indent=2) if as_json else yaml.safe_dump(document, sort_keys=False), nl=as_json)


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
def plan(file: Path) -> None:
    """Print the DNS record changes that the controller of FILE would make, without making them.

    Exit codes: 0 nothing would change; 1 it cannot be told; 3 something would change, a line each.
    """
    with _complaints():
        lines = uvloop.run(_planned(read_controller_file(file)))
    for line in lines:
        click.echo(line)
    if lines:
        raise SystemExit(EXIT_WOULD_CHANGE)
    click.echo("nothing would change", err=True)


@cli.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--run", metavar="NAME", help="Replay this run of a folder, instead of the newest complete one.")
def replay(files: tuple[Path, ...], run: str | None) -> None:
    """Replay a controller's journal and compare every effect. FILES are those of one run, in any order, or a folder.

    Exit codes: 0 every effect is the same, 1 it diverged, 2 it cannot be read.
    """
    try:
        report = replay_journal(files_of_one_run(files, run))
    except JournalUnreadable as error:
        click.echo(f"unreadable: {error}", err=True)
        raise SystemExit(EXIT_UNREADABLE) from error
    click.echo(report_as_text(report))
    if report.divergence is not None:
        raise SystemExit(EXIT_DIVERGED)


cli.add_command(config_keys)


@cli.command("log-events")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the page to this file.")
def log_events(output: Path | None) -> None:
    """List every log event of gateways and controllers: level, fields, meaning and what to do."""
    from controller.log_events_page import markdown  # noqa: PLC0415 - no other command needs the gateway's events

    if output is None:
        click.echo(markdown(), nl=False)
    else:
        output.write_text(markdown(), encoding="utf-8")


@cli.command()
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the page to this file.")
def metrics(output: Path | None) -> None:
    """List every series of a controller's metrics: name, type, labels and meaning."""
    if output is None:
        click.echo(metrics_page.markdown(), nl=False)
    else:
        output.write_text(metrics_page.markdown(), encoding="utf-8")


def _check_certificates(controller: ControllerFile) -> None:
    sections, clock = controller.sections, Clock()
    pairs = []
    if sections.link.tls is not None:
        pairs.append(ControllerTls(sections.link.tls, clock).pair)
    if sections.listen.admin_tls is not None:
        pairs.append(HttpTls(sections.listen.admin_tls, clock).pair)
    if faults := [fault for pair in pairs if (fault := date_fault(pair, clock.wall_ns())) is not None]:
        raise CertificateFault("\n".join(faults))


def _secret_files(controller: ControllerFile) -> Iterator[Path]:
    sections = controller.sections
    yield from (each.key for each in (sections.link.tls, sections.listen.admin_tls) if each is not None)
    if controller.admin_token_file is not None:
        yield controller.admin_token_file
    yield from sections.operators.secret_files()
    if sections.records.rfc2136.key_file is not None:
        yield sections.records.rfc2136.key_file


@contextmanager
def _complaints() -> Iterator[None]:
    try:
        yield
    except (OSError, ConfigError, CertificateFault, DnsError, StoreError) as error:
        raise click.ClickException(str(error)) from error


async def _planned(file: ControllerFile) -> tuple[str, ...]:
    """Plan the changes of published records. Raises ConfigError, DnsError and StoreError."""
    clock = Clock()
    provider = provider_of(file, Lease(clock, 1, None), clock)
    if provider is None:
        raise DnsError("records.provider is none: records are published nowhere")
    store = await open_store(file.sections.store, clock)
    try:
        tree = records_in((await store.read()).documents)
    finally:
        await store.close()
    if tree is None:
        raise DnsError("the store says nothing of records yet: a controller writes them once it has heard of gateways")
    try:
        async with asyncio.timeout(DEADLINE_S):
            return await provider.plan(tree)
    except TimeoutError:
        raise DnsError(f"no answer within {DEADLINE_S:g} s") from None
    finally:
        await provider.close()


async def _run_until_signalled(file: ControllerFile) -> int:
    stop = asyncio.Event()
    running: list[ControllerHandle] = []

    def on_hangup() -> None:
        for controller in running:
            controller.reloader.request()

    def on_ready(controller: ControllerHandle) -> None:
        running.append(controller)
        announce(
            file.sections.logging,
            file.controller,
            "ready",
            role="controller",
            term=controller.manager.store_writer.version.term,
            gateways=str(controller.grpc_address),
            admin=controller.admin_url,
        )

    def on_standby(admin_url: str) -> None:
        announce(file.sections.logging, file.controller, "standby", role="controller", admin=admin_url)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hangup)
    return await run_controller(file, stop=stop, ready=on_ready, standing_by=on_standby)
