"""A controller as a process, and its failures: killed, a second controller on its store, without a disk, called by
strangers.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
from contextlib import suppress
from pathlib import Path

import grpc.aio
import pytest
from msgspec.structs import replace

from controller.app import ControllerHandle, run_controller, serve_controller
from controller.core.events import ControllerTimePassed
from controller.core.vocabulary import Condition
from controller.journal import read_journal
from controller.store.sqlite import SqliteStore
from controller.store.store import StoreUnavailable
from gateway.core.vocabulary import ControlVersion, GatewayId, ReplicaId
from mesh.clock import Clock
from mesh.control.vocabulary import PeerHeard, SnapshotRejected, SnapshotTaken
from tests.fakes.attached import AttachedGateway, attached, hello
from tests.support.background import in_background
from tests.support.certificates import new_ca
from tests.support.controllers import Mesh, controller_file, controller_process, plain_gateway, read_file
from tests.support.core import AP, EU, US
from tests.support.gateways import until
from tests.support.programs import nightside
from tests.support.stalls import stall


async def test_killed_between_any_two_writes_it_knows_what_anybody_was_told(tmp_path: Path) -> None:
    """Replicas that a gateway was told to serve stay with it under the next controller, and each snapshot is newer."""
    file = controller_file(tmp_path)
    rng = random.Random(5)
    told: dict[str, str] = {}
    versions = []
    for life in range(5):
        async with controller_process(file, fresh=life == 0) as controller:
            assert controller.term == life + 1
            us_hello = hello("us-1", US, replicas=life + 1)  # gives each life something to write
            async with plain_gateway(controller.grpc_address, us_hello) as us:
                first = await us.until(lambda _: True)
                versions.append((first.version.term, first.version.version))
                assert set(told) <= set(us.replica_ids)
                async with plain_gateway(controller.grpc_address, hello("eu-1", EU, replicas=life + 1)) as eu:
                    for _ in range(rng.randrange(3)):
                        await asyncio.wait({asyncio.create_task(eu.until(lambda _: True))})  # noqa: TID251 - waited for
                    controller.kill()
                    await controller.process.wait()
                told = dict.fromkeys(us.replica_ids, "us-1")
    assert versions == sorted(versions)
    store = await SqliteStore.open(tmp_path / "state" / "controller.db")
    documents = (await store.read()).documents
    await store.close()
    assert all(documents[f"owner/{replica}"] == owner.encode() for replica, owner in told.items())


async def test_a_store_that_is_lost_is_begun_anew_above_all_that_gateways_were_told(tmp_path: Path) -> None:
    """Gateways would reject every snapshot older than theirs, for ever."""
    file = controller_file(tmp_path)
    async with controller_process(file) as controller:
        async with plain_gateway(controller.grpc_address, hello("us-1", US)) as us:
            await us.until(lambda us: len(us.replica_ids) == 2)
        before = us.newest.version
        controller.kill()
        await controller.process.wait()
    for path in (tmp_path / "state").iterdir():
        path.unlink()
    hellos = [
        replace(hello("us-1", US), taken=replace(before, term=7)),
        replace(hello("eu-1", EU), taken=before),
    ]
    async with controller_process(file) as controller:
        assert controller.term == 1
        address = controller.grpc_address
        async with plain_gateway(address, hellos[0]) as us, plain_gateway(address, hellos[1]) as eu:
            for each, said in zip((us, eu), hellos, strict=True):
                await each.until(lambda each: len(each.replica_ids) == 2 and each.newest.version.term == 8)
                assert all(told.version.is_newer_than(said.taken) for told in each.snapshots)
    async with controller_process(file) as controller:
        assert controller.term == 9, "it was written down"
        far = replace(hello("us-1", US), taken=ControlVersion(1 << 62))
        async with plain_gateway(controller.grpc_address, far) as liar:
            assert "no controller can be so far" in await liar.until_ended()


async def test_a_second_controller_on_one_store_is_told_who_has_it(tmp_path: Path) -> None:
    file = controller_file(tmp_path)
    async with controller_process(file) as first:
        status, _, said = await nightside("controller", "run", file)
        assert status == 1
        assert "another controller has it (ctl-1 on" in said
        assert f"process {first.process.pid})" in said
        first.process.send_signal(signal.SIGTERM)
        assert await first.process.wait() == 0


async def test_a_store_that_is_damaged_is_named_and_not_begun_with(tmp_path: Path) -> None:
    file = controller_file(tmp_path)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "controller.db").write_bytes(b"no database" * 1000)
    status, _, said = await nightside("controller", "run", file)
    assert (status, "controller.db: file is not a database" in said) == (1, True)


async def test_a_document_that_cannot_be_read_is_named_and_not_begun_with(tmp_path: Path) -> None:
    file = controller_file(tmp_path)
    store = await SqliteStore.open(tmp_path / "state" / "controller.db")
    holding = await store.acquire("a test")
    await store.write(holding, {"announced/us-1": b"{}"})
    await store.release(holding)
    await store.close()
    status, _, said = await nightside("controller", "run", file)
    assert (status, "document announced/us-1 in the store cannot be read" in said) == (1, True)


class Disk(SqliteStore):
    """Store that accepts no writes while it is full."""

    is_full = False

    def _write(self, holding, changes):  # type: ignore[no-untyped-def]
        if self.is_full:
            raise StoreUnavailable("the disk is full")
        return super()._write(holding, changes)


async def test_with_a_disk_that_takes_nothing_nobody_is_told_anything_new_until_it_does(tmp_path: Path) -> None:
    disk = await Disk.open(tmp_path / "controller.db")
    async with serve_controller(read_file(tmp_path), store=disk) as controller:
        address = controller.grpc_address
        async with plain_gateway(address, hello("eu-1", EU)) as eu, plain_gateway(address, hello("ap-1", AP)) as ap:
            async with plain_gateway(address, hello("us-1", US)) as us:
                for each in (us, eu, ap):
                    await each.until(lambda each: len(each.replica_ids) == 2 and len(each.newest.peers) == 2)
                disk.is_full = True
            for each in (eu, ap):
                await each.heard(PeerHeard(GatewayId("us-1"), None, is_broken=True))
            await until(lambda: controller.manager.core.owners.get(ReplicaId("us-1-r0")) in ("eu-1", "ap-1"))
            await until(lambda: bool(controller.manager.store_writer.fault))
            seen = len(eu.snapshots), eu.alive
            await until(lambda: eu.alive > seen[1] + 2)
            assert len(eu.snapshots) == seen[0], "it is not written down, so nobody is told"
            assert controller.readiness() == ""
            assert b"nightside_controller_store_failing 1.0" in controller.metrics.render()
            disk.is_full = False
            await eu.until(lambda eu: len(eu.newest.away) == 2)
            assert controller.manager.store_writer.fault == ""
    await disk.close()


async def test_a_store_that_is_somebody_elses_ends_the_pushing(tmp_path: Path) -> None:
    async with controller_process(controller_file(tmp_path)) as controller:
        async with plain_gateway(controller.grpc_address, hello("us-1", US)) as us:
            await us.until(lambda us: len(us.replica_ids) == 2)
            other = await SqliteStore.open(tmp_path / "state" / "controller.db")
            other._lock_fd = 0  # pretends to hold the lock
            try:
                await other._run(lambda: other._acquire("another controller"))
            finally:
                other._lock_fd = None
                await other.close()
            pushed = len(us.snapshots)
            async with plain_gateway(controller.grpc_address, hello("eu-1", EU)) as eu:
                assert await controller.process.wait() == 1
                await eu.until_ended()
                assert (eu.snapshots, len(us.snapshots)) == ([], pushed)


async def test_a_gateway_that_flaps_is_watched_longer_each_time(tmp_path: Path) -> None:
    async with serve_controller(read_file(tmp_path)) as controller:
        address = controller.grpc_address
        async with plain_gateway(address, hello("eu-1", EU)) as eu, plain_gateway(address, hello("ap-1", AP)) as ap:
            for _ in range(3):
                async with plain_gateway(address, hello("us-1", US)) as us:
                    await us.until(lambda us: len(us.newest.peers) == 2)
                    await until(lambda: controller.manager.core.health[GatewayId("us-1")].condition == "up")
                for each in (eu, ap):
                    await each.heard(PeerHeard(GatewayId("us-1"), None, is_broken=True))
                await until(lambda: controller.manager.core.health[GatewayId("us-1")].condition == "down")
            assert controller.manager.core.health[GatewayId("us-1")].falls == 3
            await eu.until(lambda eu: len(eu.newest.away) == 2)
            assert not controller.manager.core.frozen


async def test_a_newer_stream_of_a_gateway_takes_the_place_of_the_older(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Holds also for a gateway that is sending just then: gRPC's library may end its stream for that, before the
    controller's own status arrives.
    """
    gateway_id = GatewayId("us-1")

    async def talk(older: AttachedGateway) -> None:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the stream is over
            while True:
                await older.heard()

    async with serve_controller(read_file(tmp_path)) as controller:
        address = controller.grpc_address
        async with plain_gateway(address, hello("us-1", US)) as older:
            await older.until(lambda _: True)
            link = controller.links.get(gateway_id)
            async with in_background(talk(older)), plain_gateway(address, hello("us-1", US)) as newer:
                await older.until_ended()
                await newer.until(lambda _: True)
                assert controller.links.get(gateway_id) not in (None, link)
                assert controller.manager.core.health[gateway_id].connected
                assert not newer.ended
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    (replaced,) = [line for line in told if line["event"] == "gateway_stream_replaced"]
    assert (replaced["gateway"], replaced["reason"]) == (gateway_id, "a newer stream of this gateway has come")


