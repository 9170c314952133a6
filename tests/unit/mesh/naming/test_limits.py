from __future__ import annotations

from ipaddress import ip_address

from mesh.config import DnsConfig
from mesh.naming.limits import ConnectionLimit, DatagramLimit, DnsLimits, TimeShare

SECOND_NS = 1_000_000_000
ONE, BESIDE, OTHER = (ip_address(each) for each in ("192.0.2.1", "192.0.2.200", "198.51.100.1"))


def test_they_are_those_of_the_file() -> None:
    limits = DnsLimits.from_config(DnsConfig(answers_per_s=1, connections_max=2, time_max_ns=3))
    assert (limits.answers_per_s, limits.connections_max, limits.time_max_ns) == (1, 2, 3)
    assert DnsLimits.from_config(DnsConfig()) == DnsLimits()


class TestAllowance:
    def test_what_is_left_grows_again_with_time(self) -> None:
        allowance = DatagramLimit(DnsLimits(answers_per_s=2))
        assert [allowance.take(ONE, 0) for _ in range(3)] == [True, True, False]
        assert [allowance.take(ONE, SECOND_NS) for _ in range(3)] == [True, True, False]

    def test_a_network_is_one_and_another_another(self) -> None:
        allowance = DatagramLimit(DnsLimits(answers_per_s=1))
        assert [allowance.take(each, 0) for each in (ONE, BESIDE, OTHER)] == [True, False, True]
        six = [ip_address(each) for each in ("2001:db8::1", "2001:db8:0:ff::1", "2001:db8:0:100::1")]
        assert [allowance.take(each, 0) for each in six] == [True, False, True]

    def test_so_many_networks_are_remembered_and_no_more(self) -> None:
        allowance = DatagramLimit(DnsLimits(networks_max=10))
        for number in range(100):
            allowance.take(ip_address(f"10.0.{number}.1"), 0)
        assert len(allowance) == 10


class TestTimeShare:
    def test_it_is_used_up_within_a_second_and_there_again_in_the_next(self) -> None:
        time = TimeShare(100)
        time.spend(5 * SECOND_NS, 60)
        assert time.rest_ns(5 * SECOND_NS) == 0
        time.spend(5 * SECOND_NS + 400, 60)
        assert time.rest_ns(5 * SECOND_NS + 400) == SECOND_NS - 400
        assert time.rest_ns(7 * SECOND_NS) == 0
        time.spend(7 * SECOND_NS, 60)
        assert time.rest_ns(7 * SECOND_NS) == 0


class TestPlaces:
    def test_the_one_that_asked_longest_ago_has_to_go(self) -> None:
        places = ConnectionLimit(DnsLimits(connections_max=2))
        assert [places.take(each, ONE) for each in "ab"] == [None, None]
        places.asked("a")
        assert places.take("c", OTHER) == "b"
        places.leave("b")
        places.leave("b")
        places.asked("b")
        assert len(places) == 2

    def test_a_network_gets_its_places_back(self) -> None:
        places = ConnectionLimit(DnsLimits(network_connections_max=1))
        assert places.take("a", ONE) is None
        assert places.take("b", BESIDE) == "a"
        assert places.take("c", OTHER) is None
        for each in "ab":
            places.leave(each)
        assert places.take("d", BESIDE) is None

    def test_whoever_of_a_network_asked_last_stays(self) -> None:
        places = ConnectionLimit(DnsLimits(network_connections_max=2, connections_max=3))
        assert [places.take(each, ONE) for each in "ab"] == [None, None]
        places.asked("a")
        assert places.take("c", BESIDE) == "b"
