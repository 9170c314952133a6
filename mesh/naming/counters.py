"""Counts DNS queries by type and by answer, for Prometheus. It knows no names and no clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import dns.message
import dns.rcode
import dns.rdatatype
from prometheus_client.registry import Collector

from mesh.series import CounterSeries, Level

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
        self.queries = CounterSeries(
            "nightside_dns_queries",
            "Queries to the DNS server of this program, by type and answer.",
            ("type", "answer"),
        )
        self.truncated = CounterSeries(
            "nightside_dns_truncated", "DNS answers truncated because they exceed a UDP datagram.", ()
        )
        self.limited = CounterSeries(
            "nightside_dns_limited",
            "DNS queries dropped or truncated by the rate limit of the client's network.",
            (),
        )
        self.malformed = CounterSeries(
            "nightside_dns_malformed", "Packets to the DNS server that are not valid queries.", ()
        )
        self.turned_away = CounterSeries(
            "nightside_dns_connections_closed",
            "TCP connections to the DNS server closed to make room for new ones.",
            (),
        )
        self._version = Level(
            "nightside_dns_records_version", "Version of the record tree that the DNS server answers from; 0: none.", ()
        )
        self._waiting = Level(
            "nightside_dns_without_records", "1 while the DNS server receives queries and has no record tree.", ()
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
