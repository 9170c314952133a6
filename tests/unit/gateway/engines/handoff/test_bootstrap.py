"""Pages as the engines' sources write them: `mooncake_connector.py` of vLLM 0.33, `/server_info` of SGLang 0.5.23."""

from __future__ import annotations

import json

import pytest

from gateway.core.vocabulary import Connector
from gateway.engines.exposition import BadProbe
from gateway.engines.handoff import bootstrap
from gateway.engines.handoff.bootstrap import Bootstrap, bootstrap_of, read_query, read_server_info

QUERY = (
    b'{"0":{"engine_id":"e-0","worker_addr":{"0":{"0":"tcp://10.0.0.5:1"}}},"1":{"engine_id":"e-1","worker_addr":{}}}'
)
AT = bootstrap_of("https://p.example:8000/v1")


def test_it_stands_where_the_engine_does() -> None:
    assert Bootstrap("p.example", 8998) == AT
    assert bootstrap_of("http://10.0.0.5:8000", 9000).address == "http://10.0.0.5:9000"
    assert bootstrap_of("http://[fd00::5]:8000").address == "http://[fd00::5]:8998"


def test_only_concurrent_connectors_have_one() -> None:
    assert set(bootstrap.QUERY_PATHS) == {each for each in Connector if not each.is_sequential}


def test_mooncake_names_the_engine_of_each_rank() -> None:
    assert read_query(QUERY, 2) == ["e-0", "e-1"]


@pytest.mark.parametrize(
    "page,why",
    [
        (b"", "cannot be read"),
        (b"{}", "0 ranks, and 1"),
        (QUERY, "2 ranks, and 1"),
        (b'{"1":{"engine_id":"e"}}', "1 ranks, and 1"),
        (b'{"0":{}}', "cannot be read"),
        (b'{"0":{"engine_id":7}}', "cannot be read"),
        (b'{"0":{"engine_id":""}}', "1 to 256"),
        (b'{"0":{"engine_id":"a\\nb"}}', "1 to 256"),
        (b'{"0":{"engine_id":"%b"}}' % (b"e" * 257), "1 to 256"),
        (b"[" * 100_000, "cannot be read"),
        (b" " * (1 << 20) + QUERY, "too large"),
    ],
)
def test_what_mooncake_cannot_mean_is_told(page: bytes, why: str) -> None:
    with pytest.raises(BadProbe, match=why):
        read_query(page)


def info(**changes: object) -> bytes:
    told = {"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": 9001, "dp_size": 4, "version": "0.5.23"}
    return json.dumps(told | changes).encode()


def test_sglang_tells_its_port_and_ranks() -> None:
    assert read_server_info(info(), AT) == Bootstrap("p.example", 9001, ranks=4)
    assert read_server_info(info(disaggregation_bootstrap_port=None), AT).port is None


@pytest.mark.parametrize(
    "page,why",
    [
        (b"", "cannot be read"),
        (info(disaggregation_mode="decode"), "no prefill worker: .* decode"),
        (b"{}", "no prefill worker"),
        (info(disaggregation_bootstrap_port=0), "no port"),
        (info(disaggregation_bootstrap_port=70000), "no port"),
        (info(disaggregation_bootstrap_port="x"), "cannot be read"),
        (info(dp_size=0), "no data-parallel rank"),
        (b" " * (1 << 20) + info(), "too large"),
    ],
)
def test_what_sglang_cannot_mean_is_told(page: bytes, why: str) -> None:
    with pytest.raises(BadProbe, match=why):
        read_server_info(page, AT)
