from __future__ import annotations

import pytest
from multidict import CIMultiDict

from gateway.ground.admin_server import credential_of, host_in, is_this_machine


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("localhost", "localhost"),
        ("LocalHost:9900", "localhost"),
        ("127.0.0.1:9900", "127.0.0.1"),
        ("[::1]:9900", "::1"),
        ("[::1]", "::1"),
        ("evil.example.net:9900", "evil.example.net"),
        ("localhost:9900.evil.example.net", "localhost:9900.evil.example.net"),
        ("evil.example.net:", "evil.example.net:"),
    ],
)
def test_a_host_is_read_without_its_port(header: str, host: str) -> None:
    assert host_in(header) == host


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("", False),
        ("10.0.0.7", False),
        ("0.0.0.0", False),
        ("localhost.evil.example.net", False),
        ("127.0.0.1.evil.example.net", False),
        ("localhost:9900.evil.example.net", False),
    ],
)
def test_only_this_machine_is_this_machine(host: str, is_ours: bool) -> None:
    assert is_this_machine(host) is is_ours


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Authorization": "Bearer abc"}, "abc"),
        ({"authorization": "bearer  abc "}, "abc"),
        ({"X-Api-Key": "abc"}, "abc"),
        ({"authorization": "Bearer abc", "x-api-key": "other"}, "abc"),
        ({"authorization": "Basic abc", "x-api-key": "other"}, "other"),
        ({"authorization": "Basic abc"}, ""),
        ({"authorization": "Bearer"}, ""),
        ({}, ""),
    ],
)
def test_a_credential_comes_as_either_kind_of_client_sends_it(headers: dict[str, str], expected: str) -> None:
    assert credential_of(CIMultiDict(headers)) == expected
