"""Resolves the mesh's one DNS name for a client: asks the mesh's own name servers, sends the client's network with each
query, and caches answers for their TTL. It must never ask the system's resolver, nor know an address by itself."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

import dns.asyncquery
import dns.edns
import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
from aiohttp.abc import AbstractResolver, ResolveResult

from mesh.clock import Clock

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class NameAnswer:
    addresses: tuple[str, ...]
    ttl_s: int
    why: str = ""
    """Response code and reasons of an answer without addresses."""


@dataclass(slots=True, eq=False)
class NameResolver(AbstractResolver):
    """Resolver of one client; usable by aiohttp or by itself."""

    servers: Sequence[tuple[str, int]]
    """Host and port of each name server; the first one that answers counts."""
    network: str
    """Network of the client, such as `127.77.1.0/24`, sent to the name server (EDNS client subnet)."""
    clock: Clock
    patience_s: float = 1.0
    """Time-out of one name server, after which the next one is asked."""
    _kept: dict[str, tuple[NameAnswer, int]] = field(default_factory=dict)
    """Cached answers by name, each with its expiry. Bounded by the names that are asked for: there is one."""

    async def addresses(self, name: str) -> tuple[str, ...]:
        """Addresses in the order in which to try them. Raises OSError if no server answers, or the answer has no
        address; aiohttp tells clients the reason."""
        kept, until_ns = self._kept.get(name, (None, 0))
        if kept is None or self.clock.now_ns() >= until_ns:
            kept = await self.ask(name)
            self._kept[name] = kept, self.clock.now_ns() + kept.ttl_s * _SECOND_NS
        if not kept.addresses:
            raise socket.gaierror(socket.EAI_NONAME, f"{name} leads nowhere for clients in {self.network}: {kept.why}")
        return kept.addresses

    async def ask(self, name: str) -> NameAnswer:
        """Ask the name servers, bypassing the cache. Raises OSError if no server answers."""
        for host, port in self.servers:
            try:
                async with asyncio.timeout(self.patience_s):  # dnspython's own time-out may swallow a cancellation
                    response = await dns.asyncquery.udp(self._query(name), host, port=port)
            except (dns.exception.DNSException, OSError):
                continue
            records = [each for each in response.answer if each.rdtype == dns.rdatatype.A]
            told = tuple(item.to_text() for each in records for item in each)
            return NameAnswer(told, min((each.ttl for each in records), default=0), "" if told else _words_of(response))
        raise socket.gaierror(socket.EAI_AGAIN, f"no name server answers for {name}")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        del family  # the mesh decides the address family
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in await self.addresses(host)
        ]

    async def close(self) -> None:
        """Do nothing: no socket stays open between queries."""

    def _query(self, name: str) -> dns.message.Message:
        address, _, bits = self.network.partition("/")
        return dns.message.make_query(name, "A", use_edns=0, options=[dns.edns.ECSOption(address, int(bits))])


def _words_of(response: dns.message.Message) -> str:
    """Text for an answer without addresses: its response code, and the reasons it gives (RFC 8914)."""
    reasons = [each.text or "" for each in response.options if isinstance(each, dns.edns.EDEOption)]
    cut_short = ["cut short"] if response.flags & dns.flags.TC else []
    return ": ".join([dns.rcode.to_text(response.rcode()), *cut_short, *reasons])
