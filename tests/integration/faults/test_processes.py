"""Gateways as processes under load: stopped, killed, on a full disk, out of file descriptors, stalled.

After each the process is at rest or gone, every engine has noticed the clients that left, and promised records are
kept.
"""

from __future__ import annotations

import asyncio
import json
import resource
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle, run_gateway
from gateway.config.sections import JournalConfig
from gateway.core.kernel.config import ObservationConfig
from gateway.core.kernel.events import PolicyApplied
from gateway.core.kernel.residency import closed_policy
from tests.fakes.engine import DONE, GOOD_STREAM, ROLE, STOP, FakeEngine, Script, hang, stream, stream_until, token
from tests.support.core import EU, MS, SECOND, US
from tests.support.gateways import CHAT, QUICK_PEERING, ask, counted, region_config, until, usable_peers, write_policy
from tests.support.nightly import first_of
from tests.support.processes import QUICK_PROBES, Process, gateway_process, region_file, two_regions
from tests.support.programs import nightside
from tests.support.regions import Mesh
from tests.support.rest import until_at_rest

STREAM = b"".join(GOOD_STREAM)
BLIND = {"mode": "blind"}
"""Pushing without waiting, so that every request runs at once."""


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=50)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as made:
        yield made


@dataclass
class Crowd:
    """Clients that all send at once, and the outcome of each."""

    session: aiohttp.ClientSession
    url: str
    began: int = 0
    ends: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    async def client(self, request_id: str) -> None:
        body: list[bytes] = []
        try:
            headers = {"x-request-id": request_id}
            async with self.session.post(f"{self.url}/v1/chat/completions", json=CHAT, headers=headers) as response:
                async for data in response.content.iter_any():
                    self.began += not body
                    body.append(data)
                self.ends.append(str(response.status))
        except aiohttp.ClientError as error:
            self.ends.append("cut" if body or isinstance(error, aiohttp.ServerDisconnectedError) else "not connected")
        self.bodies.append(b"".join(body))


@asynccontextmanager
async def crowd(session: aiohttp.ClientSession, url: str, count: int) -> AsyncIterator[Crowd]:
    gathered = Crowd(session, url)
    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(gathered.client(f"crowd-{number}"))
        yield gathered


async def answered(session: aiohttp.ClientSession, gateway: Process) -> None:
    async with ask(session, gateway.http_url) as response:
        assert await response.read() == STREAM


def gated(go_on: asyncio.Event) -> Script:
    return stream_until(go_on, (ROLE, token("Hel")), (token("lo"), STOP, DONE))


WHOLE = ROLE + token("Hel") + token("lo") + STOP + DONE


# Stopped and killed


