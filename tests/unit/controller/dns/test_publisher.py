from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from controller.dns.provider import (
    Changes,
    DnsError,
    DnsOutdated,
    DnsRefused,
    DnsUnavailable,
    PublishedRecords,
    changes_between,
)
from controller.dns.publisher import RecordPublisher
from mesh.clock import Clock
from mesh.config import LoggingConfig
from mesh.logs import make_logger
from mesh.naming.tree import RecordTree
from mesh.supervisor import Backoff
from tests.support.naming import US, tree

AT_ONCE = Backoff(1, 1)


class Scripted:
    """Provider that raises the next fault of a list at each call, and succeeds after the last."""

    tells_clients_apart = True

    def __init__(self, *faults: DnsError | None, gate: asyncio.Event | None = None) -> None:
        self.calls: list[tuple[int, Changes]] = []
        self.changed = 1
        self.settled: list[str] = []
        """Order of `begun`, `done` and `cancelled`."""
        self.settle_gate: asyncio.Event | None = None
        self.settle_faults: list[DnsError] = []
        self._faults = list(faults)
        self._gate = gate
        self._called = asyncio.Condition()

    async def publish(self, tree: RecordTree, changes: Changes) -> int:
        async with self._called:
            self.calls.append((tree.version, changes))
            self._called.notify_all()
        if self._gate is not None:
            await self._gate.wait()
        fault = self._faults.pop(0) if self._faults else None
        if fault is not None:
            raise fault
        return self.changed

    async def settle(self) -> None:
        self.settled.append("begun")
        try:
            if self.settle_gate is not None:
                await self.settle_gate.wait()
            if self.settle_faults:
                raise self.settle_faults.pop(0)
        except asyncio.CancelledError:
            self.settled.append("cancelled")
            raise
        self.settled.append("done")

    async def plan(self, _tree: RecordTree) -> tuple[str, ...]:
        return ()

    async def read(self) -> PublishedRecords | None:
        return None

    async def close(self) -> None:
        pass

    async def until_called(self, times: int) -> None:
        async with self._called:
            await self._called.wait_for(lambda: len(self.calls) >= times)


@asynccontextmanager
async def running(
    provider: Scripted,
    *,
    deadline_s: float = 60.0,
    check_s: float | None = None,
    results: list[str] | None = None,
) -> AsyncIterator[RecordPublisher]:
    log = make_logger(LoggingConfig(), "controller", clock=Clock())
    heard = [] if results is None else results
    publisher = RecordPublisher(
        provider, log, deadline_s=deadline_s, backoff=AT_ONCE, check_s=check_s, on_result=heard.append
    )
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(publisher.run())
        yield publisher
        task.cancel()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - a publisher's inner state has no event to wait for
        await asyncio.sleep(0)


async def test_the_first_tree_is_published_whole_and_the_next_with_what_changed() -> None:
    provider = Scripted()
    async with running(provider) as publisher:
        publisher.take(tree())
        await until(lambda: publisher.published == 1)
        publisher.take(tree(2, us=("192.0.2.9",)))
        await until(lambda: publisher.published == 2)
    assert [changes.is_whole for _, changes in provider.calls] == [True, False]
    assert provider.calls[1][1].regions == frozenset({US})


async def test_one_that_cannot_be_reached_is_asked_again_until_it_says_it_and_then_whole() -> None:
    provider = Scripted(None, DnsUnavailable("no route"), DnsUnavailable("no route"))
    async with running(provider) as publisher:
        publisher.take(tree())
        await until(lambda: publisher.published == 1)
        publisher.take(tree(2))
        await provider.until_called(3)
        assert publisher.fault == "no route"
        await until(lambda: publisher.published == 2)
        assert publisher.fault == ""
    assert [changes.is_whole for _, changes in provider.calls] == [True, False, True, True]


async def test_one_that_never_answers_is_given_up_at_the_deadline() -> None:
    provider = Scripted(gate=asyncio.Event())
    async with running(provider, deadline_s=0.001) as publisher:
        publisher.take(tree())
        await provider.until_called(2)
        assert publisher.fault == "no answer within 0.001 s"
        assert publisher.published == 0


async def test_while_one_is_slow_only_the_newest_tree_is_kept() -> None:
    gate = asyncio.Event()
    provider = Scripted(gate=gate)
    async with running(provider) as publisher:
        for version in (1, 2, 3, 4):
            publisher.take(tree(version))
            await provider.until_called(1)
        gate.set()
        await until(lambda: publisher.published == 4)
    assert [version for version, _ in provider.calls] == [1, 4]


async def test_what_is_refused_waits_for_another_tree() -> None:
    provider = Scripted(None, DnsRefused("no such thing"))
    async with running(provider) as publisher:
        publisher.take(tree())
        await until(lambda: publisher.published == 1)
        publisher.take(tree(2))
        await until(lambda: publisher.fault == "refused: no such thing")
        assert publisher.published == 1
        publisher.take(tree(3))
        await until(lambda: publisher.published == 3)
    assert [version for version, _ in provider.calls] == [1, 2, 3]
    assert not provider.calls[2][1].is_whole


async def test_whoever_is_overtaken_knows_nothing_of_what_is_said() -> None:
    provider = Scripted(DnsOutdated("version 9 is there"))
    async with running(provider) as publisher:
        publisher.take(tree())
        await until(lambda: publisher.fault == "outdated: version 9 is there")
        assert publisher.published == 0
        publisher.take(tree(10))
        await until(lambda: publisher.published == 10)
    assert provider.calls[1][1].is_whole


async def test_what_somebody_else_changed_is_looked_for_and_put_right() -> None:
    provider, results = Scripted(), list[str]()
    async with running(provider, check_s=0.001, results=results) as publisher:
        publisher.take(tree())
        await provider.until_called(2)
        provider.changed = 0
        await until(lambda: publisher.published == 1 and "put_right" in results)
        put_right = results.count("put_right")
        await provider.until_called(len(provider.calls) + 3)
        assert results.count("put_right") <= put_right + 1
    assert provider.calls[1] == (1, changes_between(None, tree()))


async def test_where_nobody_else_can_change_anything_nobody_looks() -> None:
    provider = Scripted()
    async with running(provider) as publisher:
        publisher.take(tree())
        await until(lambda: provider.settled == ["begun", "done"])
    assert len(provider.calls) == 1


async def test_what_stood_in_the_way_is_looked_at_again() -> None:
    provider = Scripted(DnsRefused("not ours, and in the way"))
    async with running(provider, check_s=0.001) as publisher:
        publisher.take(tree())
        await until(lambda: publisher.published == 1)
    assert publisher.fault == ""


async def test_news_do_not_wait_for_what_settles() -> None:
    provider = Scripted()
    provider.settle_gate = asyncio.Event()
    async with running(provider) as publisher:
        publisher.take(tree())
        await until(lambda: provider.settled == ["begun"])
        publisher.take(tree(2))
        await until(lambda: publisher.published == 2 and len(provider.settled) == 3)
        assert provider.settled == ["begun", "cancelled", "begun"]


async def test_what_cannot_settle_is_told_and_tried_again() -> None:
    provider = Scripted()
    provider.settle_faults = [DnsUnavailable("slow"), DnsUnavailable("slow")]
    async with running(provider) as publisher:
        publisher.take(tree())
        await until(lambda: publisher.settle_fault == "slow")
        await until(lambda: publisher.settle_fault == "")
    assert provider.settled == ["begun", "begun", "begun", "done"]
