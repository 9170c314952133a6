"""What a DNS server of ours answers: from the last record tree, to one question, and nothing but what it is asked.

It is authoritative for one zone and knows no other. It opens no socket and reads no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from gateway.ground.naming.geography import Address, Network, Networks, network_of
from gateway.ground.naming.tree import RecordTree

_NEGATIVE_TTL_S = 5
_NS_TTL_S = 300
_ECS_BITS_MAX = {4: 24, 6: 56}
"""What of a client's network is looked at: narrower than that would tell single people apart (RFC 7871 §11.1)."""
_PAYLOAD_BYTES = 1232
"""What we say we take, and the most that we send in one datagram: it is not fragmented anywhere (DNS flag day 2020)."""
_FAMILIES = {1: 4, 2: 6}
_IN = dns.rdataclass.IN


@dataclass(frozen=True, slots=True)
class ZoneSettings:
    """One name and who answers for it. Raises ValueError for a name that is none."""

    zone: dns.name.Name
    """Whose apex is the one name."""
    servers: tuple[dns.name.Name, ...]
    """At least two, by name; one inside the zone needs an address."""
    server_addresses: dict[dns.name.Name, tuple[str, ...]]
    mail: dns.name.Name
    """Of whoever answers for it, as a name."""
    port: int = 443
    """Where clients find the gateways, for SRV and HTTPS."""


class Zone:
    """Answers questions about one zone."""

    def __init__(self, settings: ZoneSettings, networks: Networks) -> None:
        self._settings = settings
        self._networks = networks
        self._tree: RecordTree | None = None

    @property
    def version(self) -> int:
        """Of the tree that is answered from; 0 before there is one."""
        return 0 if self._tree is None else self._tree.version

    def apply(self, tree: RecordTree) -> None:
        """Answer from this one, unless it is older."""
        if self._tree is None or tree.version > self._tree.version:
            self._tree = tree

    def answer(self, query: dns.message.Message, client: Address) -> dns.message.Message:
        """One answer for each query, whatever is asked."""
        response = dns.message.make_response(query, our_payload=_PAYLOAD_BYTES)
        response.flags &= ~dns.flags.RA
        if query.opcode() != dns.opcode.QUERY:
            response.set_rcode(dns.rcode.NOTIMP)
        elif query.edns > 0:
            response.set_rcode(dns.rcode.BADVERS)
        elif len(query.question) != 1:
            response.set_rcode(dns.rcode.FORMERR)
        else:
            self._answer_question(query, response, client)
        return response

    def _answer_question(self, query: dns.message.Message, response: dns.message.Message, client: Address) -> None:
        question = query.question[0]
        settings = self._settings
        if question.rdclass != _IN or not question.name.is_subdomain(settings.zone) or self._tree is None:
            response.set_rcode(dns.rcode.REFUSED)
            return
        response.flags |= dns.flags.AA
        told = _ecs_of(query)
        network, scope = self._look_from(told, client)
        sets = self._sets(question.name, self._tree, network)
        if sets is None:
            response.set_rcode(dns.rcode.NXDOMAIN)
        found = [each for each in sets or () if question.rdtype in (each.rdtype, dns.rdatatype.ANY)]
        if question.rdtype == dns.rdatatype.ANY:
            found = found[:1]  # RFC 8482: whoever asks for everything wants an amplifier
        response.answer.extend(found)
        if not found:
            response.authority.append(self._soa(ttl_s=_NEGATIVE_TTL_S))
        if told is not None:
            response.use_edns(0, payload=_PAYLOAD_BYTES, options=[_ecs_answer(told, scope)])

    def _look_from(self, told: dns.edns.ECSOption | None, client: Address) -> tuple[Network, int]:
        """The client's network, and for how much of it the answer holds."""
        if told is None or not told.srclen:
            network = network_of(client)
            return network, 0
        version = _FAMILIES[told.family]
        length = min(told.srclen, _ECS_BITS_MAX[version])
        network = ip_network(f"{told.address}/{length}", strict=False)
        return network, min(length, self._networks.whereabouts(network).network.prefixlen)

    def _sets(self, name: dns.name.Name, tree: RecordTree, network: Network) -> Sequence[dns.rrset.RRset] | None:
        """What there is by a name; None where there is no such name."""
        settings = self._settings
        if name in settings.server_addresses:
            return _address_sets(name, settings.server_addresses[name], _NS_TTL_S)
        if name == _service_name(settings):
            addresses = self._addresses(tree, network)
            target = settings.zone.to_text()
            return [_set(name, tree.ttl_s, "SRV", [f"0 0 {settings.port} {target}"])] if addresses else []
        if name == settings.zone:
            return [*self._apex(tree, self._addresses(tree, network)), self._soa(), self._ns()]
        if any(other.is_subdomain(name) for other in (*settings.server_addresses, _service_name(settings))):
            return []  # nothing of its own, but there is something below
        return None

    def _apex(self, tree: RecordTree, addresses: Sequence[str]) -> list[dns.rrset.RRset]:
        zone = self._settings.zone
        sets = _address_sets(zone, addresses, tree.ttl_s)
        if not sets:
            return []
        hints = {"A": "ipv4hint", "AAAA": "ipv6hint"}
        told = [f"{hints[dns.rdatatype.to_text(each.rdtype)]}={','.join(r.to_text() for r in each)}" for each in sets]
        port = [] if self._settings.port == 443 else [f"port={self._settings.port}"]
        return [*sets, _set(zone, tree.ttl_s, "HTTPS", [" ".join(["1 .", "alpn=http/1.1", *port, *told])])]

    def _addresses(self, tree: RecordTree, network: Network) -> tuple[str, ...]:
        region = self._networks.whereabouts(network).region
        for area in tree.areas:
            if area.region == region:
                return area.addresses
        return tree.anywhere

    def _soa(self, ttl_s: int = _NS_TTL_S) -> dns.rrset.RRset:
        settings = self._settings
        serial = self.version % (1 << 32)
        words = f"{settings.servers[0]} {settings.mail} {serial} 60 30 86400 {_NEGATIVE_TTL_S}"
        return _set(settings.zone, ttl_s, "SOA", [words])

    def _ns(self) -> dns.rrset.RRset:
        return _set(self._settings.zone, _NS_TTL_S, "NS", [each.to_text() for each in self._settings.servers])


