"""Measures how long publishing records takes, per provider, and writes docs/results/failover_records.md:
`make results NAME=records`.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import click
from prometheus_client.parser import text_string_to_metric_families

from controller.app import ControllerHandle
from controller.dns.provider import DnsOutdated, DnsProvider, DnsUnavailable, changes_between
from controller.dns.rfc2136 import Rfc2136Dns
from loadgen.bench.relay.machine import describe_machine
from mesh.clock import Clock
from mesh.naming.tree import RecordTree
from mesh.values import SECOND_NS
from tests.cloud.leases import leading
from tests.cloud.name_servers import SECRET, ZONE, Bind, Knot, NameServer
from tests.cloud.programs import ministack
from tests.cloud.stands import kill
from tests.cloud.test_publishing import Running, at_name_server, at_route53
from tests.cloud.test_route53 import standing
from tests.support.naming import tree

OnCall = Callable[[str, str], None]
KINDS: dict[str, type[NameServer]] = {"BIND": Bind, "Knot": Knot}
PROVIDERS = ("route53", *KINDS)
_CALLS = "nightside_controller_records_calls"
_LOOK_S = 0.01
WRITTEN_AIM_S = 5.0
CHECKS_AN_HOUR = 12


@dataclass
class Measured:
    written_s: list[float] = field(default_factory=list)
    """Seconds from a gateway's death until the zone's name server stops answering with its address."""
    decided_s: list[float] = field(default_factory=list)
    """Seconds from a gateway's death until the controller decided which records to publish."""
    calls: list[int] = field(default_factory=list)
    sync_calls: list[int] = field(default_factory=list)
    check_calls: int = 0
    taken_over_s: list[float] = field(default_factory=list)
    """Seconds of a new leader's first publishing, from the read to the write that excludes the former leader."""
    late_tried: int = 0
    late_taken: int = 0


@click.command()
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
@click.option("--rounds", default=5, show_default=True)
def main(output: Path, rounds: int) -> None:
    """Run each provider with a whole controller, kill a gateway, and measure how long its records stay."""
    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test")  # noqa: TID251 - for boto3, as anybody's
    with tempfile.TemporaryDirectory() as folder:
        emulator = ministack(Path(folder))
        emulator.begin()
        try:
            found = {}
            for name in PROVIDERS:
                measured = found[name] = Measured()
                for number in range(rounds):
                    place = Path(folder) / f"{name}-{number}"
                    stand = at_route53(emulator, place) if name == "route53" else at_name_server(KINDS[name], place)
                    asyncio.run(_die(stand, measured))
                (Path(folder) / f"{name}-late").mkdir()
                asyncio.run(_take_over(name, emulator, Path(folder) / f"{name}-late", measured, rounds))
                click.echo(f"{name}: {measured}")
        finally:
            emulator.kill()
    output.write_text(page(found, rounds))


async def _die(stand: AbstractAsyncContextManager[Running], measured: Measured) -> None:
    clock = Clock()
    async with stand as (handle, gateways, read):
        await _until(lambda: _is_settled(handle))
        while await read() != {"192.0.2.1"}:  # noqa: ASYNC110 - another process
            await asyncio.sleep(_LOOK_S)
        decided: list[int] = []
        handle.manager.on_records(lambda _tree: decided.append(clock.now_ns()))
        decided.clear()
        before = calls_of(handle)
        died_ns = clock.now_ns()
        await kill("us-1", gateways)
        while "192.0.2.1" in await read():  # noqa: ASYNC110 - another process
            await asyncio.sleep(_LOOK_S)
        measured.written_s.append((clock.now_ns() - died_ns) / SECOND_NS)
        measured.decided_s.append((decided[0] - died_ns) / SECOND_NS)
        await _until(lambda: _is_settled(handle))
        await _until_quiet(handle)
        after = calls_of(handle)
        made = {name: count - before.get(name, 0) for name, count in after.items()}
        measured.sync_calls.append(made.pop("get_change", 0))
        measured.calls.append(sum(made.values()))


@asynccontextmanager
async def _providers(name: str, emulator: object, folder: Path) -> AsyncIterator[Callable[[int, OnCall], DnsProvider]]:
    if name == "route53":
        async with standing(emulator) as made:  # type: ignore[arg-type]
            yield lambda term, on_call: made.provider(leading(term), on_call=on_call)
            made.front.refusals.clear()  # refusals are what this measurement provokes
        return
    server = KINDS[name](folder)
    server.start()
    try:
        yield lambda term, on_call: Rfc2136Dns(server.config, SECRET, ZONE, "nightside", leading(term), on_call=on_call)
    finally:
        server.kill()