async def test_a_gateway_that_falls_silent_or_talks_nonsense_is_let_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = {"alive_interval": "50ms", "silence_max": "200ms"}
    async with serve_controller(read_file(tmp_path, link=quick)) as controller:
        address = controller.grpc_address
        async with plain_gateway(address, hello("us-1", US)) as silent:
            assert "it gave no sign of life for 0.2 s" in await silent.until_ended()
        async with plain_gateway(address, hello("us-1", US)) as odd:
            await odd.say(hello("us-1", US))
            await odd.until_ended()
        await until(lambda: not controller.manager.core.health[GatewayId("us-1")].connected)
    assert "hello was said before" in capsys.readouterr().err


async def test_a_gateway_that_spoke_while_the_controller_did_not_run_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour passes from one turn of the event loop to the next, on both clocks that time-outs are taken from."""
    async with serve_controller(
        read_file(tmp_path, link={"alive_interval": "50ms", "silence_max": "1m"})
    ) as controller:
        async with plain_gateway(controller.grpc_address, hello("us-1", US)) as us:
            await us.until(lambda us: us.replica_ids == ["us-1-r0", "us-1-r1"])
            link = controller.links.get(GatewayId("us-1"))
            assert link is not None
            manager = controller.manager

            def has_settled() -> bool:
                """Return whether no message is on its way that would be read in the turn after the stall."""
                newest = manager.board.newest
                if newest is None or manager.store_writer.pending:
                    return False
                is_up = manager.core.health[GatewayId("us-1")].condition is Condition.UP
                return is_up and newest.version == link.pushed == link.taken

            await until(has_settled)
            before_ns, now_ns = link.heard_ns, Clock.now_ns
            stall(3600)
            monkeypatch.setattr(Clock, "now_ns", staticmethod(lambda: now_ns() + 3600 * 10**9))
            await us.say(SnapshotTaken(us.snapshots[-1].version))
            await until(lambda: bool(us.ended) or link.heard_ns > before_ns + 3600 * 10**9)
            assert not us.ended
            assert controller.links.get(GatewayId("us-1")) is link


async def test_a_snapshot_that_is_rejected_is_shown_with_its_reason(tmp_path: Path) -> None:
    async with serve_controller(read_file(tmp_path)) as controller:
        async with plain_gateway(controller.grpc_address, hello("us-1", US)) as us:
            us.takes = False
            snapshot = await us.until(lambda _: True)
            await us.say(SnapshotRejected(snapshot.version, "no such section"))
            link = controller.links.get(GatewayId("us-1"))
            assert link is not None
            await until(lambda: link.rejected is not None)
            assert link.rejected == SnapshotRejected(snapshot.version, "no such section")
            assert b"snapshots_rejected_total 1.0" in controller.metrics.render()


async def test_only_gateways_of_the_trust_domain_may_attach_and_only_as_themselves(tmp_path: Path) -> None:
    mesh, foreign = Mesh(tmp_path / "mesh", new_ca()), Mesh(tmp_path / "foreign", new_ca())
    link = {"tls": mesh.controller_tls(), "alive_interval": "100ms", "silence_max": "60s"}
    async with serve_controller(read_file(tmp_path, link=link)) as controller:
        address = str(controller.grpc_address)
        own, other = mesh.gateway_tls("us-1", US), foreign.gateway_tls("us-1", US)
        async with own.open_controller_channel(address, []) as channel:
            async with attached(channel, hello("us-1", US)) as us:
                await us.until(lambda us: us.replica_ids == ["us-1-r0", "us-1-r1"])
            async with attached(channel, hello("us-2", US)) as liar:
                assert "claims to be gateway us-2" in await liar.until_ended()
            async with attached(channel, hello("us-1", EU)) as liar:
                assert "PERMISSION_DENIED" in await liar.until_ended()
        async with other.open_controller_channel(address, []) as channel:
            async with attached(channel, hello("us-1", US)) as stranger:
                assert "UNAVAILABLE" in await stranger.until_ended()
        assert b'streams_refused_total{reason="permission_denied"} 2.0' in controller.metrics.render()


async def test_sighup_takes_in_what_may_change_and_refuses_the_rest(tmp_path: Path) -> None:
    file = controller_file(tmp_path)
    async with controller_process(file) as controller:
        controller_file(tmp_path, naming={"zone": "mesh.test", "networks": {"us-east-1": ["192.0.2.0/24"]}})
        controller.process.send_signal(signal.SIGHUP)
        await until(lambda: any(line["event"] == "reload_applied" for line in controller.log_lines))
        async with plain_gateway(controller.grpc_address, hello("us-1", US)) as us:
            snapshot = await us.until(lambda us: us.newest.records is not None)
            assert snapshot.records is not None
            assert (snapshot.records.zone, snapshot.records.areas[0].networks) == ("mesh.test.", ("192.0.2.0/24",))
        controller_file(tmp_path, controller="ctl-2")
        controller.process.send_signal(signal.SIGHUP)
        await until(lambda: any(line["event"] == "reload_rejected" for line in controller.log_lines))
        refused = next(line for line in controller.log_lines if line["event"] == "reload_rejected")
        assert any("controller: cannot change" in each for each in refused["faults"])


async def test_the_journal_of_a_process_tells_the_same_story_again(tmp_path: Path) -> None:
    file = controller_file(tmp_path, journal={"folder": str(tmp_path / "journal")})
    async with controller_process(file) as controller:
        async with plain_gateway(controller.grpc_address, hello("us-1", US)) as us:
            await us.until(lambda us: len(us.replica_ids) == 2)
        controller.process.send_signal(signal.SIGTERM)
        assert await controller.process.wait() == 0
    status, said, _ = await nightside("controller", "replay", *(tmp_path / "journal").iterdir())
    assert (status, said.startswith("equal: ")) == (0, True)


async def test_a_core_that_fails_ends_the_process_for_a_restart(tmp_path: Path) -> None:
    file = read_file(tmp_path, journal={"folder": str(tmp_path / "journal")})

    def fail(controller: ControllerHandle) -> None:
        controller.manager.driver.submit(ControllerTimePassed())
        controller.manager.core._now_ns = 1 << 62
        controller.manager.driver.submit(ControllerTimePassed())

    assert await run_controller(file, stop=asyncio.Event(), ready=fail) == 1
    (tail,) = [each for each in (tmp_path / "journal").iterdir() if each.suffix == ".crash"]
    _, steps = read_journal(tail)
    assert list(steps)[-1].effects is None
    store = await SqliteStore.open(tmp_path / "state" / "controller.db")
    await store.acquire("the next one")
    await store.close()


async def test_gateways_of_one_that_could_not_renew_its_lease_are_sent_to_look_for_another(tmp_path: Path) -> None:
    file = read_file(tmp_path, store={"path": str(tmp_path / "controller.db"), "lapse_max": "1s"})
    async with serve_controller(file) as controller:
        async with plain_gateway(controller.grpc_address, hello("us-1", US)) as us:
            await us.until(lambda us: len(us.replica_ids) == 2)
            lease = controller.lead.lease
            lease.renewed(Clock().boot_ns() - 500_000_000)
            assert controller.readiness() == "its lease was not renewed in time, and another controller may lead"
            alive = us.alive
            await us.until(lambda us: us.alive > alive)
            lease.renewed(Clock().boot_ns() - 2_000_000_000)
            assert "another controller may lead" in await us.until_ended()
        async with plain_gateway(controller.grpc_address, hello("us-1", US)) as us:
            assert "UNAVAILABLE: its lease was not renewed" in await us.until_ended()
        lease.renewed(None)
        async with plain_gateway(controller.grpc_address, hello("us-1", US)) as us:
            await us.until(lambda us: len(us.replica_ids) == 2)
        assert b'streams_refused_total{reason="not_leading"} 1.0' in controller.metrics.render()
