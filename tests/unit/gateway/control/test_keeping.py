from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from gateway.control.keeping import KeptSnapshot, SnapshotKeeper, snapshot_file
from gateway.core.kernel.residency import ResidencyPolicy, TenantPolicy
from gateway.core.vocabulary import ControlVersion, GatewayId, PlaceRule, ReplicaId, TenantName
from mesh.clock import Clock
from mesh.config import LoggingConfig
from mesh.control.vocabulary import ControlSnapshot, PeerGrant, ReplicaGrant, ReplicaOwner
from mesh.logs import make_logger
from mesh.naming.tree import Area, RecordTree
from mesh.state_files import StateFile
from tests.support.core import EU, US
from tests.support.gateways import until

OURS = GatewayId("us-1")
RULE = PlaceRule(frozenset({US.jurisdiction}), frozenset({EU.region}))
WHOLE = ControlSnapshot(
    ControlVersion(3, 2**40),
    OURS,
    (ReplicaGrant('{"id": "r1"}', GatewayId("eu-1"), EU, RULE), ReplicaGrant('{"id": "r2"}', OURS, US)),
    (ReplicaOwner(ReplicaId("r3"), OURS, GatewayId("eu-1")),),
    (PeerGrant(GatewayId("eu-1"), EU, "127.0.0.1:9"),),
    ResidencyPolicy(US, RULE, RULE, {TenantName("acme"): TenantPolicy(RULE)}, digest="d"),
    '{"queue": {}}',
    RecordTree(1, 5, (Area(US.region, US.jurisdiction, (OURS,), ("192.0.2.1",)),), ("192.0.2.1",)),
)


def keeper(folder: Path | None) -> SnapshotKeeper:
    return SnapshotKeeper(folder, OURS, make_logger(LoggingConfig(), OURS, clock=Clock()))


async def running(keeper: SnapshotKeeper, is_over: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(keeper.run())
        await is_over.wait()
        task.cancel()


def file_that(monkeypatch: pytest.MonkeyPatch, write: object) -> None:
    monkeypatch.setattr(StateFile, "write", write)


async def test_what_was_taken_is_there_again_to_the_last_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, loop, written = keeper(tmp_path), asyncio.get_running_loop(), asyncio.Event()
    write = StateFile.write

    def write_and_tell(file: StateFile[KeptSnapshot], content: KeptSnapshot) -> None:
        write(file, content)
        loop.call_soon_threadsafe(written.set)

    file_that(monkeypatch, write_and_tell)
    one.keep(KeptSnapshot(WHOLE, 7))
    await running(one, written)
    assert keeper(tmp_path).restore() == KeptSnapshot(WHOLE, 7)
    assert one.fault == ""


async def test_a_disk_that_takes_nothing_is_told_and_tried_again_with_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, loop = keeper(tmp_path), asyncio.get_running_loop()
    failed, written = asyncio.Event(), asyncio.Event()
    is_full = True
    told: list[KeptSnapshot] = []

    def write(_: StateFile[KeptSnapshot], content: KeptSnapshot) -> None:
        if is_full:
            loop.call_soon_threadsafe(failed.set)
            raise OSError(errno.ENOSPC, "no space left")
        told.append(content)
        loop.call_soon_threadsafe(written.set)

    file_that(monkeypatch, write)
    one.keep(KeptSnapshot(WHOLE, 1))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(one.run())
        await failed.wait()
        await until(lambda: bool(one.fault))
        assert "no space left" in one.fault
        is_full = False
        one.keep(KeptSnapshot(WHOLE, 2))
        await written.wait()
        task.cancel()
    assert told == [KeptSnapshot(WHOLE, 2)]


def test_without_a_folder_nothing_is_kept_and_that_is_said() -> None:
    one = keeper(None)
    one.keep(KeptSnapshot(WHOLE, 1))
    assert one.restore() is None
    assert one.fault == "no state.folder is configured"


def test_what_is_there_and_of_no_use_is_told_and_ignored(tmp_path: Path) -> None:
    assert keeper(tmp_path).restore() is None
    path = snapshot_file(tmp_path, OURS).path
    snapshot_file(tmp_path, OURS).write(KeptSnapshot(WHOLE, 7))
    path.write_bytes(path.read_bytes().replace(b"127.0.0.1:9", b"127.0.0.1:8"))
    one = keeper(tmp_path)
    assert one.restore() is None
    assert "its checksum does not fit" in one.fault
