"""Answers one DNS query from the last record tree, with no more than was asked for.

It is authoritative for one zone and knows no other. It opens no socket and reads no clock.
"""

from __future__ import annotations

import random
from ipaddress import ip_network

import dns.edns
import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset
from msgspec import Struct

from mesh.naming.client_location import Address, Network, network_of
from mesh.naming.tree import RecordTree
from mesh.naming.zone import Zone, ZoneAnswer

PAYLOAD_BYTES = 1232
"""UDP payload size that the server announces, and the largest datagram that it sends; datagrams of this size are not
fragmented (DNS flag day 2020)."""
_PLAIN_BYTES = 512
_REASON_CHARACTERS_MAX = 200
_FAMILIES = {1: 4, 2: 6}
_BY_CLIENT = frozenset({dns.rdatatype.A, dns.rdatatype.AAAA, dns.rdatatype.HTTPS, dns.rdatatype.SRV, dns.rdatatype.ANY})
_IN = dns.rdataclass.IN


class _Asker(Struct, frozen=True):
    """Client that an answer is for."""

    network: Network
    told: dns.edns.ECSOption | None
    """Client's network as the resolver sent it, which the answer repeats."""
    counts: bool
    """The answer depends on that network; a resolver may ask for it not to be used (RFC 7871 §7.1.2)."""


class DnsAnswers:
    """Answers to DNS queries from the last tree that was applied."""

    def __init__(self, rng: random.Random | None = None) -> None:
        """`rng` draws which of the nearest gateways an answer names first."""
        self._zone: Zone | None = None
        self._rng = rng or random.Random()

    @property
    def tree(self) -> RecordTree | None:
        return None if self._zone is None else self._zone.tree

    def apply(self, tree: RecordTree) -> None:
        """Answer from this tree; the caller knows that it is the newest. Raises ValueError for a tree that cannot be
        answered from, and keeps the one before."""
        self._zone = self.prepared(tree)

    def prepared(self, tree: RecordTree) -> Zone | None:
        """Zone to answer from; None where the tree has none. Raises ValueError for a tree that cannot be answered
        from."""
        if not tree.zone:
            return None
        before = self._zone
        is_same_map = before is not None and _map(before.tree) == _map(tree)
        return Zone(tree, before.networks if before is not None and is_same_map else None)

    def answer(self, query: dns.message.Message, client: Address) -> dns.message.Message:
        """Answer to a query, whatever it asks."""
        response = dns.message.make_response(query, our_payload=PAYLOAD_BYTES, pad=0)  # padding would make it longer
        response.flags &= ~dns.flags.RA
        if query.opcode() != dns.opcode.QUERY:
            response.set_rcode(dns.rcode.NOTIMP)
        elif query.edns > 0:
            response.set_rcode(dns.rcode.BADVERS)
        elif len(query.question) != 1:
            response.set_rcode(dns.rcode.FORMERR)
        elif self._zone is None or not self._is_ours(query, self._zone):
            response.set_rcode(dns.rcode.REFUSED)
        else:
            self._answer_question(self._zone, query, response, client)
        return response

    def _is_ours(self, query: dns.message.Message, zone: Zone) -> bool:
        question = query.question[0]
        is_transfer = question.rdtype in (dns.rdatatype.AXFR, dns.rdatatype.IXFR)  # zone transfers are refused
        return question.rdclass == _IN and question.name.is_subdomain(zone.name) and not is_transfer

    def _answer_question(
        self, zone: Zone, query: dns.message.Message, response: dns.message.Message, client: Address
    ) -> None:
        told = [each for each in query.options if isinstance(each, dns.edns.ECSOption)]
        if len(told) > 1 or any(each.scopelen for each in told):
            response.set_rcode(dns.rcode.FORMERR)  # RFC 7871 §6: a query has scope 0
            return
        asker = _asker(told[0] if told else None, client)
        question = query.question[0]
        response.flags |= dns.flags.AA
        found = zone.find(question.name, asker.network)
        if found is None:
            response.set_rcode(dns.rcode.NXDOMAIN)
            found = ZoneAnswer(())
        _fill(zone, question.rdtype, found, response, self._rng)
        if query.edns == 0:
            _say_more(asker, found if question.rdtype in _BY_CLIENT else ZoneAnswer(()), response)


def datagram_max(query: dns.message.Message) -> int:
    """Most bytes of an answer in one datagram; a longer one is truncated, and asked for again over TCP."""
    return min(max(query.payload, _PLAIN_BYTES), PAYLOAD_BYTES) if query.edns >= 0 else _PLAIN_BYTES


def _fill(
    zone: Zone, kind: dns.rdatatype.RdataType, found: ZoneAnswer, response: dns.message.Message, rng: random.Random
) -> None:
    chosen = [each for each in found.sets if kind in (each.rdtype, dns.rdatatype.ANY)]
    if kind == dns.rdatatype.ANY:
        chosen = chosen[:1]  # RFC 8482: ANY gets one set only, against amplification
    response.answer.extend(_in_order(each, rng, found.further) for each in chosen)
    if not chosen:
        response.authority.append(zone.negative_soa)
    if any(each.rdtype == dns.rdatatype.NS for each in chosen):
        response.additional.extend(zone.glue())


def _in_order(records: dns.rrset.RRset, rng: random.Random, further: frozenset[str]) -> dns.rrset.RRset:
    """The same records in a random order, but for those of further gateways, which come last and keep theirs: most
    clients try the first address that they are given."""
    if len(records) == 1:
        return records
    nearest = [each for each in records if each.to_text() not in further]
    last = [each for each in records if each.to_text() in further]
    rng.shuffle(nearest)
    return dns.rrset.from_rdata_list(records.name, records.ttl, [*nearest, *last])


def _say_more(asker: _Asker, found: ZoneAnswer, response: dns.message.Message) -> None:
    """Add the part of the client's network that the answer is for (RFC 7871 §7.2.1), and the reason for an empty answer
    (RFC 8914)."""
    options: list[dns.edns.Option] = []
    if asker.told is not None:
        scope = found.scope_bits if asker.counts else 0
        options.append(dns.edns.ECSOption(asker.told.address, asker.told.srclen, scope))
    if found.why and not response.answer:
        options.append(dns.edns.EDEOption(dns.edns.EDECode.OTHER, found.why[:_REASON_CHARACTERS_MAX]))
    if options:
        response.use_edns(0, payload=PAYLOAD_BYTES, options=options)


def _asker(told: dns.edns.ECSOption | None, client: Address) -> _Asker:
    if told is None or not told.srclen or told.family not in _FAMILIES:
        return _Asker(network_of(client), told, counts=False)
    return _Asker(ip_network(f"{told.address}/{told.srclen}", strict=False), told, counts=True)


def _map(tree: RecordTree) -> tuple[object, ...]:
    """Parts of a tree that decide which networks are in which region."""
    return tuple((each.region, each.jurisdiction, each.is_closed, each.networks) for each in tree.areas)