def datagram_max(query: dns.message.Message) -> int:
    """How long an answer in one datagram may be; a longer one is truncated, and asked for again over TCP."""
    return min(max(query.payload, 512), _PAYLOAD_BYTES) if query.edns >= 0 else 512


def _service_name(settings: ZoneSettings) -> dns.name.Name:
    return dns.name.from_text("_https._tcp", origin=settings.zone)


def _address_sets(name: dns.name.Name, addresses: Sequence[str], ttl_s: int) -> list[dns.rrset.RRset]:
    by_version: dict[int, list[str]] = {4: [], 6: []}
    for address in addresses:
        by_version[ip_address(address).version].append(address)
    kinds = (("A", by_version[4]), ("AAAA", by_version[6]))
    return [_set(name, ttl_s, kind, found) for kind, found in kinds if found]


def _set(name: dns.name.Name, ttl_s: int, kind: str, words: Sequence[str]) -> dns.rrset.RRset:
    return dns.rrset.from_text_list(name, ttl_s, _IN, kind, words)


def _ecs_of(query: dns.message.Message) -> dns.edns.ECSOption | None:
    """Of a family that is neither IPv4 nor IPv6 nothing can be made."""
    found = [each for each in query.options if isinstance(each, dns.edns.ECSOption)]
    return found[0] if found and found[0].family in _FAMILIES else None


def _ecs_answer(told: dns.edns.ECSOption, scope: int) -> dns.edns.ECSOption:
    """The question's own, with how much of the network the answer holds for (RFC 7871 §7.2.1)."""
    return dns.edns.ECSOption(told.address, told.srclen, scope)