async def test_sigterm_under_load_finishes_every_stream_and_takes_no_other(
    tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    go_on = asyncio.Event()
    engine.plays(gated(go_on))
    async with gateway_process(region_file(tmp_path, "us-1", US, engine, pushing=BLIND)) as gateway:
        async with crowd(session, gateway.http_url, 40) as clients:
            await until(lambda: clients.began == 40)
            gateway.signal(signal.SIGTERM)
            await until_not_ready(session, gateway)
            for _ in range(5):
                async with ask(session, gateway.http_url) as late:
                    assert (late.status, (await late.json())["error"]["code"]) == (503, "draining")
                    assert "retry-after" in late.headers
            go_on.set()
        assert clients.ends == ["200"] * 40
        assert set(clients.bodies) == {WHOLE}
        assert await gateway.process.wait() == 0
    assert (engine.arrived.count, engine.aborted.count) == (40, 0)


async def until_not_ready(session: aiohttp.ClientSession, gateway: Process) -> None:
    while True:
        async with session.get(f"{gateway.admin_url}/ready") as response:
            if response.status != 200:
                return


async def test_a_second_sigterm_under_load_cuts_everybody_and_the_engine_hears_of_it(
    tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    engine.plays(gated(asyncio.Event()))
    file = region_file(tmp_path, "us-1", US, engine, pushing=BLIND, limits={"drain": "1h"})
    async with gateway_process(file) as gateway:
        async with crowd(session, gateway.http_url, 20) as clients:
            await until(lambda: clients.began == 20)
            gateway.signal(signal.SIGTERM)
            await until_not_ready(session, gateway)
            gateway.signal(signal.SIGTERM)
        assert clients.ends == ["cut"] * 20
        assert await gateway.process.wait() == 0
    await engine.aborted.reaches(20)


async def test_sigkill_under_load_is_seen_by_clients_engines_and_peers_and_the_next_process_serves(
    tmp_path: Path, session: aiohttp.ClientSession, unused_tcp_port_factory: Callable[[], int]
) -> None:
    journal = tmp_path / "journal"
    async with two_processes(
        tmp_path, unused_tcp_port_factory, pushing=BLIND, journal={"folder": str(journal)}
    ) as mesh:
        mesh.us_engine.plays(gated(asyncio.Event()))
        async with crowd(session, mesh.us.http_url, 30) as clients:
            await until(lambda: clients.began == 30)
            await until_written(journal, "us-1", lines=90)
            mesh.us.process.kill()
        assert clients.ends == ["cut"] * 30
        assert await mesh.us.process.wait() == -signal.SIGKILL
        await mesh.us_engine.aborted.reaches(30)
        await mesh.eu.until_logged("peer_lost", peer="us-1")
        (story,) = journal.glob("us-1-*.journal")
        tear(story)
        status, out, _ = await nightside("replay", story)
        assert status == 0, out
        assert out.startswith("equal: ")

        mesh.us_engine.plays(gated(opened()))
        await mesh.start_us()
        await mesh.eu.until_metric(session, lambda usable: usable == 1, "nightside_peers_usable")
        await mesh.us.until_metric(session, lambda available: available == 1, "nightside_replicas_available")
        async with ask(session, mesh.us.http_url) as response:
            assert await response.read() == WHOLE
        await mesh.us.until_at_rest(session)
        await mesh.eu.until_at_rest(session)


def opened() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


async def until_written(folder: Path, gateway_id: str, *, lines: int) -> None:
    def are_there() -> bool:
        return sum(path.read_bytes().count(b"\n") for path in folder.glob(f"{gateway_id}-*.journal")) >= lines

    await until(are_there)


def tear(file: Path) -> None:
    """Tear the last line, as a kill in the middle of a write does."""
    text = file.read_bytes()
    last = text.rstrip(b"\n").rpartition(b"\n")[2]
    file.write_bytes(text + last[: len(last) // 2])


@pytest.fixture(params=[False, True], ids=["before the first token", "after it"])
def has_begun(request: pytest.FixtureRequest) -> bool:
    """True if the broken streams have sent their first token."""
    return bool(request.param)


async def test_a_killed_origin_leaves_nothing_running_at_its_peer(
    tmp_path: Path, session: aiohttp.ClientSession, unused_tcp_port_factory: Callable[[], int], has_begun: bool
) -> None:
    async with two_processes(tmp_path, unused_tcp_port_factory) as mesh:
        async with mesh.forwarding(session, 10, has_begun=has_begun) as clients:
            mesh.us.process.kill()
        assert "cut" in clients.ends
        assert set(clients.ends) <= {"cut", "not connected"}, "some may have come too late to be let in"
        await mesh.eu.until_logged("peer_lost", peer="us-1")
        await until(lambda: mesh.eu_engine.aborted.count == mesh.eu_engine.arrived.count)
        await mesh.eu.until_at_rest(session)


async def test_a_killed_peer_leaves_no_count_at_its_origin(
    tmp_path: Path, session: aiohttp.ClientSession, unused_tcp_port_factory: Callable[[], int], has_begun: bool
) -> None:
    async with two_processes(tmp_path, unused_tcp_port_factory) as mesh:
        async with mesh.forwarding(session, 1, has_begun=has_begun) as clients:
            await until(lambda: clients.began == int(has_begun))
            mesh.eu.process.kill()
            await mesh.us.until_logged("peer_lost", peer="eu-1")
            mesh.us_engine.waiting = 0
        assert clients.ends == ["200"]
        assert b"engine_failed" not in clients.bodies[0]
        assert (b": nightside: went on elsewhere" in clients.bodies[0]) is has_begun
        assert (clients.bodies[0] == STREAM) is not has_begun
        await mesh.us.until_at_rest(session)
        await mesh.eu_engine.aborted.reaches(1)


# A full disk


class Disk:
    """A folder on a small disk of its own where this user may mount one; otherwise a folder of a process whose files
    may not grow.
    """

    def __init__(self, folder: Path, *, is_mounted: bool) -> None:
        self.folder = folder
        self._is_mounted = is_mounted

    def fill(self, gateway: Process) -> None:
        if not self._is_mounted:
            gateway.limit(resource.RLIMIT_FSIZE, 0)
            return
        self._write_ballast()

    def _write_ballast(self) -> None:
        with (self.folder / "ballast").open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    def fill_before_start(self) -> tuple[str, ...]:
        """Fill the disk; return the command with which to start a process where that is done by a limit."""
        if not self._is_mounted:
            return "prlimit", "--fsize=0:unlimited"
        self._write_ballast()
        return ()

    def make_room(self, gateway: Process) -> None:
        gateway.limit(resource.RLIMIT_FSIZE, resource.RLIM_INFINITY)
        (self.folder / "ballast").unlink(missing_ok=True)


@pytest.fixture(params=first_of(["a disk of its own", "files that may not grow"]))
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    is_mounted = request.param == "a disk of its own" and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield Disk(folder, is_mounted=is_mounted)
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", folder], check=True)


async def test_a_journal_on_a_full_disk_ends_loudly_and_nothing_else_does(
    tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession, disk: Disk
) -> None:
    file = region_file(tmp_path, "us-1", US, engine, journal={"folder": str(disk.folder)}, probes=QUICK_PROBES)
    async with gateway_process(file) as gateway:
        await answered(session, gateway)
        await until_written(disk.folder, "us-1", lines=6)
        disk.fill(gateway)
        await gateway.until_logged("journal_stopped", level="error")
        assert await gateway.metric(session, "nightside_journal_stopped") == 1
        await answered(session, gateway)
        async with session.get(f"{gateway.admin_url}/ready") as response:
            assert response.status == 200
        disk.make_room(gateway)
        await answered(session, gateway)
        gateway.signal(signal.SIGTERM)
        assert await gateway.process.wait() == 0
    (story,) = disk.folder.glob("*.journal")
    status, out, _ = await nightside("replay", story)
    assert status == 0, out


async def test_an_audit_record_that_is_not_required_catches_up_once_there_is_room(
    tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession, disk: Disk
) -> None:
    file = region_file(tmp_path, "us-1", US, engine, audit=audited(disk))
    async with gateway_process(file) as gateway:
        await answered(session, gateway)
        disk.fill(gateway)
        while await gateway.metric(session, "nightside_audit_failing") == 0:
            await answered(session, gateway)
        await gateway.until_logged("audit_write_failed", level="critical")
        await answered(session, gateway)
        disk.make_room(gateway)
        await gateway.until_metric(session, lambda failing: failing == 0, "nightside_audit_failing")
        await answered(session, gateway)
        asked = engine.arrived.count
        gateway.signal(signal.SIGTERM)
        assert await gateway.process.wait() == 0
    assert len(audit_lines(disk)) == asked
    status, out, _ = await nightside("audit", "verify", *disk.folder.glob("*.audit"))
    assert status == 0, out


async def test_a_required_audit_record_closes_the_door_until_there_is_room_and_lets_streams_end(
    tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession, disk: Disk
) -> None:
    go_on = asyncio.Event()
    engine.plays(gated(go_on), stream(*GOOD_STREAM))
    file = region_file(tmp_path, "us-1", US, engine, audit=audited(disk, required=True), pushing=BLIND)
    async with gateway_process(file) as gateway, ask(session, gateway.http_url) as running:
        await running.content.readany()
        disk.fill(gateway)
        assert await until_refused(session, gateway) == (503, "audit_unavailable")
        await until_not_ready(session, gateway)
        go_on.set()
        assert await running.content.read() == token("lo") + STOP + DONE
        disk.make_room(gateway)
        await gateway.until_metric(session, lambda failing: failing == 0, "nightside_audit_failing")
        await answered(session, gateway)
        await gateway.until_at_rest(session)
        asked = engine.arrived.count
        gateway.signal(signal.SIGTERM)
        assert await gateway.process.wait() == 0
    ran = [line for line in audit_lines(disk) if line["outcome"] == "completed"]
    assert len(ran) == asked


async def test_a_start_on_a_full_disk_goes_on_without_what_may_be_missing_and_says_what_is(
    tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession, disk: Disk
) -> None:
    kept = {"journal": {"folder": str(disk.folder)}, "state": {"folder": str(disk.folder)}, "audit": audited(disk)}
    file = region_file(tmp_path, "us-1", US, engine, **kept)
    async with gateway_process(file) as gateway:
        await answered(session, gateway)
        gateway.signal(signal.SIGTERM)
        assert await gateway.process.wait() == 0
    async with gateway_process(file, started_by=disk.fill_before_start()) as gateway:
        await answered(session, gateway)
        for event, level in (("journal_stopped", "error"), ("audit_write_failed", "critical")):
            await gateway.until_logged(event, level=level)
            (reason,) = [line["reason"] for line in gateway.log_lines if line["event"] == event]
            assert str(disk.folder) in reason, "it names the path"
        assert await gateway.metric(session, "nightside_journal_stopped") == 1
        assert await gateway.metric(session, "nightside_audit_failing") == 1
        disk.make_room(gateway)
        await gateway.until_metric(session, lambda failing: failing == 0, "nightside_audit_failing")
        gateway.signal(signal.SIGTERM)
        assert await gateway.process.wait() == 0
    assert len(audit_lines(disk)) == 2
    status, out, _ = await nightside("audit", "verify", disk.folder)
    assert status == 0, out


async def test_a_start_on_a_full_disk_keeps_the_door_closed_where_an_audit_record_is_required(
    tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession, disk: Disk
) -> None:
    file = region_file(tmp_path, "us-1", US, engine, audit=audited(disk, required=True))
    async with gateway_process(file, started_by=disk.fill_before_start()) as gateway:
        assert await until_refused(session, gateway) == (503, "audit_unavailable")
        await until_not_ready(session, gateway)
        disk.make_room(gateway)
        await gateway.until_metric(session, lambda failing: failing == 0, "nightside_audit_failing")
        await answered(session, gateway)
        gateway.signal(signal.SIGTERM)
        assert await gateway.process.wait() == 0
    assert len(audit_lines(disk)) == 1


async def until_refused(session: aiohttp.ClientSession, gateway: Process) -> tuple[int, str]:
    while True:
        async with ask(session, gateway.http_url) as response:
            if response.status != 200:
                return response.status, (await response.json())["error"]["code"]
            assert await response.read() == STREAM


def audited(disk: Disk, *, required: bool = False) -> dict[str, object]:
    return {"folder": str(disk.folder), "required": required, "flush_interval": "20ms"}


def audit_lines(disk: Disk) -> list[dict[str, object]]:
    lines = [json.loads(line) for path in disk.folder.glob("*.audit") for line in path.read_text().splitlines()]
    return [line for line in lines if line["kind"] == "request"]


async def test_an_operators_order_holds_on_a_full_disk_and_says_that_a_restart_forgets_it(
    tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession, disk: Disk
) -> None:
    async with gateway_process(
        region_file(tmp_path, "us-1", US, engine, state={"folder": str(disk.folder)})
    ) as gateway:
        disk.fill(gateway)
        answer = await order_lockdown(session, gateway)
        assert (answer["active"], answer["is_kept"]) == (True, False)
        assert answer["problem"]
        assert await gateway.metric(session, "nightside_lockdown") == 1
        disk.make_room(gateway)
        assert (await order_lockdown(session, gateway))["is_kept"] is True


async def order_lockdown(session: aiohttp.ClientSession, gateway: Process) -> dict[str, object]:
    body = {"active": True, "cut": False, "reason": "a drill"}
    async with session.post(f"{gateway.admin_url}/admin/lockdown", json=body) as response:
        answer: dict[str, object] = await response.json()
        return answer


async def test_a_core_that_fails_on_a_full_disk_still_answers_who_waits_and_exits(
    tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    folder = tmp_path / "journal"
    config = region_config("us-1", US, [engine.url], policy_file=write_policy(tmp_path, US))
    config = replace(config, journal=JournalConfig(folder=folder))
    engine.waiting = 1
    started: asyncio.Queue[GatewayHandle] = asyncio.Queue()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(run_gateway(config, stop=asyncio.Event(), ready=started.put_nowait))
        gateway = await started.get()
        async with crowd(session, gateway.http_url, 3) as clients:
            await until(lambda: gateway.driver.open_requests == 3)
            shutil.rmtree(folder)
            folder.write_text("nothing can be written below a file")
            gateway.driver.submit(PolicyApplied(closed_policy(EU, "of another place")))
    assert running.result() == 1
    assert clients.ends == ["502"] * 3


# No file descriptors left


async def test_a_gateway_out_of_file_descriptors_goes_on_with_what_it_has_and_recovers(
    tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    go_on = asyncio.Event()
    engine.plays(gated(go_on), stream(*GOOD_STREAM))
    async with gateway_process(region_file(tmp_path, "us-1", US, engine, pushing=BLIND)) as gateway:
        async with ask(session, gateway.http_url) as running:
            await running.content.readany()
            gateway.limit(resource.RLIMIT_NOFILE, gateway.open_files() + 4)
            async with idle_connections(gateway, 60):
                busy = await busy_share(gateway, seconds=2)
                assert busy < 0.5, "it spins over connections that it cannot take"
                assert gateway.process.returncode is None
                await gateway.until_logged("file_descriptors_exhausted", level="error")
                go_on.set()
                assert await running.content.read() == token("lo") + STOP + DONE
        gateway.limit(resource.RLIMIT_NOFILE, resource.RLIM_INFINITY)
        await until_answered(session, gateway)
        assert await gateway.metric(session, "nightside_descriptors_exhausted_total") > 0
        await gateway.until_at_rest(session)
        gateway.signal(signal.SIGTERM)
        assert await gateway.process.wait() == 0


async def test_a_descriptor_that_is_missing_here_is_not_held_against_the_engine(
    tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    """Connected clients need more connections to the engine than there are descriptors left."""
    file = region_file(tmp_path, "us-1", US, engine, pushing=BLIND)
    async with gateway_process(file) as gateway, AsyncExitStack() as stack:
        connected = [await stack.enter_async_context(aiohttp.ClientSession()) for _ in range(6)]
        for each in connected:
            async with ask(each, gateway.http_url, model="nobody-has-it") as response:
                assert response.status == 404
        engine.plays(gated(asyncio.Event()))
        tried = "nightside_attempts_total"
        await gateway.metric(session, tried)  # opens the connection of the test's own session
        gateway.limit(resource.RLIMIT_NOFILE, gateway.open_files())
        async with asyncio.TaskGroup() as tasks:
            asking = [tasks.create_task(status_of(each, gateway)) for each in connected]
            await gateway.until_metric(session, lambda ours: ours > 0, tried, target="replica", result="internal")
            engine.plays(stream(*GOOD_STREAM))
            gateway.limit(resource.RLIMIT_NOFILE, resource.RLIM_INFINITY)
            for task in asking:
                task.cancel()
        await until_answered(session, gateway)
        for held_against_it in ("failed", "busy"):
            assert await gateway.metric(session, tried, target="replica", result=held_against_it) == 0


async def status_of(session: aiohttp.ClientSession, gateway: Process) -> int:
    async with ask(session, gateway.http_url) as response:
        await response.read()
        return response.status


@asynccontextmanager
async def idle_connections(gateway: Process, count: int) -> AsyncIterator[None]:
    """Clients that connect and send nothing, more of them than there is room for."""
    host, port = gateway.http_url.removeprefix("http://").split(":")
    writers = []
    for _ in range(count):
        try:
            writers.append((await asyncio.open_connection(host, int(port)))[1])
        except OSError:
            continue
    try:
        yield
    finally:
        for writer in writers:
            writer.close()


async def busy_share(gateway: Process, *, seconds: float) -> float:
    """Processor time as a share of elapsed time: 1 for a loop that spins."""
    loop = asyncio.get_running_loop()
    ticks, started_s = gateway.cpu_ticks(), loop.time()
    await asyncio.sleep(seconds)
    return (gateway.cpu_ticks() - ticks) / 100 / (loop.time() - started_s)


async def until_answered(session: aiohttp.ClientSession, gateway: Process) -> None:
    while True:
        try:
            async with ask(session, gateway.http_url) as response:
                if response.status == 200 and await response.read() == STREAM:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.05)


# Stalls


STALL_S = 1.5
PROBE_INTERVAL_S = 0.02
PROBES_MISSED = STALL_S / PROBE_INTERVAL_S


async def test_a_stalled_peer_is_stale_and_its_streams_go_on_when_it_wakes(
    tmp_path: Path, session: aiohttp.ClientSession, unused_tcp_port_factory: Callable[[], int]
) -> None:
    """A stream that may not be resumed stays at its peer; any other continues elsewhere."""
    go_on, loop = asyncio.Event(), asyncio.get_running_loop()
    async with two_processes(tmp_path, unused_tcp_port_factory, resume={"enabled": False}) as mesh:
        await mesh.us_is_busy(session)
        mesh.eu_engine.plays(gated(go_on), stream(*GOOD_STREAM))
        async with ask(session, mesh.us.http_url) as running:
            await running.content.readany()
            mesh.eu.signal(signal.SIGSTOP)
            await mesh.us.until_metric(session, lambda usable: usable == 0, "nightside_peers_usable")
            async with crowd(session, mesh.us.http_url, 5) as clients:
                await mesh.us.until_metric(session, lambda length: length == 5, "nightside_queue_length")
                mesh.us_engine.waiting = 0
            assert clients.ends == ["200"] * 5
            await asyncio.sleep(STALL_S)
            probes, woken_s = mesh.eu_engine.probed.count, loop.time()
            mesh.eu.signal(signal.SIGCONT)
            await mesh.us.until_metric(session, lambda usable: usable == 1, "nightside_peers_usable")
            due = (loop.time() - woken_s) / PROBE_INTERVAL_S
            assert mesh.eu_engine.probed.count - probes < due + PROBES_MISSED / 4, "what was missed is not made up for"
            go_on.set()
            assert await running.content.read() == token("lo") + STOP + DONE
        await mesh.us.until_at_rest(session)
        await mesh.eu.until_at_rest(session)
        assert_served_once(mesh.us_engine, mesh.eu_engine)
        assert mesh.eu_engine.aborted.count == 0


async def test_a_stalled_gateway_wakes_with_its_deadlines_in_order(
    tmp_path: Path, session: aiohttp.ClientSession, unused_tcp_port_factory: Callable[[], int]
) -> None:
    """Requests that waited too long meanwhile time out, once; requests that arrived meanwhile have their whole time
    left.
    """
    async with two_processes(tmp_path, unused_tcp_port_factory, queue={"wait_max": "2s"}) as mesh:
        mesh.us_engine.waiting = mesh.eu_engine.waiting = 1
        for gateway in (mesh.us, mesh.eu):
            await gateway.until_metric(session, lambda free: free == 0, "nightside_replicas_available")
        await mesh.us.until_metric(session, lambda usable: usable == 1, "nightside_peers_usable")
        async with crowd(session, mesh.us.http_url, 5) as early:
            await mesh.us.until_metric(session, lambda length: length == 5, "nightside_queue_length")
            mesh.us.signal(signal.SIGSTOP)
            mesh.us_engine.waiting = mesh.eu_engine.waiting = 0
            async with crowd(session, mesh.us.http_url, 5) as late:
                await mesh.eu.until_metric(session, lambda usable: usable == 0, "nightside_peers_usable")
                await asyncio.sleep(STALL_S + 1)
                mesh.us.signal(signal.SIGCONT)
        assert set(early.ends) <= {"504", "200"}
        assert late.ends == ["200"] * 5
        await mesh.eu.until_metric(session, lambda usable: usable == 1, "nightside_peers_usable")
        await mesh.us.until_at_rest(session)
        await mesh.eu.until_at_rest(session)
        assert_served_once(mesh.us_engine, mesh.eu_engine)


def assert_served_once(*engines: FakeEngine) -> None:
    ids = Counter(received.headers["x-request-id"] for engine in engines for received in engine.received)
    assert max(ids.values()) == 1, ids


async def test_a_call_that_blocks_the_loop_is_seen_and_outlived(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int]
) -> None:
    """Two gateways in one event loop, which a blocking call stops for longer than their time-outs for each other."""
    mesh = Mesh(tmp_path, unused_tcp_port_factory)
    us, eu = await mesh.region("us-1", US), await mesh.region("eu-1", EU)
    observation = ObservationConfig(publish_interval_ns=20 * MS, keep_alive_ns=150 * MS)
    for region in (us, eu):
        core = replace(region.config.core, observation=observation)
        region.config = replace(region.config, core=core, peering=replace(QUICK_PEERING, silence_max_ns=SECOND))
    await mesh.start(us, eu)
    async with crowd(mesh.session, us.gateway.http_url, 10) as clients:
        await until(lambda: us.gateway.driver.open_requests > 0)
        asyncio.get_running_loop().call_soon(time.sleep, STALL_S)  # noqa: TID251 - that is the fault
    assert clients.ends == ["200"] * 10
    await until(lambda: late_turns(us.gateway) >= 1)
    await until(lambda: usable_peers(us.gateway) == usable_peers(eu.gateway) == 1)
    await until_at_rest(us.gateway, eu.gateway)
    assert_served_once(us.engine, eu.engine)
    await mesh.close()


def late_turns(gateway: GatewayHandle) -> float:
    """Times that the event loop came back more than a second late."""
    in_time = counted(gateway, "event_loop_delay_seconds_bucket", le="1.0")
    return counted(gateway, "event_loop_delay_seconds_count") - in_time


async def test_a_peer_that_is_replaced_under_load_costs_nobody_a_request(
    tmp_path: Path, session: aiohttp.ClientSession, unused_tcp_port_factory: Callable[[], int]
) -> None:
    """Every request in one region runs in the other, whose gateway is stopped and started again."""
    bodies: list[bytes] = []
    is_over = asyncio.Event()

    async def client(gateway: Process) -> None:
        while not is_over.is_set():
            async with ask(session, gateway.http_url) as response:
                bodies.append(await response.read())

    async with two_processes(tmp_path, unused_tcp_port_factory) as mesh:
        await mesh.us_is_busy(session)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(6):
                tasks.create_task(client(mesh.us))
            await mesh.eu_engine.arrived.reaches(10)
            mesh.eu.signal(signal.SIGTERM)
            assert await mesh.eu.process.wait() == 0
            before = mesh.eu_engine.arrived.count
            await mesh.start_eu()
            await mesh.eu_engine.arrived.reaches(before + 10)
            is_over.set()
            mesh.us_engine.waiting = 0  # requests that met the peer as it stopped wait for home
        assert set(bodies) == {STREAM}
        assert_served_once(mesh.us_engine, mesh.eu_engine)
        await mesh.us.until_at_rest(session)
        await mesh.eu.until_at_rest(session)


class Two:
    """Two regions as two processes, each with a fake engine that lives in the test."""

    def __init__(self, us_file: Path, eu_file: Path, us_engine: FakeEngine, eu_engine: FakeEngine) -> None:
        self.us_engine = us_engine
        self.eu_engine = eu_engine
        self.stack = AsyncExitStack()
        self._us_file = us_file
        self._eu_file = eu_file

    async def start_us(self) -> None:
        self.us = await self.stack.enter_async_context(gateway_process(self._us_file))

    async def start_eu(self) -> None:
        self.eu = await self.stack.enter_async_context(gateway_process(self._eu_file))

    async def us_is_busy(self, session: aiohttp.ClientSession) -> None:
        self.us_engine.waiting = 1
        await self.us.until_metric(session, lambda free: free == 0, "nightside_replicas_available")
        await self.us.until_metric(session, lambda usable: usable == 1, "nightside_peers_usable")

    @asynccontextmanager
    async def forwarding(
        self, session: aiohttp.ClientSession, clients: int, *, has_begun: bool
    ) -> AsyncIterator[Crowd]:
        """Clients of the US whose requests run in the EU; at least one has arrived there."""
        await self.us_is_busy(session)
        self.eu_engine.plays(gated(asyncio.Event()) if has_begun else hang)
        async with crowd(session, self.us.http_url, clients) as crowded:
            await self.eu_engine.arrived.reaches(1)
            yield crowded


@asynccontextmanager
async def two_processes(folder: Path, ports: Callable[[], int], **more: object) -> AsyncIterator[Two]:
    async with FakeEngine().serving() as us_engine, FakeEngine().serving() as eu_engine:
        files = two_regions(folder, ports, us_engine, eu_engine, **more)
        mesh = Two(*files, us_engine, eu_engine)
        async with mesh.stack:
            await mesh.start_us()
            await mesh.start_eu()
            await mesh.us.until_logged("peer_found", peer="eu-1")
            await mesh.eu.until_logged("peer_found", peer="us-1")
            yield mesh
