"""Two controllers that publish records: only the leader does, also when the former leader believes that it
still leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import dns.asyncquery
import dns.message
import pytest

from controller.dns.claim import OwnerClaim, claim_in
from mesh.values import Address
from tests.cloud.name_servers import KEY_NAME, SECRET, Bind
from tests.cloud.pairs import SharedStore, pair, resume, stop
from tests.cloud.postgresql import USER, Postgresql
from tests.cloud.programs import Emulator
from tests.cloud.test_route53 import standing
from tests.fakes.attached import hello
from tests.support.controllers import plain_gateway
from tests.support.core import EU, US

pytestmark = pytest.mark.needs("pg_createcluster", "named", "emulators")
NAMING = {"zone": "mesh.example"}
Claimed = Callable[[], Awaitable[OwnerClaim | None]]


async def claim_at(server: Address) -> OwnerClaim | None:
    """Claim in the zone, as its name server answers it."""
    query = dns.message.make_query("_nightside.mesh.example.", "TXT")
    answer = await dns.asyncquery.udp(query, server.host, timeout=60, port=server.port)
    for each in answer.answer:
        return claim_in(text.decode() for text in each[0].strings)
    return None


@asynccontextmanager
async def at_bind(folder: Path) -> AsyncIterator[tuple[dict[str, Any], Claimed]]:
    (folder / "named").mkdir()
    server = Bind(folder / "named")
    server.start()
    (folder / "key").write_text(SECRET)
    keys = {"server": str(server.address), "key_name": KEY_NAME, "key_file": str(folder / "key")}
    try:
        yield {"provider": "rfc2136", "rfc2136": keys}, lambda: claim_at(server.address)
    finally:
        server.kill()


@asynccontextmanager
async def at_route53(emulator: Emulator) -> AsyncIterator[tuple[dict[str, Any], Claimed]]:
    async with standing(emulator) as stand:
        keys = {"hosted_zone": stand.front.zone_id, "endpoint": stand.url}
        yield {"provider": "route53", "route53": keys}, lambda: claim_at(stand.names)


@pytest.fixture(params=["rfc2136", "route53"])
async def published(
    request: pytest.FixtureRequest, tmp_path: Path, running_ministack: Emulator, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[dict[str, Any], Claimed]]:
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(key, "test")
    async with at_bind(tmp_path) if request.param == "rfc2136" else at_route53(running_ministack) as made:
        yield made


async def until_written(claimed: Claimed, is_wanted: Callable[[OwnerClaim], bool]) -> OwnerClaim:
    while (claim := await claimed()) is None or not is_wanted(claim):  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.05)
    return claim


async def test_one_that_is_stopped_past_its_lease_writes_no_record_once_it_goes_on(
    published: tuple[dict[str, Any], Claimed], running_postgresql: Postgresql, tmp_path: Path
) -> None:
    """The end of a gateway's stream waits at the stopped leader's socket: acted upon, it would remove the gateway's
    address.
    """
    records, claimed = published
    running_postgresql.sql("DROP TABLE IF EXISTS nightside_store, nightside_documents")
    where = {"hosts": [str(running_postgresql.address)], "database": "nightside", "user": USER, "tls": False}
    shared = SharedStore({"kind": "postgresql", "postgresql": where})
    async with pair(shared, tmp_path, naming=NAMING, records=records) as two:
        async with plain_gateway(two.leader.grpc_address, hello("us-1", US)):
            first = await until_written(claimed, lambda claim: claim.regions == ("us-east-1",))
            assert first.term == 1
            stop(two.leader)
        await two.other.until_ready()
        async with (
            plain_gateway(two.other.grpc_address, hello("us-1", US)),
            plain_gateway(two.other.grpc_address, hello("eu-1", EU)),
        ):
            taken_over = await until_written(claimed, lambda claim: claim.regions == ("eu-west-1", "us-east-1"))
            assert taken_over.term == 2
            resume(two.leader)
            assert await two.leader.process.wait() == 1
            assert not any(each["event"] == "dns_records_published" for each in after_resuming(two.leader.log_lines))
            last = await claimed()
    assert last is not None
    assert last.term == 2
    assert last.version >= taken_over.version


def after_resuming(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Log lines after the resumed controller has read that its gateway is gone."""
    for number, line in enumerate(lines):
        if line["event"] == "gateway_detached":
            return lines[number:]
    return []
