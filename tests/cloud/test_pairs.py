"""Two controllers of which one leads: killed, stopped past its lease, with a store that is late or fails over."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.cloud.conftest import needs
from tests.cloud.pairs import FREEZE, SharedStore, asked, pair, resume, stop
from tests.cloud.postgresql import USER, Postgresql
from tests.fakes.attached import hello
from tests.support.controllers import controller_started, plain_gateway
from tests.support.core import EU, US

pytestmark = pytest.mark.xdist_group("pairs")


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


@pytest.fixture(params=["postgresql"])
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
    """While it is stopped, an operator's order and a gateway's words wait at its sockets: it finds them first."""
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
