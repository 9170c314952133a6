from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from gateway.config.sections import GatewayConfig
from gateway.config.tracing import TailConfig, TracingConfig
from gateway.records.trace_metrics import TraceMetrics
from gateway.request.trace_context import RequestTrace
from gateway.tracing.tracing import Tracing
from mesh.clock import Clock
from mesh.config import LogFormat, LoggingConfig
from mesh.faults import ConfigError
from mesh.logs import make_logger
from tests.fakes.collector import FakeCollector
from tests.support.core import MS, US, desk
from tests.support.followed import Followed
from tests.support.gateways import region_config, until, write_policy
from tests.support.traced import server_of, trace

ROOT = Path(__file__).parents[4]
QUICK = TracingConfig(
    sampled_share=0.0, tail=TailConfig(kept_per_s=10**6), interval_ns=MS, batch_max=1, shutdown_wait_ns=60_000 * MS
)


class Stand(Followed):
    """A core whose finished requests are traced."""

    def __init__(self, folder: Path, config: TracingConfig) -> None:
        super().__init__(desk())
        self.registry = CollectorRegistry()
        self.stream = io.StringIO()
        self.clock = Clock()
        self.tracing = Tracing(
            _config(folder, config),
            self.desk.core,
            TraceMetrics(self.registry),
            serves=self.desk.core.replicas.groups.serves,
            server_of=server_of,
            clock=self.clock,
            log=make_logger(LoggingConfig(format=LogFormat.JSON), "us-1", self.stream),
        )
        self.finished.hand_to(self.tracing.on_finished)
        self.watch()
        self.tracing.start()

    def served(self, request_id: str, *, is_sampled: bool = True) -> RequestTrace:
        made = trace()
        made.own = replace(made.own, is_sampled=is_sampled)
        self.ask(request_id)
        self.end(request_id)
        self.finish(request_id, trace=made)
        return made

    async def tried(self, request_id: str) -> None:
        """Serve a request, and wait until its trace was exported or dropped."""
        before = self._tried
        self.served(request_id)
        await until(lambda: self._tried > before)

    @property
    def _tried(self) -> float:
        return self.counted("traces_exported_total") + self.counted("traces_dropped_total", reason="refused")

    def counted(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"nightside_{name}", labels) or 0.0

    def lines(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.stream.getvalue().splitlines()]


def _config(folder: Path, tracing: TracingConfig) -> GatewayConfig:
    return replace(region_config("us-1", US, [], policy_file=write_policy(folder, US)), tracing=tracing)


async def test_what_was_chosen_is_sent_and_the_rest_is_counted(tmp_path: Path) -> None:
    async with FakeCollector().serving() as collector:
        stand = Stand(tmp_path, replace(QUICK, endpoint=collector.grpc_url))
        stand.served("r-1")
        stand.served("r-2", is_sampled=False)
        await stand.tracing.close()
        asked = {each.attributes.get("nightside.request.id") for each in collector.spans} - {None}
    assert asked == {"r-1"}
    assert stand.counted("traced_requests_total", kept="head") == 1
    assert stand.counted("traced_requests_total", kept="no") == 1
    assert stand.counted("traces_exported_total") == 1
    assert stand.lines() == []


def test_nothing_of_it_is_loaded_before_it_is_asked_for() -> None:
    asked = "import sys, gateway.tracing.tracing; print([name for name in sys.modules if 'opentelemetry' in name])"
    loaded = subprocess.run([sys.executable, "-c", asked], capture_output=True, check=True, cwd=ROOT)
    assert loaded.stdout == b"[]\n"


async def test_without_the_extra_whoever_asks_for_it_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gateway.tracing.exporter", None)
    with pytest.raises(ConfigError, match=r"tracing: .*: install nightside\[otel\]"):
        Stand(tmp_path, replace(QUICK, endpoint="http://127.0.0.1:4317"))


async def test_one_that_is_not_traced_costs_nothing(tmp_path: Path) -> None:
    stand = Stand(tmp_path, replace(QUICK, endpoint="http://127.0.0.1:4317"))
    stand.serve("r-1")
    assert stand.counted("traced_requests_total", kept="no") == 0
    await stand.tracing.close()


async def test_a_collector_that_goes_is_told_of_once_and_once_when_it_is_back(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    stand = Stand(tmp_path, replace(QUICK, endpoint=f"http://127.0.0.1:{unused_tcp_port}", timeout_ns=500 * MS))
    for number in range(3):
        await stand.tried(f"r-{number}")
    assert stand.lines() == ["trace_export_failed"]
    assert "onnect" in stand.stream.getvalue(), "the library's own words"
    described = stand.tracing.describe()
    assert (described["refused"], described["waiting"], bool(described["problem"])) == (3, 0, True)
    async with FakeCollector().serving(grpc_port=unused_tcp_port):
        number = 3
        while not stand.counted("traces_exported_total"):
            await stand.tried(f"r-{number}")
            number += 1
        assert stand.lines() == ["trace_export_failed", "trace_export_recovered"]
        assert stand.tracing.describe()["problem"] == ""
        await stand.tracing.close()


async def test_a_stuck_collector_holds_up_the_end_no_longer_than_it_may(tmp_path: Path) -> None:
    async with FakeCollector().serving() as collector:
        collector.may_answer.clear()
        stand = Stand(tmp_path, replace(QUICK, endpoint=collector.grpc_url, shutdown_wait_ns=10 * MS))
        stand.served("r-1")
        await collector.is_asked.wait()
        stand.served("r-2")
        await stand.tracing.close()
    assert stand.lines() == ["traces_lost_at_exit"]
    assert json.loads(stand.stream.getvalue())["requests"] == 2
