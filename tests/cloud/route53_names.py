"""Hosted zone as its name servers answer from it: geolocation, latency, multivalue answers, and aliases of all of them,
as AWS describes them.

Locations of clients are a table here; AWS measures them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from ipaddress import ip_address, ip_network
from typing import Any

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset

from gateway.core.value import value
from mesh.values import Address

Sets = list[dict[str, Any]]
_ANSWERS_MAX = 8
_ALIASES_MAX = 16


@value
class Whereabouts:
    country: str
    continent: str
    nearest: tuple[str, ...]
    """AWS regions, the one of least latency first."""


_EVERYWHERE = ("us-east-1", "eu-west-1", "eu-central-1", "ap-northeast-1")
UNKNOWN = Whereabouts("", "", _EVERYWHERE)
CLIENTS: Mapping[str, Whereabouts] = {
    "198.51.100.0/24": Whereabouts("US", "NA", _EVERYWHERE),
    "203.0.113.0/24": Whereabouts("IE", "EU", ("eu-west-1", "eu-central-1", "us-east-1", "ap-northeast-1")),
}


def answer_for(
    sets: Sets, name: str, kind: str, client: Whereabouts, unhealthy: Collection[str] = ()
) -> tuple[dns.rcode.Rcode, list[tuple[str, int]]]:
    """Response code, and the values of the answer with their TTLs."""
    known = {each["Name"].lower() for each in sets}
    if not any(each == name or each.endswith(f".{name}") for each in known):
        return dns.rcode.NXDOMAIN, []
    for _ in range(_ALIASES_MAX):
        group = [each for each in sets if each["Name"].lower() == name and each["Type"] == kind]
        chosen = _chosen(group, client, unhealthy)
        if not chosen or "AliasTarget" not in chosen[0]:
            found = [(text, int(each["TTL"])) for each in chosen for text in each["ResourceRecords"]]
            return dns.rcode.NOERROR, found
        name = chosen[0]["AliasTarget"]["DNSName"].lower()
    raise AssertionError(f"{name} leads in a circle")


def _chosen(group: Sets, client: Whereabouts, unhealthy: Collection[str]) -> Sets:
    if not group:
        return []
    if "GeoLocation" in group[0]:
        for key, place in (("CountryCode", client.country), ("ContinentCode", client.continent), ("CountryCode", "*")):
            for each in group:
                if place and each["GeoLocation"].get(key) == place:
                    return [each]
        return []
    if "Region" in group[0]:
        return [min(group, key=lambda each: client.nearest.index(each["Region"]))]
    if "MultiValueAnswer" in group[0]:
        well = [each for each in group if each.get("HealthCheckId") not in unhealthy]
        return (well or group)[:_ANSWERS_MAX]
    return group


@asynccontextmanager
async def answering(read: Callable[[], Awaitable[Sets]], unhealthy: Collection[str] = ()) -> AsyncIterator[Address]:
    """DNS server over UDP on loopback; `read` returns the zone's current records and is called for each question."""
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as tasks:
        running: list[asyncio.Task[None]] = []

        class Datagrams(asyncio.DatagramProtocol):
            def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
                self.transport = transport

            def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
                running.append(tasks.create_task(self.answer(data, addr)))

            async def answer(self, data: bytes, addr: tuple[str, int]) -> None:
                response = _response(dns.message.from_wire(data), await read(), unhealthy)
                self.transport.sendto(response.to_wire(), addr)

        transport, _ = await loop.create_datagram_endpoint(Datagrams, ("127.0.0.1", 0))
        try:
            yield Address("127.0.0.1", transport.get_extra_info("sockname")[1])
        finally:
            transport.close()
            for task in running:
                task.cancel()


def _response(query: dns.message.Message, sets: Sets, unhealthy: Collection[str]) -> dns.message.Message:
    response = dns.message.make_response(query)
    response.flags |= dns.flags.AA
    (question,) = query.question
    kind = dns.rdatatype.to_text(question.rdtype)
    rcode, found = answer_for(sets, question.name.to_text().lower(), kind, _client_of(query), unhealthy)
    response.set_rcode(rcode)
    if found:
        ttl_s = found[0][1]
        response.answer.append(dns.rrset.from_text_list(question.name, ttl_s, "IN", kind, [text for text, _ in found]))
    return response


def _client_of(query: dns.message.Message) -> Whereabouts:
    for option in query.options:
        if isinstance(option, dns.edns.ECSOption):
            for network, where in CLIENTS.items():
                if ip_address(option.address) in ip_network(network):
                    return where
    return UNKNOWN
