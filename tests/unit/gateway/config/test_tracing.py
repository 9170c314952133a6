from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.config import tracing
from gateway.config.tracing import CollectorTlsConfig, Protocol, TailConfig, TracingConfig, tracing_faults
from mesh.faults import ConfigError
from mesh.values import Address
from tests.support.core import US
from tests.support.gateways import region_document
from tests.support.region_files import read_document

ON = TracingConfig(endpoint="http://127.0.0.1:4317")


def faults(config: TracingConfig) -> list[str]:
    return [str(each) for each in tracing_faults(config)]


def test_nothing_is_asked_where_nothing_is_traced() -> None:
    assert faults(TracingConfig(batch_max=10**9)) == []
    assert not TracingConfig().is_on


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"endpoint": "http://"}, "tracing.endpoint: should name a host"),
        ({"endpoint": "http://user:key@collector:4317"}, "tracing.endpoint: should name a host, and no user"),
        ({"endpoint": "http://collector:4317/v1/traces"}, "should have no path with protocol: grpc"),
        ({"protocol": Protocol.HTTP}, "should have its path with protocol: http, as a rule /v1/traces"),
        ({"tls": CollectorTlsConfig(ca_file=Path("ca"))}, "tracing.tls: the collector is not reached by https"),
        (
            {"endpoint": "https://collector", "tls": CollectorTlsConfig(key=Path("key"))},
            "certificate and key are written together or not at all",
        ),
        ({"headers_file": Path("a"), "headers_env": "B"}, "headers_file and headers_env exclude each other"),
        (
            {"endpoint": "http://collector:4317", "headers_env": "B"},
            "keys would go beyond this machine in the clear",
        ),
        ({"batch_max": 65, "queue_max": 64}, "tracing.batch_max: should be at most"),
        ({"queue_max": 10**7}, "tracing.queue_max: should be at most 1000000"),
    ],
)
def test_what_does_not_go_together_is_told(changes: dict[str, object], fault: str) -> None:
    (told,) = faults(replace(ON, **changes))
    assert fault in told


@pytest.mark.parametrize(
    "fine",
    [
        ON,
        replace(ON, endpoint="http://collector.observability:4317"),
        replace(ON, endpoint="https://collector", headers_env="B", tls=CollectorTlsConfig(Path("ca"))),
        replace(ON, endpoint="http://127.0.0.1:4318/v1/traces", protocol=Protocol.HTTP, headers_env="B"),
    ],
)
def test_what_goes_together_is_not(fine: TracingConfig) -> None:
    assert faults(fine) == []


def test_without_the_extra_a_region_file_that_asks_for_it_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "find_spec", lambda _: None)
    assert faults(ON) == ["tracing.endpoint: tracing is not installed: install nightside[otel]"]
    assert faults(TracingConfig()) == []


def test_a_region_file_says_where_traces_go(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("X-Api-Key=s3cr3t, x-team = mesh\n")
    section = {
        "endpoint": "https://collector.example.net",
        "headers_file": "key",
        "sampled_share": 0.5,
        "tail": {"slow_first_token": "3s", "forwarded": True},
    }
    region = read_document(tmp_path, region_document(tmp_path, "us-1", US, tracing=section))
    config = region.as_config()
    assert config.tracing.tail == TailConfig(slow_first_token_ns=3_000_000_000, forwarded=True)
    assert config.tracing.collector == Address("collector.example.net", 443)
    assert config.collector_headers == {"x-api-key": "s3cr3t", "x-team": "mesh"}
    assert tmp_path / "key" in config.secret_files
    assert "s3cr3t" not in repr(config) + repr(region.as_document())


@pytest.mark.parametrize("written", ["nonsense", "a b=1", "a=", "=1"])
def test_headers_that_are_none_are_not_quoted(tmp_path: Path, written: str) -> None:
    (tmp_path / "key").write_text(written)
    section = {"endpoint": "https://collector.example.net", "headers_file": "key"}
    with pytest.raises(ConfigError) as refused:
        read_document(tmp_path, region_document(tmp_path, "us-1", US, tracing=section))
    assert "tracing.headers_file: is not of the form NAME=VALUE,NAME=VALUE" in str(refused.value)
    assert written not in str(refused.value).replace("NAME=VALUE", "")


def test_over_grpc_no_header_is_of_bytes(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("x-key-bin=1")
    section = {"endpoint": "https://collector.example.net", "headers_file": "key"}
    with pytest.raises(ConfigError, match="ends in -bin"):
        read_document(tmp_path, region_document(tmp_path, "us-1", US, tracing=section))
    section |= {"endpoint": "https://collector.example.net/v1/traces", "protocol": "http"}
    read_document(tmp_path, region_document(tmp_path, "us-1", US, tracing=section))


def test_headers_may_stand_in_the_environment(tmp_path: Path) -> None:
    section = {"endpoint": "https://collector.example.net", "headers_env": "COLLECTOR_KEY"}
    document = region_document(tmp_path, "us-1", US, tracing=section)
    config = read_document(tmp_path, document, {"COLLECTOR_KEY": "authorization=Basic abc="}).as_config()
    assert config.collector_headers == {"authorization": "Basic abc="}
    with pytest.raises(ConfigError, match="COLLECTOR_KEY holds no usable key"):
        read_document(tmp_path, document, {})
