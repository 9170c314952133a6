from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from ipaddress import ip_address

import dns.asyncquery
import pytest
import structlog
from structlog.testing import CapturingLogger
from structlog.typing import FilteringBoundLogger

from mesh.naming.limits import DnsLimits
from mesh.naming.service import NameService
from mesh.values import Address
from tests.support.clock import StillClock
from tests.support.naming import EU, US_ADDRESS, addresses, query, tree, with_networks

LOOPBACK = Address("127.0.0.1", 0)
OUT_OF_TREE = "198.51.100.0/24"


class Story:
    def __init__(self) -> None:
        self.output = CapturingLogger()
        self.log: FilteringBoundLogger = structlog.wrap_logger(
            self.output, wrapper_class=structlog.make_filtering_bound_logger(0), processors=[_as_keywords]
        )

    def lines(self) -> list[str]:
        return [call.kwargs["event"] for call in self.output.calls]


def _as_keywords(_: object, __: str, event: structlog.typing.EventDict) -> tuple[tuple[object, ...], dict[str, object]]:
    return (), dict(event)


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.fixture
async def service(story: Story) -> AsyncIterator[NameService]:
    service = NameService(StillClock(), story.log, DnsLimits(answers_per_s=2))
    yield service
    await service.stop()


def level(service: NameService, name: str) -> float:
    return next(
        sample.value
        for each in service.counters.collectors()
        for family in each.collect()
        for sample in family.samples
        if sample.name == name
    )


async def test_at_each_address_the_same_is_answered(service: NameService, story: Story) -> None:
    service.apply(tree())
    await service.start([LOOPBACK, Address("127.0.0.2", 0)])
    assert len({each.port for each in service.addresses}) >= 1
    for each in service.addresses:
        answer = await dns.asyncquery.udp(query(), each.host, timeout=60, port=each.port, source="127.0.1.1")
        assert addresses(answer) == [US_ADDRESS]
    assert story.lines() == ["dns_records_applied", "dns_server_started"]


async def test_without_an_address_it_answers_nobody_and_wants_nothing(service: NameService, story: Story) -> None:
    await service.start([])
    assert service.addresses == ()
    assert story.lines() == []
    assert level(service, "nightside_dns_without_records") == 0


async def test_it_says_that_it_has_nothing_to_answer_from_and_then_what_it_has(service: NameService) -> None:
    await service.start([LOOPBACK])
    assert level(service, "nightside_dns_without_records") == 1
    assert level(service, "nightside_dns_records_version") == 0
    service.apply(tree(7))
    assert level(service, "nightside_dns_without_records") == 0
    assert level(service, "nightside_dns_records_version") == service.version == 7


async def test_one_address_that_is_taken_is_named_and_none_is_listened_on(service: NameService) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        host, port = taken.getsockname()
        with pytest.raises(OSError, match=f"names cannot be answered at 127.0.0.1:{port}: "):
            await service.start([LOOPBACK, Address(host, port)])
    assert service.addresses == ()


def test_what_is_no_tree_is_told_before_and_when_it_is_given(story: Story) -> None:
    service = NameService(StillClock(), story.log)
    service.apply(tree(3))
    wrong = with_networks(tree(4), EU, OUT_OF_TREE)
    for take in (service.check, service.apply):
        with pytest.raises(ValueError, match=f"{OUT_OF_TREE} is said to be in"):
            take(wrong)
    service.check(tree(5))
    assert service.version == 3


def test_what_strangers_bring_about_is_told_once_a_minute(story: Story) -> None:
    clock = StillClock()
    service = NameService(clock, story.log)
    for _ in range(3):
        service._tell_limited(ip_address("192.0.2.9"))
        service._tell_fault(KeyError("ours"))
    assert story.lines() == ["dns_client_rate_limited", "dns_internal_error"]
    assert story.output.calls[0].kwargs["network"] == "192.0.2.0/24"
    clock.now += 60_000_000_000
    service._tell_limited(ip_address("192.0.2.9"))
    assert len(story.lines()) == 3