async def _take_over(name: str, emulator: object, folder: Path, measured: Measured, rounds: int) -> None:
    """Measure takeovers: each leader has a later term than the one before, which goes on writing as if still
    leading.
    """
    clock = Clock()
    async with _providers(name, emulator, folder) as make:
        calls: list[str] = []
        deposed, version = make(1, _unheard), 1
        said: RecordTree = tree(version)
        await deposed.publish(said, changes_between(None, said))
        for term in range(2, 2 + rounds):
            leads = make(term, lambda call, result: calls.append(call) if result == "done" else None)
            begun_ns = clock.now_ns()
            await leads.publish(said, changes_between(None, said))
            measured.taken_over_s.append((clock.now_ns() - begun_ns) / SECOND_NS)
            late = tree(version + 1, us=("192.0.2.66",))
            measured.late_tried += 1
            try:
                await deposed.publish(late, changes_between(said, late))
            except (DnsOutdated, DnsUnavailable):
                pass
            else:
                measured.late_taken += 1
            deposed = leads
            calls.clear()
            await leads.publish(said, changes_between(None, said))
            measured.check_calls = len(calls)


def _unheard(_call: str, _result: str) -> None:
    pass


def _is_settled(handle: ControllerHandle) -> bool:
    tree_, publisher = handle.manager.records, handle.publisher
    return tree_ is not None and publisher is not None and publisher.published == tree_.version


async def _until_quiet(handle: ControllerHandle) -> None:
    """Wait until the publisher has nothing left to do for the last change."""
    publisher = handle.publisher
    assert publisher is not None
    await _until(lambda: publisher.is_settled)


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - another's inner state
        await asyncio.sleep(_LOOK_S)


def calls_of(handle: ControllerHandle) -> dict[str, int]:
    page_ = handle.metrics.render().decode()
    families = {each.name: each for each in text_string_to_metric_families(page_)}
    found: dict[str, int] = {}
    for each in families[_CALLS].samples:
        found[each.labels["call"]] = found.get(each.labels["call"], 0) + int(each.value)
    return found


def page(found: dict[str, Measured], rounds: int) -> str:
    rows = [
        f"| {name} | {_spread(each.written_s)} | {_spread(each.decided_s)} | {median(each.calls):g} |"
        f" {median(each.sync_calls):g} | {each.check_calls} | {each.check_calls * CHECKS_AN_HOUR} |"
        for name, each in found.items()
    ]
    windows = [
        f"| {name} | {_spread(each.taken_over_s)} | {each.late_taken} of {each.late_tried} |"
        for name, each in found.items()
    ]
    worst = {name: max(each.written_s) for name, each in found.items()}
    aims = [
        f"- **{'met' if took_s <= WRITTEN_AIM_S else 'missed'}**: {name}, written within {WRITTEN_AIM_S:g} s of a"
        f" death ({took_s:.2f} s at worst)"
        for name, took_s in worst.items()
    ]
    machine = describe_machine()
    words = f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, {machine['python']}"
    tables = {"rows": "\n".join(rows), "windows": "\n".join(windows), "aims": "\n".join(aims)}
    return PAGE.format(rounds=rounds, machine=words, **tables)


def _spread(found: list[float]) -> str:
    return f"{median(found):.2f} ({min(found):.2f}–{max(found):.2f})"


PAGE = """# Records, when a gateway dies

Written by `make results NAME=records`; do not edit. A whole controller with all decisions at their default settings,
three gateways as it sees them (a stream and a health page each), and whoever answers for the zone, {rounds} times each:
{machine}.
BIND and Knot DNS are Debian's. Route53 is an emulator behind a front of ours that refuses what AWS refuses and takes
five requests a second: that measures our part, and nothing of AWS's own time.

## From a gateway's death

| provider | written, s | until decided, s | calls | calls until in sync | calls of a look | calls an hour at rest |
| :-- | --: | --: | --: | --: | --: | --: |
{rows}

*Written*: whoever answers for the zone says so; a Route53 change counts as it is accepted. *Until decided*: the
controller knew what to say, which is most of it. *Until in sync*: how often Route53 is asked whether all its servers
have the change, here after an emulated delay; AWS takes up to a minute for that as a rule, and
`nightside_controller_records_in_sync_seconds` says how long it took. A look compares all that is there with what should
be (`records.check_interval`, five minutes by default); at a name server it is all questions asked in one go. Median,
and the lowest and highest in brackets.

{aims}

## Whoever leads no more

Stated: nothing is begun with less of the lease left than a write may take (`records.route53.timeout` and half of it, 3
s by default; `records.rfc2136.timeout`, 2 s), so that whoever is still answered is answered before another may lead.
What lands later, having been on its way all the while, is taken only until the next leader's first publishing, and
replaced by that; after it, nothing is.

| provider | the next leader's first publishing, s | writes of the one before that were taken after it |
| :-- | --: | --: |
{windows}

The one before goes on here as if its lease had no end: only the provider is left to refuse it.
"""

if __name__ == "__main__":
    main()
