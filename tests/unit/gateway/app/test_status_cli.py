from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest
from rich.console import Console

from gateway.app.status_cli import ExitCode, Status, complaints, exit_code, print_status

WELL: dict[str, Any] = {
    "gateway": "us-1",
    "region": "us-east-1",
    "jurisdiction": "US",
    "not_ready_reason": "",
    "draining": False,
    "policy": {"digest": "abc", "closed_reason": ""},
    "placement_policy": "prefix",
    "overflow": "on",
    "requests": 0,
    "queue": {"length": 0, "by_model": {}},
    "replicas": [],
    "peers": [],
    "lockdown_order": {"active": False, "reason": "", "since": ""},
    "certificates": {},
    "journal_fault": "",
    "audit_fault": "",
}


def replica(name: str, standing: str, detail: str = "") -> dict[str, Any]:
    figures = {"running": 0, "pending": 0, "in_flight": 0, "probe_age_ms": 1.0}
    return {"id": name, "region": "us-east-1", "models": ["m"], "standing": standing, "detail": detail, **figures}


def peer(standing: str) -> dict[str, Any]:
    figures = {"in_flight": 0, "rtt_ms": 1.0, "heartbeat_age_ms": 1.0}
    said = {"standing": standing, "usable": standing == "available", "accepting": True, "detail": "no answer"}
    return {"id": "eu-1", "region": "eu-west-1", **said, **figures}


def seen(**changes: object) -> Status:
    return msgspec.convert({**WELL, **changes}, Status)


CERTIFICATE = {"expires_in_s": 86_400 * 3, "expires_soon": True}


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, []),
        ({"not_ready_reason": "draining"}, ["not ready: draining"]),
        ({"replicas": [replica("a", "available"), replica("b", "pending")]}, []),
        (
            {"replicas": [replica("a", "available"), replica("b", "unhealthy", "refused")]},
            ["replica b is unhealthy: refused"],
        ),
        ({"replicas": [replica("a", "stale")]}, ["no replica can be used", "replica a is stale"]),
        (
            {"lockdown_order": {"active": True, "reason": "drill", "since": "today"}},
            ["lockdown since today: drill"],
        ),
        ({"policy": {"digest": "closed", "closed_reason": "no file"}}, []),
        (
            {"policy": {"digest": "closed", "closed_reason": "no file"}, "peers": [peer("available")]},
            ["nothing is forwarded: no file"],
        ),
        ({"peers": [peer("lost")]}, ["peer eu-1 is lost: no answer"]),
        ({"peers": [peer("busy")]}, []),
        ({"certificates": {"peers": CERTIFICATE}}, ["the certificate for peers expires in 3 days"]),
        (
            {"certificates": {"peers": {**CERTIFICATE, "expires_in_s": -5}}},
            ["the certificate for peers has expired"],
        ),
        ({"certificates": {"peers": {**CERTIFICATE, "expires_soon": False}}}, []),
        ({"journal_fault": "disk full"}, ["the journal has stopped: disk full"]),
        ({"audit_fault": "disk full"}, ["the audit record cannot be written: disk full"]),
    ],
)
def test_what_somebody_should_see_to_is_named(changes: dict[str, Any], wrong: list[str]) -> None:
    assert list(complaints(seen(**changes))) == wrong


def test_exit_codes_tell_well_from_wrong_from_not_ready() -> None:
    codes = [exit_code(seen(), []), exit_code(seen(), ["x"]), exit_code(seen(not_ready_reason="draining"), ["x"])]
    assert codes == [ExitCode.WELL, ExitCode.SOMETHING_WRONG, ExitCode.NOT_READY] == [0, 1, 3]


def test_how_many_are_held_for_a_replica_is_shown_and_an_older_gateway_tells_of_none() -> None:
    status = seen(replicas=[{**replica("a", "available"), "held": 7}, replica("b", "available")])
    console = Console(file=io.StringIO(), width=120)
    print_status(status, [], console)
    assert isinstance(console.file, io.StringIO)
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["a", "us-east-1", "m", "available", "0", "0", "0", "7", "0.0", "s", "ago"] in rows
    assert ["b", "us-east-1", "m", "available", "0", "0", "0", "0", "0.0", "s", "ago"] in rows
