from __future__ import annotations

import pytest

from mesh.values import (
    Address,
    format_duration,
    format_size,
    host_address,
    parse_address,
    parse_duration_ns,
    parse_size_bytes,
)


@pytest.mark.parametrize(
    "text,duration_ns", [("1ns", 1), ("100ms", 10**8), ("0.5us", 500), ("2m", 120 * 10**9), ("1.25 h", 4500 * 10**9)]
)
def test_durations(text: str, duration_ns: int) -> None:
    assert parse_duration_ns(text) == duration_ns
    assert parse_duration_ns(format_duration(duration_ns)) == duration_ns


@pytest.mark.parametrize("text", ["", "5", "-1s", "1 fortnight", "s", "0.5ns", "1e3s", None, 5, "٣s"])
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError):
        parse_duration_ns(text)


@pytest.mark.parametrize("text,size_bytes", [("1B", 1), ("64MiB", 64 * 2**20), ("1.5KiB", 1536), ("0B", 0)])
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size_bytes(text) == size_bytes
    assert parse_size_bytes(format_size(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    "text,address",
    [
        ("127.0.0.1:80", Address("127.0.0.1", 80)),
        ("[::1]:0", Address("::1", 0)),
        ("gw.eu.example:7000", Address("gw.eu.example", 7000)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["", "8080", ":8080", "::1:80", "a:b", "a:99999", "a:", 8080, "[]:1"])
def test_what_is_no_address(text: object) -> None:
    with pytest.raises(ValueError, match="is not an address such as"):
        parse_address(text)


def test_loopback_is_judged_by_address_not_by_spelling() -> None:
    assert parse_address("127.9.9.9:1").is_loopback
    assert parse_address("[::1]:1").is_loopback
    assert parse_address("localhost:1").is_loopback
    assert not parse_address("127.0.0.1.example:1").is_loopback
    assert not parse_address("[::]:1").is_loopback


@pytest.mark.parametrize("text", ["192.0.2.1", "10.0.0.7", "127.0.0.1", "2001:db8::1", "::1", "fd00::7"])
def test_an_address_of_one_host(text: str) -> None:
    assert host_address(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0",
        "0.1.2.3",
        "255.255.255.255",
        "240.0.0.1",
        "224.0.0.1",
        "169.254.169.254",
        "::",
        "ff02::1",
        "fe80::1",
        "fe80::1%eth0",
        "2001:db8::1%1",
        "::ffff:0.0.0.0",
        "::ffff:192.0.2.1",
        "192.0.2.1/32",
        "192.0.2.1:80",
        "gw.example.net",
        "",
        "1",
    ],
)
def test_what_no_client_could_connect_to(text: str) -> None:
    with pytest.raises(ValueError, match="address"):
        host_address(text)
