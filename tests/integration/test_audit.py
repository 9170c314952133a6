"""The audit log of whole gateways: both sides of a forward, disks that fail, and the commands that read it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from msgspec.structs import replace

from gateway.config.sections import AuditConfig, AuditSync
from tests.fakes.engine import GOOD_STREAM, hang_up
from tests.support.core import EU, MS, US
from tests.support.gateways import ask, counted, until, write_policy
from tests.support.programs import nightside
from tests.support.regions import Mesh, Region, busy_us_and_free_eu


@pytest.fixture
async def mesh(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[Mesh]:
    (tmp_path / "policies").mkdir()
    made = Mesh(tmp_path / "policies", unused_tcp_port_factory)
    yield made
    await made.close()


def audited(folder: Path, **settings: object) -> AuditConfig:
    settings = {"sync": AuditSync.LINE, "flush_interval_ns": 5 * MS, **settings}
    return replace(AuditConfig(folder=folder), **settings)


def requests_in(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]
    return [line for line in lines if line["kind"] == "request"]


async def answered(mesh: Mesh, region: Region) -> None:
    async with ask(mesh.session, region.gateway.http_url) as response:
        assert await response.read() == b"".join(GOOD_STREAM)


async def test_a_forward_is_on_record_at_both_ends_and_fits_the_policies(mesh: Mesh, tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    us, eu = await busy_us_and_free_eu(mesh, audit=audited(folder))
    await answered(mesh, us)
    await answered(mesh, eu)
    for region in (us, eu):
        await region.stop()
    lines = {(line["gateway"], line["origin"]["region"]): line for line in requests_in(folder)}
    assert lines.keys() == {("us-1", US.region), ("eu-1", US.region), ("eu-1", EU.region)}
    origin, receiver = lines["us-1", US.region], lines["eu-1", US.region]
    assert origin["processed"] == {"replica": "eu-1-r0", "region": EU.region, "jurisdiction": "EU"}
    assert receiver["processed"] == origin["processed"]
    assert receiver["attempts"][0]["policy"] == origin["policy"], "the stamp carries the origin's digest"
    assert "hello" not in "".join(path.read_text() for path in folder.iterdir())

    files = sorted(folder.iterdir())
    status, out, _ = await nightside("audit", "verify", *files)
    assert (status, out.splitlines()[0]) == (0, "whole: 5 lines in 2 files")
    status, out, _ = await nightside("audit", "summary", *files, "--policies", tmp_path / "policies", "--json")
    assert status == 0
    flows = {(flow["from"], flow["to"]): flow for flow in json.loads(out)["flows"]}
    across = flows[US.region, EU.region]
    assert (across["seen_by_origin"], across["seen_by_receiver"]) == (1, 1)
    assert (across["processed_by_origin"], across["processed_by_receiver"]) == (1, 1)

    write_policy(tmp_path / "policies", EU, accept=())
    status, out, _ = await nightside("audit", "summary", *files, "--policies", tmp_path / "policies")
    assert status == 1
    assert "us-east-1 → eu-west-1: accept names neither region us-east-1 nor jurisdiction US" in " ".join(out.split())

    files[0].write_bytes(files[0].read_bytes().replace(b"completed", b"abandoned", 1))
    status, out, _ = await nightside("audit", "verify", *files)
    assert status == 1
    assert out.startswith(f"broken: {files[0]}:")


async def test_a_region_that_failed_is_on_record_as_well(mesh: Mesh, tmp_path: Path) -> None:
    us, eu = await busy_us_and_free_eu(mesh, audit=audited(tmp_path / "audit"))
    eu.engine.plays(hang_up)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(answered(mesh, us))
        await until(lambda: counted(us.gateway, "attempts_total", target="peer", result="failed") == 1)
        await us.become_free()
    await us.stop()
    (line,) = [line for line in requests_in(tmp_path / "audit") if line["gateway"] == "us-1"]
    attempts = [(each["region"], each["result"]) for each in line["attempts"]]
    assert attempts == [(EU.region, "failed"), (US.region, "completed")]
    assert line["processed"]["region"] == US.region


async def test_a_restart_goes_on_where_it_stopped(mesh: Mesh, tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    us = await mesh.region("us-1", US)
    us.config = replace(us.config, audit=audited(folder))
    await mesh.start(us)
    await answered(mesh, us)
    await us.stop()
    await us.start()
    await until(lambda: not us.is_busy)
    await answered(mesh, us)
    await us.stop()
    files = sorted(folder.iterdir())
    assert len(files) == 2
    status, out, _ = await nightside("audit", "verify", *files)
    assert (status, out.splitlines()[0]) == (0, "whole: 4 lines in 2 files")


async def test_where_the_record_is_required_a_failing_disk_closes_the_gateway_until_it_heals(
    mesh: Mesh, tmp_path: Path
) -> None:
    us, eu = await mesh.region("us-1", US), await mesh.region("eu-1", EU)
    folder = tmp_path / "audit"
    eu.config = replace(eu.config, audit=audited(folder, required=True))
    await mesh.start(us, eu)
    shutil.rmtree(folder)
    await answered(mesh, eu)
    await until(lambda: counted(eu.gateway, "audit_failing") == 1)

    async with ask(mesh.session, eu.gateway.http_url) as response:
        assert response.status == 503
        assert response.headers["retry-after"] == "5"
        assert (await response.json())["error"]["code"] == "audit_unavailable"
    async with mesh.session.get(f"{eu.gateway.admin_url}/ready") as response:
        assert (response.status, (await response.json())["reason"]) == (503, "the audit record cannot be written")
    await us.become_busy()
    seen = len(eu.engine.received)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(answered(mesh, us))
        await until(lambda: counted(us.gateway, "forwards_refused_total", peer="eu-1", reason="busy") >= 1)
        assert len(eu.engine.received) == seen
        folder.mkdir()
        await until(lambda: counted(eu.gateway, "audit_failing") == 0)
    assert waiting.done()
    assert len(eu.engine.received) == seen + 1


async def test_where_it_is_not_required_requests_are_served_and_the_failure_is_told(mesh: Mesh, tmp_path: Path) -> None:
    us = await mesh.region("us-1", US)
    folder = tmp_path / "audit"
    us.config = replace(us.config, audit=audited(folder))
    await mesh.start(us)
    shutil.rmtree(folder)
    await answered(mesh, us)
    await until(lambda: counted(us.gateway, "audit_failing") == 1)
    await answered(mesh, us)
    async with mesh.session.get(f"{us.gateway.admin_url}/ready") as response:
        assert response.status == 200
    folder.mkdir()
    await until(lambda: counted(us.gateway, "audit_failing") == 0)
    await until(lambda: len(requests_in(folder)) == 2)


async def test_a_folder_that_cannot_be_written_stops_the_start(mesh: Mesh, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    us = await mesh.region("us-1", US)
    us.config = replace(us.config, audit=audited(tmp_path / "file"))
    with pytest.raises(OSError, match="file"):
        await us.start()


async def test_a_signed_record_is_checked_by_its_public_key_and_by_what_was_logged(mesh: Mesh, tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    private, public = tmp_path / "audit.key", tmp_path / "audit.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    us, eu = await busy_us_and_free_eu(mesh, audit=audited(tmp_path / "audit", signing_key=private))
    await answered(mesh, us)
    for region in (us, eu):
        await region.stop()
    files = sorted((tmp_path / "audit").iterdir())
    noted = tmp_path / "noted"
    status, out, _ = await nightside("audit", "heads", *files)
    noted.write_text(out)
    checks = ("--public-key", public, "--noted", noted)
    status, out, _ = await nightside("audit", "verify", *files, *checks)
    assert (status, "note" in out) == (0, False)
    assert (await nightside("audit", "summary", *files))[0] == 0, "signatures are no requests"
    files[0].write_bytes(b"".join(files[0].read_bytes().splitlines(keepends=True)[:3]))
    assert (await nightside("audit", "verify", *files))[0] == 0, "by itself it holds"
    status, out, _ = await nightside("audit", "verify", *files, *checks)
    assert (status, "cut off after this line" in out) == (1, True)
