from __future__ import annotations

import io
import json

from gateway.app.unlisted_hosts import UnlistedHosts
from gateway.core.vocabulary import GatewayId, ReplicaId, replica_target
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger

ONE, TWO = replica_target(ReplicaId("p")), replica_target(ReplicaId("q"))


def told(*strays: tuple[object, str]) -> list[tuple[str, str]]:
    stream = io.StringIO()
    hosts = UnlistedHosts(make_logger(LoggingConfig(format=LogFormat.JSON), GatewayId("g"), stream))
    for worker, host in strays:
        hosts.take(worker, host)  # type: ignore[arg-type]
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert all(each["event"] == "side_channel_refused" for each in lines)
    return [(each["replica"], each["host"]) for each in lines]


def test_each_host_of_each_worker_is_told_once_with_the_key_that_would_allow_it() -> None:
    assert told((ONE, "a"), (ONE, "a"), (TWO, "a"), (ONE, "b"), (TWO, "a")) == [("p", "a"), ("q", "a"), ("p", "b")]


def test_a_worker_that_names_ever_new_hosts_fills_no_log() -> None:
    assert len(told(*[(ONE, str(number)) for number in range(100)], (TWO, "a"))) == 9


def test_nor_do_ever_new_workers() -> None:
    assert len(told(*[(replica_target(ReplicaId(str(number))), "a") for number in range(2000)])) == 1024
