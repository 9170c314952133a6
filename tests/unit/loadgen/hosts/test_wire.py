"""Packets arrive late, in order, or not at all, as their link's shape says; middleboxes know connections."""

from __future__ import annotations

import random
import struct

import pytest

from loadgen.hosts.shapes import LinkShape, both_ways, slowed, with_shape
from loadgen.hosts.wire import KnownFlows, PacketWire, ShapedLink, read_packet

MS = 1_000_000
SITES = {"us": 1, "eu": 2}
SYN, ACK, SYN_ACK = 0x02, 0x10, 0x12


def tcp(source: int, destination: int, flags: int, *, port: int = 40_000, size: int = 40) -> bytes:
    """TCP packet from the site's host, or to it, at port 80 of the smaller-numbered site."""
    ports = (port, 80) if source > destination else (80, port)
    ip = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, size, 0, 0, 64, 6, 0, bytes((10, 77, source, 1)), bytes((10, 77, destination, 1))
    )
    return (ip + struct.pack("!HHLLBBHHH", *ports, 0, 0, 0x50, flags, 0, 0, 0)).ljust(size, b"x")


def wire(**shape: object) -> PacketWire:
    links = {way: LinkShape(**shape) for way in both_ways(["us"], ["eu"])}  # type: ignore[arg-type]
    return PacketWire(SITES, links, random.Random(1))


def test_a_packet_is_read_with_its_sites_and_its_connection() -> None:
    there, back = read_packet(tcp(2, 1, SYN)), read_packet(tcp(1, 2, SYN_ACK))
    assert there is not None
    assert back is not None
    assert (there.source, there.destination, there.is_opening) == (2, 1, True)
    assert (back.flow, back.is_opening) == (there.flow, False)


@pytest.mark.parametrize("data", [b"", b"\x60" + bytes(60), tcp(1, 2, ACK).replace(bytes((10, 77)), bytes((10, 78)))])
def test_what_is_not_between_sites_is_no_packet(data: bytes) -> None:
    assert read_packet(data) is None


def test_a_packet_arrives_after_the_delay_and_not_before() -> None:
    made = wire(delay_ms=10.0)
    made.send(tcp(2, 1, SYN), 0)
    assert made.next_ns() == 10 * MS
    assert list(made.arrived(10 * MS - 1)) == []
    assert [(due_ns, site) for due_ns, site, _ in made.arrived(10 * MS)] == [(10 * MS, "us")]
    assert made.next_ns() is None


def test_jitter_reorders_nothing_and_stays_in_its_bounds() -> None:
    link = ShapedLink(LinkShape(delay_ms=10.0, jitter_ms=5.0), random.Random(1))
    arrivals = [link.arrival_ns(sent * MS, 100) for sent in range(200)]
    late = [arrival - sent * MS for sent, arrival in enumerate(arrivals) if arrival is not None]
    assert sorted(late) != late
    assert all(5 * MS <= each <= 15 * MS for each in late)
    assert arrivals == sorted(arrivals)  # type: ignore[type-var]


def test_jitter_that_reorders_lets_packets_overtake_each_other() -> None:
    link = ShapedLink(LinkShape(delay_ms=10.0, jitter_ms=5.0, reorders=True), random.Random(1))
    arrivals = [link.arrival_ns(sent * MS, 100) for sent in range(200)]
    assert arrivals != sorted(arrivals)  # type: ignore[type-var]
    assert all(5 * MS <= each - sent * MS <= 15 * MS for sent, each in enumerate(arrivals) if each is not None)


def test_a_link_loses_its_share() -> None:
    link = ShapedLink(LinkShape(loss=0.2), random.Random(1))
    lost = sum(link.arrival_ns(0, 100) is None for _ in range(5_000))
    assert 850 < lost < 1_150


def test_bandwidth_makes_packets_wait_and_a_full_queue_loses_them() -> None:
    link = ShapedLink(LinkShape(rate_kbit_s=80.0, queue_ms=100.0), random.Random(1))
    assert [link.arrival_ns(0, 500) for _ in range(5)] == [50 * MS, 100 * MS, 150 * MS, None, None]
    assert link.arrival_ns(150 * MS, 500) == 200 * MS


