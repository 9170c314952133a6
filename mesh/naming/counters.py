"""Counts DNS queries by type and by answer, for Prometheus. It knows no names and no clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import dns.message
import dns.rcode
import dns.rdatatype
from prometheus_client.registry import Collector

from mesh.series import Level, Tally

TYPES = ("A", "AAAA", "HTTPS", "SRV", "NS", "SOA", "ANY")
OTHER = "other"
ANSWERED, NO_DATA, FAILED = "answered", "nodata", "failed"
_RCODES = {
    dns.rcode.NXDOMAIN: "nxdomain",
    dns.rcode.REFUSED: "refused",
    dns.rcode.NOTIMP: "notimp",
    dns.rcode.FORMERR: "formerr",
    dns.rcode.BADVERS: "badvers",
}
ANSWERS = (ANSWERED, NO_DATA, *_RCODES.values(), FAILED)


class DnsCounters:
    """Counters of one program, over all the addresses at which it answers."""

    def __init__(self) -> None:
        self.queries = Tally(
            "nightside_dns_queries", "Questions to the DNS server here, by how they were answered.", ("type", "answer")
        )
        self.truncated = Tally("nightside_dns_truncated", "DNS answers too long for a datagram: come by TCP.", ())
        self.limited = Tally(
            "nightside_dns_limited",
            "DNS questions of networks that ask too often: dropped, or told to come by TCP.",
            (),
        )
        self.malformed = Tally("nightside_dns_malformed", "Packets at the DNS server that are no question.", ())
        self.turned_away = Tally(
            "nightside_dns_connections_closed", "TCP clients of the DNS server let go to make room for others.", ()
        )
        self._version = Level(
            "nightside_dns_records_version", "Of the record tree that names are answered from; 0: there is none.", ()
        )
        self._waiting = Level(
            "nightside_dns_without_records", "1 while names are asked for here and there is nothing to answer from.", ()
        )

    def follow(self, version: Callable[[], int], is_waiting: Callable[[], bool]) -> None:
        """Ask these functions at each scrape."""
        self._version.follow(version)
        self._waiting.follow(is_waiting)

    def collectors(self) -> Iterator[Collector]:
        yield from (self.queries, self.truncated, self.limited, self.malformed, self.turned_away)
        yield from (self._version, self._waiting)

    def answered(self, query: dns.message.Message, response: dns.message.Message) -> None:
        rcode = response.rcode()
        if rcode == dns.rcode.NOERROR:
            answer = ANSWERED if response.answer else NO_DATA
        else:
            answer = _RCODES.get(rcode, FAILED)
        self.queries.add(_type_of(query), answer)

    def failed(self, query: dns.message.Message) -> None:
        self.queries.add(_type_of(query), FAILED)


def _type_of(query: dns.message.Message) -> str:
    kind = dns.rdatatype.to_text(query.question[0].rdtype) if query.question else OTHER
    return kind if kind in TYPES else OTHER
