from __future__ import annotations

import pytest

from gateway.engines.origins import origin_of


def test_an_origin_is_host_and_port_and_the_path_is_a_prefix() -> None:
    origin, prefix = origin_of("http://engine:8000/")
    assert (origin.host, origin.port, origin.tls, prefix) == ("engine", 8000, None, "")
    assert origin_of("http://[::1]/prefix/")[0].host == "::1"
    assert origin_of("http://[::1]/prefix/")[0].port == 80
    assert origin_of("http://[::1]/prefix/")[1] == "/prefix"
    assert origin_of("https://engine")[0].port == 443
    assert origin_of("https://engine")[0].tls is not None


def test_the_same_engine_has_the_same_connections() -> None:
    assert origin_of("http://engine:8000/")[0] is origin_of("http://engine:8000/")[0]
    assert origin_of("http://engine:8000/")[0] != origin_of("http://engine:8001/")[0]


@pytest.mark.parametrize("url", ["ftp://engine", "engine:8000", "http://", "http://engine:99999", "http://[::1"])
def test_any_other_address_is_none(url: str) -> None:
    with pytest.raises(ValueError):
        origin_of(url)