def test_larger_packets_vanish_and_small_ones_pass() -> None:
    link = ShapedLink(LinkShape(packet_max_bytes=600), random.Random(1))
    assert [link.arrival_ns(7, size) for size in (600, 601)] == [7, None]


def test_a_cut_is_of_one_direction_and_heals() -> None:
    made = wire()
    sound = {way: LinkShape() for way in both_ways(["us"], ["eu"])}
    made.send(tcp(2, 1, SYN), 0)
    made.shape(with_shape([("eu", "us")], is_cut=True)(sound))
    made.send(tcp(2, 1, ACK), 0)
    made.send(tcp(1, 2, SYN_ACK), 0)
    made.shape(sound)
    made.send(tcp(2, 1, ACK), 1)
    assert [site for _, site, _ in made.arrived(1)] == ["us", "eu", "us"]
    assert (made.lost["eu", "us"], made.lost["us", "eu"], made.carried["eu", "us"]) == (1, 0, 2)


def test_a_forgotten_connection_is_dead_both_ways_until_another_begins() -> None:
    made = wire()
    ways = both_ways(["us"], ["eu"])
    made.send(tcp(2, 1, SYN), 0)
    made.send(tcp(1, 2, SYN_ACK), 0)
    assert len(list(made.arrived(0))) == 2
    made.forget_connections(ways)
    made.send(tcp(2, 1, ACK), 0)
    made.send(tcp(1, 2, ACK), 0)
    assert list(made.arrived(0)) == []
    made.send(tcp(2, 1, SYN, port=40_001), 0)
    made.send(tcp(1, 2, SYN_ACK, port=40_001), 0)
    made.send(tcp(2, 1, ACK), 0)
    assert len(list(made.arrived(0))) == 2


def test_a_middlebox_knows_so_many_connections_and_forgets_the_most_silent() -> None:
    flows = KnownFlows(flows_max=2)
    opening = [read_packet(tcp(2, 1, SYN, port=port)) for port in (1, 2, 3)]
    later = [read_packet(tcp(2, 1, ACK, port=port)) for port in (1, 2, 3)]
    first, second, third = later
    assert first is not None
    assert second is not None
    assert third is not None
    for each in opening[:2]:
        assert each is not None
        assert flows.lets_through(each)
    assert flows.lets_through(first)
    assert opening[2] is not None
    assert flows.lets_through(opening[2])
    assert [flows.lets_through(each) for each in (first, second, third)] == [True, False, True]


def test_a_site_without_a_link_is_sent_nothing() -> None:
    made = PacketWire({**SITES, "ap": 3}, {}, random.Random(1))
    made.send(tcp(2, 1, SYN), 0)
    made.send(tcp(9, 1, SYN), 0)
    assert made.next_ns() is None


def test_a_slowed_link_keeps_all_but_its_delay() -> None:
    sound = {("us", "eu"): LinkShape(delay_ms=35.0, jitter_ms=1.0), ("eu", "us"): LinkShape(delay_ms=35.0)}
    slow = slowed([("us", "eu")], 10.0)(sound)
    assert slow == {("us", "eu"): LinkShape(delay_ms=350.0, jitter_ms=1.0), ("eu", "us"): LinkShape(delay_ms=35.0)}


def test_the_time_on_the_way_and_overtaking_packets_are_counted() -> None:
    made = wire(delay_ms=10.0)
    for sent in range(3):
        made.send(tcp(2, 1, SYN, port=40_000 + sent), sent * MS)
    assert (made.delay_ns["eu", "us"], made.overtaking["eu", "us"]) == (30 * MS, 0)
    made.shape({("eu", "us"): LinkShape(delay_ms=1.0, jitter_ms=0.5, reorders=True)})
    made.send(tcp(2, 1, SYN, port=40_003), 3 * MS)
    assert made.overtaking["eu", "us"] == 1
    assert made.carried["eu", "us"] == 4
