"""The SDK's HTTP client tries the name's addresses one after the other, and reports where nothing listened."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from gateway.core.vocabulary import RegionName
from loadgen.engine.server import serve_engines
from loadgen.names import NameAnswer, NameResolver
from loadgen.studies.failover.clients import Answers, Clients, OneName
from mesh.clock import Clock
from tests.support.core import MODEL
from tests.support.served import QUICK

US = RegionName("us-east-1")


class Leads(NameResolver):
    """Resolver with answers of the test's choosing."""

    def __init__(self, *told: str) -> None:
        super().__init__((), "127.77.1.0/24", Clock())
        self.told = told

    async def ask(self, name: str) -> NameAnswer:
        return NameAnswer(self.told, 5)


async def test_calls_of_the_sdk_by_one_name_are_answered_behind_an_address_where_nobody_listens() -> None:
    async with serve_engines([QUICK]) as (engine,):
        port = engine.url.rpartition(":")[2]
        clients = Clients(US, f"http://llm.test:{port}", MODEL, Leads("127.77.9.9", "127.0.0.1"), Clock())
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(clients.run(2))
            while sum(each.ended_ns is not None for each in clients.asked) < 4:  # noqa: ASYNC110 - what an SDK does
                await asyncio.sleep(0.01)
            clients.is_over = True
            await running
    assert {each.fault for each in clients.asked} == {""}
    assert all(each.has_begun and each.ended_ns is not None for each in clients.asked)
    assert len(clients.answers.refused_ns) >= len(clients.asked)


async def test_an_error_that_is_answered_is_told_from_a_connection_that_breaks() -> None:
    async with serve_engines([QUICK]) as (engine,):
        port = engine.url.rpartition(":")[2]
        refused = Clients(US, f"http://llm.test:{port}", "no-such-model", Leads("127.0.0.1"), Clock())
        lost = Clients(US, f"http://llm.test:{port}", MODEL, Leads("127.77.9.9"), Clock())
        for clients in (refused, lost):
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(clients.run(1))
                while not any(each.ended_ns is not None for each in clients.asked):  # noqa: ASYNC110 - what an SDK does
                    await asyncio.sleep(0.01)
                clients.is_over = True
                await running
    assert {(bool(each.fault), each.is_refused) for each in refused.asked} == {(True, True)}
    assert {(bool(each.fault), each.is_refused) for each in lost.asked} == {(True, False)}


async def test_where_nobody_listens_is_named() -> None:
    async with httpx2.AsyncClient(transport=OneName(Leads("127.77.9.9"), lambda _: None, lambda: None)) as http:
        with pytest.raises(httpx2.ConnectError, match=r"no process listens at '127\.77\.9\.9'"):
            await http.get("http://llm.test:1/")
    async with httpx2.AsyncClient(transport=OneName(Leads(), lambda _: None, lambda: None)) as http:
        with pytest.raises(httpx2.ConnectError, match="leads nowhere"):
            await http.get("http://llm.test:1/")


def test_the_first_answer_of_a_region_is_the_first_since_then() -> None:
    answers = Answers([(1, US), (5, US), (4, US), (3, RegionName("eu-west-1"))])
    assert (answers.first(US, 2), answers.first(US, 6)) == (4, None)
