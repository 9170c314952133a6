"""Two controllers of which one leads: killed, stopped past its lease, with a store that answers late or fails over."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.cloud.conftest import needs
from tests.cloud.dynamodb import NOBODY, new_table
from tests.cloud.pairs import FREEZE, SharedStore, asked, pair, resume, stop, until_logged
from tests.cloud.postgresql import USER, Postgresql
from tests.cloud.programs import Emulator
from tests.fakes.attached import hello
from tests.support.controllers import ControllerProcess, controller_started, plain_gateway
from tests.support.core import EU, US


def on_postgresql(*servers: Postgresql) -> SharedStore:
    hosts = [str(each.address) for each in servers]
    where = {"hosts": hosts, "database": "nightside", "user": USER, "tls": False}
    return SharedStore({"kind": "postgresql", "postgresql": where})


@pytest.fixture
def postgresql_store(request: pytest.FixtureRequest) -> SharedStore:
    needs("pg_createcluster", request.config)
    server: Postgresql = request.getfixturevalue("running_postgresql")
    server.sql("DROP TABLE IF EXISTS nightside_store, nightside_documents")
    return on_postgresql(server)


@pytest.fixture
def dynamodb_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SharedStore:
    needs("emulators", request.config)
    for name, secret in NOBODY.items():
        monkeypatch.setenv(name, secret)
    emulator: Emulator = request.getfixturevalue("running_ministack")
    where = {"table": new_table(emulator), "region": "us-east-1", "endpoint": emulator.url}
    return SharedStore({"kind": "dynamodb", "dynamodb": where})


@pytest.fixture(params=["postgresql", "dynamodb"])
def shared(request: pytest.FixtureRequest) -> SharedStore:
    store: SharedStore = request.getfixturevalue(f"{request.param}_store")
    return store


async def test_one_leads_and_the_other_says_who_and_takes_no_order(shared: SharedStore, tmp_path: Path) -> None:
    async with pair(shared, tmp_path) as two:
        assert two.leader.term == 1
        status, said = await asked(two.other, "/ready")
        assert status == 503
        assert "ctl-1 on" in said["reason"]
        assert f"process {two.leader.process.pid})" in said["reason"]
        status, said = await asked(two.other, "/admin/orders", FREEZE)
        assert (status, "stands by, and nothing has changed" in said["error"]) == (503, True)
        assert (await asked(two.other, "/health"))[0] == 200
        two.other.process.send_signal(signal.SIGTERM)
        assert await two.other.process.wait() == 0, "it was told to stop while it waited"
        assert (await asked(two.leader, "/ready"))[0] == 200


async def test_one_that_ends_in_order_is_followed_at_once(shared: SharedStore, tmp_path: Path) -> None:
    async with pair(shared, tmp_path) as two:
        two.leader.process.send_signal(signal.SIGTERM)
        assert await two.leader.process.wait() == 0
        await two.other.until_ready()
        assert two.other.term == 2


async def test_one_that_is_killed_is_followed_and_what_it_told_anybody_is_known(
    shared: SharedStore, tmp_path: Path
) -> None:
    async with pair(shared, tmp_path) as two:
        async with plain_gateway(two.leader.grpc_address, hello("us-1", US)) as us:
            before = await us.until(lambda us: len(us.replica_ids) == 2)
            status, _ = await asked(two.leader, "/admin/orders", FREEZE)
            assert status == 200
            two.leader.kill()
            await two.other.until_ready()
        async with plain_gateway(two.other.grpc_address, hello("us-1", US)) as us:
            after = await us.until(lambda us: len(us.replica_ids) == 2)
            assert after.version.is_newer_than(before.version)
            assert after.version.term == two.other.term == 2
        _, state = await asked(two.other, "/admin/state")
        assert state["frozen"] == "a late order"


async def test_with_all_of_them_killed_the_next_one_goes_on_where_they_were(
    shared: SharedStore, tmp_path: Path
) -> None:
    async with pair(shared, tmp_path) as two:
        async with plain_gateway(two.leader.grpc_address, hello("us-1", US)) as us:
            await us.until(lambda us: len(us.replica_ids) == 2)
        for each in (two.leader, two.other):
            each.kill()
            await each.process.wait()
    async with controller_started(shared.file(tmp_path, "ctl-3")) as third:
        await third.until_standing_by()
        await third.until_ready()
        assert third.term == 2
        async with plain_gateway(third.grpc_address, hello("eu-1", EU)) as eu:
            await eu.until(lambda eu: [each.gateway_id for each in eu.newest.peers] == ["us-1"])


async def test_one_that_is_stopped_past_its_lease_changes_nothing_once_it_goes_on(
    shared: SharedStore, tmp_path: Path
) -> None:
    """An operator's command and a gateway's message wait at its sockets while it is stopped: it reads them first."""
    async with pair(shared, tmp_path) as two, asyncio.TaskGroup() as tasks:
        async with plain_gateway(two.leader.grpc_address, hello("us-1", US)) as us:
            await us.until(lambda us: len(us.replica_ids) == 2)
            stop(two.leader)
            late_order = tasks.create_task(asked(two.leader, "/admin/orders", FREEZE))
            await us.say(hello("us-1", US, replicas=5).announcement)
            await two.other.until_ready()
            told = len(us.snapshots)
            async with plain_gateway(two.other.grpc_address, hello("eu-1", EU)) as eu:
                await eu.until(lambda eu: len(eu.replica_ids) == 2)
                before = await shared.read(tmp_path)
                resume(two.leader)
                assert await two.leader.process.wait() == 1, "it ends, for its supervisor to start it again"
                await us.until_ended()
                assert len(us.snapshots) == told, "nobody was told anything by it"
                after = await shared.read(tmp_path)
        status, said = await late_order
        assert (status, "nothing has changed" in said["error"]) == (503, True)
    written = {name for name in after.documents if after.documents[name] != before.documents.get(name)}
    assert "freeze" not in after.documents
    assert b"us-1-r4" not in after.documents["announced/us-1"]
    assert not {name for name in written if not name.startswith(("owner/", "down/", "assignment", "records"))}


# A store that answers late, or fails over


@pytest.fixture
def own_server(request: pytest.FixtureRequest) -> Iterator[Postgresql]:
    """PostgreSQL server of one test, which may stop it."""
    needs("pg_createcluster", request.config)
    server = Postgresql.made()
    yield server
    server.end()


async def test_a_store_that_answers_late_leaves_the_leader_where_it_was(own_server: Postgresql, tmp_path: Path) -> None:
    """Past its lease the leader is not ready, but no other controller can take the store either."""
    async with pair(on_postgresql(own_server), tmp_path) as two:
        async with plain_gateway(two.leader.grpc_address, hello("us-1", US)) as us:
            await us.until(lambda us: len(us.replica_ids) == 2)
            own_server.freeze()
            await until_logged(two.leader, "lease_renewal_failed")
            await until_ready(two.leader, 503)
            _, said = await asked(two.leader, "/ready")
            assert "its lease was not renewed in time" in said["reason"]
            order = await asked(two.leader, "/admin/orders", FREEZE)
            assert (order[0], "it may have changed, and will have" in order[1]["error"]) == (504, True)
            alive = us.alive
            await us.until(lambda us: us.alive > alive + 2)
            own_server.thaw()
            await until_ready(two.leader, 200)
            await us.until(lambda us: us.newest.version.term == 1 and us.alive > alive + 4)
            await until_frozen(two.leader)
            assert two.leader.process.returncode is None
            assert two.other.process.returncode is None
        assert (await asked(two.other, "/ready"))[0] == 503, "it still stands by"


async def until_ready(controller: ControllerProcess, status: int) -> None:
    while (await asked(controller, "/ready"))[0] != status:  # noqa: ASYNC110 - another process has no event for us
        await asyncio.sleep(0.1)


async def until_frozen(controller: ControllerProcess) -> None:
    """Wait until the command whose answer was lost is in force."""
    while (await asked(controller, "/admin/state"))[1]["frozen"] != "a late order":  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.1)


async def test_a_database_that_loses_its_primary_keeps_its_leader_and_all_that_was_written(
    own_server: Postgresql, tmp_path: Path
) -> None:
    standby = own_server.standby(is_waited_for=True)
    try:
        async with pair(on_postgresql(own_server, standby), tmp_path) as two:
            async with plain_gateway(two.leader.grpc_address, hello("us-1", US)) as us:
                before = await us.until(lambda us: len(us.replica_ids) == 2)
                own_server.program.kill()
                standby.promote()
                async with plain_gateway(two.leader.grpc_address, hello("eu-1", EU)) as eu:
                    after = await eu.until(lambda eu: len(eu.newest.peers) == 1)
                    assert after.version.is_newer_than(before.version)
                    assert after.version.term == before.version.term
                assert not us.ended
            assert two.leader.process.returncode is None
    finally:
        standby.end()


async def test_a_database_that_lost_what_it_had_answered_is_begun_anew_above_it(
    own_server: Postgresql, tmp_path: Path
) -> None:
    """The standby replicates asynchronously and lags: it does not know the lease that the primary had granted."""
    standby = own_server.standby(is_waited_for=False)
    shared = on_postgresql(own_server, standby)
    try:
        async with controller_started(shared.file(tmp_path, "ctl-0")) as first:
            await first.until_ready()
            first.process.send_signal(signal.SIGTERM)
            await first.process.wait()
        standby.fall_behind(own_server)
        async with controller_started(shared.file(tmp_path, "ctl-1")) as leader:
            await leader.until_ready()
            async with plain_gateway(leader.grpc_address, hello("us-1", US)) as us:
                before = await us.until(lambda us: len(us.replica_ids) == 2)
                own_server.program.kill()
                standby.promote()
                assert await leader.process.wait() == 1
        async with controller_started(shared.file(tmp_path, "ctl-2")) as next_one:
            await next_one.until_ready()
            said = replace(hello("us-1", US), taken=before.version)
            async with plain_gateway(next_one.grpc_address, said) as us:
                after = await us.until(lambda us: len(us.replica_ids) == 2)
                assert after.version.is_newer_than(before.version)
    finally:
        standby.end()
