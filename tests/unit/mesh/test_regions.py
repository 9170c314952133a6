from __future__ import annotations

from ipaddress import ip_network

import pytest

from gateway.core.kernel.regions import KnownRegion, RegionTable
from gateway.core.vocabulary import Place, RegionName
from mesh.regions import announcement_fault, found_fault, host_in, network_fault, range_fault
from tests.support.core import AP, EU, US

LENT = RegionTable(
    {
        EU.region: KnownRegion(
            EU.jurisdiction, ("10.2.0.0/16", "2001:db8:2::/48", "one.example", ".eu.example"), (AP.region,)
        ),
        US.region: KnownRegion(US.jurisdiction),
        AP.region: KnownRegion(AP.jurisdiction, ("192.0.2.1",)),
    }
)


@pytest.mark.parametrize(
    "url",
    [
        "http://10.2.255.255:8000",
        "https://10.2.0.1/some/path",
        "http://[2001:db8:2::7]:8000",
        "http://one.example",
        "http://ONE.example.:8000",
        "http://a.b.eu.example",
    ],
)
def test_an_address_within_a_range_is_believed(url: str) -> None:
    assert announcement_fault(LENT, EU, EU, url) == ""
    assert announcement_fault(LENT, AP, EU, url) == "", "operators let its gateways announce there"
    assert "may announce no replica" in announcement_fault(LENT, US, EU, url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "10.2.0.1:8000",
        "http://",
        "http://10.3.0.1",
        "http://10.2.0.1.evil.example",
        "http://10.2.0.1@evil.example",
        "http://evil.example#10.2.0.1",
        "http://evil.example?10.2.0.1",
        "http://evil.example\\@10.2.0.1",
        "http://10.2.0.1\\@evil.example",
        "http://10.2.0.1%2eevil.example",
        "http://10.2.0.1 .evil.example",
        "http://10.2.0.1\t@evil.example",
        "http://10.2.0.1\n",
        "http://167903233",
        "http://0x0a020001",
        "http://10.2.1",
        "http://012.2.0.1",
        "http://[::ffff:10.2.0.1]",
        "http://[::10.2.0.1]",
        "http://[fe80::1%25eth0]",
        "http://xone.example",
        "http://one.example.evil",
        "http://eu.example",
        "http://.eu.example",
        "http://evil-eu.example",
        "http://еu.example",
        "http://a..eu.example",
        "ftp://10.2.0.1",
        "file://10.2.0.1/etc/passwd",
        "http://10.2.0.1:99999999",
        f"http://{'a' * 64}.eu.example",
        f"http://{'a.' * 130}eu.example",
    ],
)
def test_an_address_that_is_in_no_range_or_could_be_read_in_two_ways_is_not(url: str) -> None:
    assert announcement_fault(LENT, EU, EU, url).endswith("is in none of the ranges of region eu-west-1")


def test_a_region_without_ranges_lends_nothing_and_refuses_no_address() -> None:
    assert announcement_fault(LENT, US, US, "http://anything.example") == ""
    assert not LENT.lends(US.region)
    assert not LENT.lends(RegionName("mars"))
    assert LENT.lends(EU.region)


def test_a_place_is_looked_at_before_an_address() -> None:
    unknown = Place(RegionName("mars"), EU.jurisdiction)
    moved = Place(EU.region, US.jurisdiction)
    for home, place in ((unknown, EU), (EU, unknown)):
        assert "mars is not in" in announcement_fault(LENT, home, place, "http://10.2.0.1")
    for home, place in ((moved, EU), (EU, moved)):
        assert "has region eu-west-1 in EU, not in US" in announcement_fault(LENT, home, place, "http://10.2.0.1")


@pytest.mark.parametrize("text", ["10.0.0.0/8", "10.1.2.3", "::1", "2001:db8::/32", "a", "a.example", ".a.example"])
def test_a_range_that_can_be_used(text: str) -> None:
    assert range_fault(text) == ""


@pytest.mark.parametrize(
    "text", ["", ".", "*", "*.a", "A.example", "10.0.0.1/8", "10.0", "http://a", "a b", "a/b", "..a"]
)
def test_a_range_that_cannot(text: str) -> None:
    assert range_fault(text) != ""


def test_what_is_no_host_has_none() -> None:
    assert host_in("http://a.example:80/x") == "a.example"
    assert host_in("http://user@a.example") == host_in("gopher://a.example") == ""


@pytest.mark.parametrize(
    ("own", "others", "url", "fault"),
    [
        (("10.1.0.0/16",), ("10.2.0.0/16",), "http://10.1.2.3:8000", ""),
        (("10.1.0.0/16",), ("10.1.2.0/24",), "http://10.1.2.3:8000", ""),
        (("10.1.0.0/16",), (), "http://10.3.2.3:8000", "10.3.2.3 is in none of the ranges of region us-east-1"),
        ((".us.example.net",), ("10.2.0.0/16",), "http://10.3.2.3:8000", ""),
        ((".us.example.net",), ("10.2.0.0/16",), "http://10.2.2.3:8000", "10.2.2.3 is in a range of another region"),
        ((), ("fd00::/8",), "http://[fd00::1]:8000", "fd00::1 is in a range of another region"),
        (("10.1.0.0/16",), (), "http://10.1.2.3@evil:8000", "its address is in none of the ranges of region us-east-1"),
    ],
)
def test_addresses_that_a_directory_gives_are_kept_to_the_table(
    own: tuple[str, ...], others: tuple[str, ...], url: str, fault: str
) -> None:
    regions = RegionTable(
        {US.region: KnownRegion(US.jurisdiction, own), EU.region: KnownRegion(EU.jurisdiction, others)}
    )
    assert found_fault(regions, US, url) == fault


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("http://10.1.2.3:8000", ""),
        ("https://[fd00::1]:8000/x", ""),
        ("http://10.2.2.3:8000", "10.2.2.3 is in none of the networks of the region file"),
        ("http://[fd01::1]:8000", "fd01::1 is in none of the networks of the region file"),
        ("http://10.1.2.3@evil:8000", "its address is in none of the networks of the region file"),
    ],
)
def test_addresses_that_a_directory_gives_are_kept_to_the_networks_of_the_region_file(url: str, fault: str) -> None:
    assert network_fault([ip_network("10.1.0.0/16"), ip_network("fd00::/64")], url) == fault
