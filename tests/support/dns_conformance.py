"""Tests for every DNS provider of a controller, by the answers that a resolver would get. Each provider has a test
class that inherits these, opens the provider and names its server.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

import dns.asyncquery
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import pytest
from msgspec.structs import replace

from controller.dns.provider import (
    DnsError,
    DnsOutdated,
    DnsProvider,
    DnsRefused,
    PublishedRecords,
    changes_between,
    published_as,
)
from mesh.naming.tree import RecordTree
from mesh.values import Address
from tests.support.naming import (
    AP,
    EU,
    EU_ADDRESSES,
    EVERYBODY,
    US,
    US_ADDRESS,
    query,
    tree,
    with_further,
    with_networks,
)

_KINDS = (dns.rdatatype.A, dns.rdatatype.AAAA)
_SUBNETS = {US: "198.51.100.0/24", EU: "203.0.113.0/24", None: "192.0.2.0/24"}


class DnsConformance(ABC):
    """Tests of one provider. All providers of one test serve the same zone."""

    places_everybody = False
    """True if the provider places every client near some region, so that no client's location is unknown."""

    @abstractmethod
    async def open(self) -> DnsProvider:
        """Open one more provider of the zone. No records were published in the zone before the test."""

    @property
    @abstractmethod
    def server(self) -> Address:
        """Address of the zone's own server, once a provider was opened."""

    @pytest.fixture
    async def provider(self) -> AsyncIterator[DnsProvider]:
        provider = await self.open()
        yield provider
        await provider.close()

    async def answer(self, name: str, kind: str, client: str | None = None) -> dns.message.Message:
        """Answer to a resolver that asks for a client in that region; None stands for an unknown location."""
        asked = query(name, kind, subnet=_SUBNETS[client])  # type: ignore[index]
        return await dns.asyncquery.udp(asked, self.server.host, timeout=60, port=self.server.port)

    async def told(self, name: str, client: str | None = None) -> set[str]:
        """Addresses of both kinds."""
        answers = [await self.answer(name, kind, client) for kind in ("A", "AAAA")]
        return {item.to_text() for each in answers for found in each.answer if found.rdtype in _KINDS for item in found}

    async def publish(self, provider: DnsProvider, given: RecordTree, before: RecordTree | None = None) -> None:
        await provider.publish(given, changes_between(before, given))

    def as_read(self, given: RecordTree) -> PublishedRecords:
        """Records that are read once a tree with an open region is published."""
        published = published_as(given)
        return replace(published, anywhere=frozenset()) if self.places_everybody else published

    async def test_where_nothing_was_published_nothing_is_found(self, provider: DnsProvider) -> None:
        assert await provider.read() is None

    async def test_what_was_published_is_answered_and_found(self, provider: DnsProvider) -> None:
        await self.publish(provider, tree())
        told = await self.told("mesh.example.")
        assert told in ({US_ADDRESS}, set(EU_ADDRESSES)) if self.places_everybody else told == set(EVERYBODY)
        assert await self.told("us-east-1.mesh.example.") == {US_ADDRESS}
        assert await self.told("eu-west-1.mesh.example.") == set(EU_ADDRESSES)
        assert await provider.read() == self.as_read(tree())
        answer = await self.answer("mesh.example.", "A")
        assert answer.flags & dns.flags.AA
        assert {each.ttl for each in answer.answer} == {tree().ttl_s}

    async def test_clients_are_told_of_their_own_region_where_it_can_tell_them_apart(
        self, provider: DnsProvider
    ) -> None:
        await self.publish(provider, tree())
        told = [await self.told("mesh.example.", client) for client in (US, EU)]
        assert told == ([{US_ADDRESS}, set(EU_ADDRESSES)] if provider.tells_clients_apart else [set(EVERYBODY)] * 2)

    async def order(self, name: str, client: str | None = None) -> list[tuple[str, set[str]]]:
        """Targets of a name's HTTPS records, first those that clients try first, each with its addresses."""
        answer = await self.answer(name, "HTTPS", client)
        records = sorted((item.priority, item.target) for found in answer.answer for item in found)
        targets = [name if target == dns.name.root else target.to_text() for _, target in records]
        return [(target, await self.told(target, client)) for target in targets]

    async def test_a_regions_name_leads_to_its_nearest_gateways_first_and_to_the_further_one_second(
        self, provider: DnsProvider
    ) -> None:
        further = ("192.0.2.31", "2001:db8::31")
        first, second = with_further(tree(), EU, *further), with_further(tree(2, eu=further), EU, *EU_ADDRESSES)
        nearest, beyond = "nearest.eu-west-1.mesh.example.", "further.eu-west-1.mesh.example."
        await self.publish(provider, first)
        assert await self.order("eu-west-1.mesh.example.") == [(nearest, set(EU_ADDRESSES)), (beyond, set(further))]
        assert await self.order("us-east-1.mesh.example.") == [("us-east-1.mesh.example.", {US_ADDRESS})]
        assert await self.order(f"{AP}.mesh.example.") == []
        assert await self.told("eu-west-1.mesh.example.") == {*EU_ADDRESSES, *further}
        assert await provider.read() == self.as_read(first)
        await self.publish(provider, second, first)
        assert await self.order("eu-west-1.mesh.example.") == [(nearest, set(further)), (beyond, set(EU_ADDRESSES))]
        assert await provider.read() == self.as_read(second) != replace(self.as_read(first), version=2)
        await self.publish(provider, tree(3), second)
        assert await self.order("eu-west-1.mesh.example.") == [("eu-west-1.mesh.example.", set(EU_ADDRESSES))]
        for name in (nearest, beyond):
            assert (await self.answer(name, "A")).rcode() == dns.rcode.NXDOMAIN
        assert await provider.read() == self.as_read(tree(3))

    async def test_without_tls_there_is_no_order(self, provider: DnsProvider) -> None:
        ordered = with_further(tree(), EU, "192.0.2.31")
        plain = replace(ordered, version=2, tls=False, port=80)
        await self.publish(provider, ordered)
        await self.publish(provider, plain, ordered)
        assert await self.order("eu-west-1.mesh.example.") == []
        assert (await self.answer("nearest.eu-west-1.mesh.example.", "A")).rcode() == dns.rcode.NXDOMAIN
        assert await provider.read() == self.as_read(plain)

    async def test_what_changed_is_told_anew_and_the_rest_as_before(self, provider: DnsProvider) -> None:
        first, second = tree(), tree(2, us=("192.0.2.9", "2001:db8::9"))
        await self.publish(provider, first)
        await self.publish(provider, second, first)
        assert await self.told("us-east-1.mesh.example.") == {"192.0.2.9", "2001:db8::9"}
        assert await self.told("eu-west-1.mesh.example.") == set(EU_ADDRESSES)
        assert await provider.read() == self.as_read(second)

    async def test_another_ttl_is_told_with_everything(self, provider: DnsProvider) -> None:
        first, second = tree(), replace(tree(2), ttl_s=11)
        await self.publish(provider, first)
        await self.publish(provider, second, first)
        for name in ("mesh.example.", "us-east-1.mesh.example."):
            assert {each.ttl for each in (await self.answer(name, "A")).answer} == {11}

    async def test_a_region_that_is_gone_has_no_name_any_more(self, provider: DnsProvider) -> None:
        first, second = tree(), replace(tree(2), areas=tree().areas[1:])
        gone = tree().areas[0].region.lower()
        await self.publish(provider, first)
        await self.publish(provider, second, first)
        assert (await self.answer(f"{gone}.mesh.example.", "A")).rcode() == dns.rcode.NXDOMAIN

    async def test_a_region_with_nobody_to_be_told_of_has_its_name_all_the_same(self, provider: DnsProvider) -> None:
        await self.publish(provider, tree())
        answer = await self.answer(f"{AP}.mesh.example.", "A")
        assert (answer.rcode(), answer.answer) == (dns.rcode.NOERROR, [])
        assert await self.told("mesh.example.", EU) != set()

    async def test_the_same_may_be_published_again(self, provider: DnsProvider) -> None:
        await self.publish(provider, tree())
        await self.publish(provider, tree())
        await self.publish(provider, tree(), tree())
        assert await provider.read() == self.as_read(tree())

    async def test_what_somebody_else_published_is_found_and_nothing_older_replaces_it(
        self, provider: DnsProvider
    ) -> None:
        other = await self.open()
        try:
            await self.publish(other, tree(7, us=("192.0.2.9",)))
        finally:
            await other.close()
        with pytest.raises(DnsOutdated, match="7"):
            await self.publish(provider, tree(6))
        assert await provider.read() == self.as_read(tree(7, us=("192.0.2.9",)))
        assert await self.told("us-east-1.mesh.example.") == {"192.0.2.9"}

    async def test_what_cannot_be_said_is_refused_in_words_and_what_was_said_stays(self, provider: DnsProvider) -> None:
        await self.publish(provider, tree())
        for wrong in (replace(tree(2), anywhere=("nowhere",)), with_networks(tree(2), EU, "198.51.100.0/24")):
            with pytest.raises(DnsRefused, match="2"):
                await self.publish(provider, wrong, tree())
        assert await self.told("us-east-1.mesh.example.") == {US_ADDRESS}

    async def test_a_closed_jurisdiction_keeps_its_clients_or_is_refused(self, provider: DnsProvider) -> None:
        closed = tree(closed=frozenset({EU}), eu=())
        if not provider.tells_clients_apart:
            with pytest.raises(DnsRefused, match="closed"):
                await self.publish(provider, closed)
            return
        await self.publish(provider, closed)
        for name in ("mesh.example.", "eu-west-1.mesh.example.", "us-east-1.mesh.example."):
            assert await self.told(name, EU) == set()
            assert (await self.answer(name, "A", EU)).rcode() == dns.rcode.NOERROR
        assert await self.told("mesh.example.", US) == {US_ADDRESS}

    async def test_of_many_addresses_some_are_told_and_no_others(self, provider: DnsProvider) -> None:
        many = tuple(f"192.0.2.{number}" for number in range(30))
        await self.publish(provider, tree(us=many))
        told = await self.told("us-east-1.mesh.example.")
        assert len(told) > 1
        assert told <= set(many)

    async def test_one_that_is_given_up_can_be_published_again(self, provider: DnsProvider) -> None:
        await self.publish(provider, tree())
        second = tree(2, us=("192.0.2.9",))
        async with asyncio.TaskGroup() as tasks:
            publishing = tasks.create_task(self.publish(provider, second, tree()))
            await asyncio.sleep(0)
            publishing.cancel()
        await self.publish(provider, second)
        assert await provider.read() == self.as_read(second)

    async def test_whoever_was_let_go_of_says_so_and_what_was_published_stays(self) -> None:
        provider = await self.open()
        await self.publish(provider, tree())
        await provider.close()
        await provider.close()
        with pytest.raises(DnsError):
            await provider.read()
        with pytest.raises(DnsError):
            await self.publish(provider, tree(2))
        assert await self.told("us-east-1.mesh.example.") == {US_ADDRESS}
