"""Packets for the product's DNS server: any packet is answered with one short answer at most."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

import dns.edns
import dns.flags
import dns.message
import dns.opcode

from mesh.naming.answers import PAYLOAD_BYTES, DnsAnswers
from mesh.naming.counters import DnsCounters
from mesh.naming.limits import ConnectionLimit, DatagramLimit, DnsLimits, TimeShare
from mesh.naming.server import Common, DnsServer
from tests.support.clock import StillClock
from tests.support.naming import EU, NS1, ZONE, query, tree

_CLIENT = ip_address("198.51.100.7")
_HEADER_BYTES = 12
_AMPLIFIED_MAX = 12
"""Bytes of answer per byte of question, at most; reached with both kinds of hints, or with the name servers."""

DNS_WORDS = (
    b"\0\0\x29\x04\xd0\0\0\0\0\0\0",
    b"\0\x08\0\x07\0\x01\x18\0\xcb\0\x71",
    b"\0\x08\0\x04\0\x02\0\0",
    b"\0\x0c",
    b"\xc0\x0c",
    b"\xc0\xff",
    b"\x3f",
    b"\xff",
    b"\0",
    b"\x04mesh\x07example\0",
    b"\0\x01\0\x01",
    b"\0\xff\0\x01",
    b"\0\xfc\0\x01",
)


def read_dns_packet(data: bytes) -> None:
    faults: list[Exception] = []
    server = DnsServer(_common(faults))
    answer = server._answer_datagram(data, _CLIENT)
    assert not faults, faults
    if answer is None:
        return
    assert not data[2] & 0x80, "an answer was answered"
    assert answer[:2] == data[:2]
    assert len(answer) <= PAYLOAD_BYTES
    assert len(answer) <= max(_AMPLIFIED_MAX * len(data), _HEADER_BYTES)
    response = dns.message.from_wire(answer)
    assert response.flags & dns.flags.QR
    assert not response.flags & dns.flags.RA


def _common(faults: list[Exception]) -> Common:
    answers, limits = DnsAnswers(), DnsLimits()
    answers.apply(tree(closed=frozenset({EU})))
    return Common(
        answers,
        StillClock(),
        limits,
        DnsCounters(),
        DatagramLimit(limits),
        TimeShare(limits.time_max_ns),
        ConnectionLimit(limits),
        lambda _: None,
        faults.append,
    )


def dns_packets() -> Iterator[bytes]:
    for kind in ("A", "AAAA", "HTTPS", "SRV", "NS", "SOA", "ANY", "AXFR", "TXT"):
        yield query(kind=kind).to_wire()
    for name in (NS1, "_https._tcp.mesh.example.", "eu-west-1.mesh.example.", "no.mesh.example.", "example.org."):
        yield query(name).to_wire()
    for subnet in ("203.0.113.0/24", "203.0.112.0/23", "0.0.0.0/0", "2001:db8:e::/56", "198.51.100.7/32"):
        yield query(subnet=subnet).to_wire()
    yield dns.message.make_query(ZONE, "A", use_edns=-1).to_wire()
    yield dns.message.make_query(ZONE, "A", use_edns=1).to_wire()
    yield dns.message.make_query("version.bind.", "TXT", "CH").to_wire()
    padded = query()
    padded.use_edns(0, options=[dns.edns.GenericOption(dns.edns.OptionType.PADDING, bytes(9))])
    yield padded.to_wire()
    for opcode in (dns.opcode.NOTIFY, dns.opcode.UPDATE, dns.opcode.STATUS):
        other = query()
        other.set_opcode(opcode)
        yield other.to_wire()
    two = query()
    two.question = [*two.question, *query(NS1).question]
    yield two.to_wire()
    answered = dns.message.make_response(query())
    yield answered.to_wire()
    yield from (b"", bytes(12), b"\xff" * 40, query().to_wire()[:-3], query().to_wire() + b"x")
