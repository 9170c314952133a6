from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest
from rich.console import Console

from gateway.app.problems import Status, problems, read_status
from gateway.app.status_cli import StatusExitCode, exit_code, print_status

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
    return read_status(msgspec.json.encode({**WELL, **changes}))


REFUSED = {
    "part": "keys",
    "files": ["/etc/keys.yaml"],
    "faults": ["keys.yaml: line 2: a", "b", "c", "d", "e"],
    "since_ms": 5_000,
}
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
        ({"replicas": [replica("a", "stale")]}, ["no replica can be used: a is stale"]),
        (
            {"replicas": [replica("a", "stale"), replica("b", "unhealthy", "refused")]},
            ["no replica can be used: all 2 fail", "replica a is stale", "replica b is unhealthy: refused"],
        ),
        (
            {"lockdown_order": {"active": True, "reason": "drill", "since": "2026-03-01T12:00:00.123456Z"}},
            ["lockdown: drill (since 2026-03-01T12:00:00Z)"],
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
        (
            {"refused_files": [REFUSED]},
            [
                "the changed file of keys (/etc/keys.yaml) is refused, and the one before is in force: "
                "keys.yaml: line 2: a; b; c; and 2 more faults (since 1970-01-01T00:00:05Z)"
            ],
        ),
        ({"journal_fault": "disk full"}, ["the journal has stopped: disk full"]),
        ({"audit_fault": "disk full"}, ["the audit record cannot be written: disk full"]),
    ],
)
def test_what_somebody_should_see_to_is_named(changes: dict[str, Any], wrong: list[str]) -> None:
    assert [each.line() for each in problems(seen(**changes))] == wrong


def test_exit_codes_tell_well_from_wrong_from_not_ready() -> None:
    codes = [exit_code(seen(), []), exit_code(seen(), ["x"]), exit_code(seen(not_ready_reason="draining"), ["x"])]
    assert codes == [StatusExitCode.WELL, StatusExitCode.SOMETHING_WRONG, StatusExitCode.NOT_READY] == [0, 1, 3]


@pytest.mark.parametrize(
    ("changes", "ready"),
    [
        ({}, "ready"),
        ({"not_ready_reason": "draining", "replicas": [replica("a", "lost")]}, "not ready, draining"),
        ({"replicas": [replica("a", "unhealthy"), replica("b", "available")]}, "ready"),
        ({"replicas": [replica("a", "unhealthy")]}, "ready, but no replica can be used: requests wait"),
        (
            {"replicas": [replica("a", "unhealthy")], "peers": [peer("available")]},
            "ready, but no replica can be used: requests are forwarded or wait",
        ),
    ],
)
def test_readiness_without_replicas_is_explained(changes: dict[str, Any], ready: str) -> None:
    assert shown(**changes)[0] == f"gateway us-1 in us-east-1 (US): {ready}"


def test_overflow_is_told_where_there_are_peers() -> None:
    assert [shown(peers=peers)[1].partition("; ")[2] for peers in ([], [peer("available")])] == [
        "placement prefix",
        "placement prefix, overflow on",
    ]


def shown(**changes: object) -> list[str]:
    console = Console(file=io.StringIO(), width=120)
    print_status(seen(**changes), [], console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_how_many_are_held_for_a_replica_is_shown_and_an_older_gateway_tells_of_none() -> None:
    status = seen(replicas=[{**replica("a", "available"), "held": 7}, replica("b", "available")])
    console = Console(file=io.StringIO(), width=120)
    print_status(status, [], console)
    assert isinstance(console.file, io.StringIO)
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["a", "us-east-1", "m", "available", "0", "0", "0", "7", "0.0", "s", "ago"] in rows
    assert ["b", "us-east-1", "m", "available", "0", "0", "0", "0", "0.0", "s", "ago"] in rows


CONTROL: dict[str, Any] = {
    "attached": True,
    "controller": "127.0.0.1:7090",
    "silent_s": 0.2,
    "last_loss": "",
    "term": 2,
    "version": 7,
    "snapshot_age_s": 5.0,
    "not_kept_reason": "",
    "last_rejection": "",
    "left_out": {},
    "away": ["r9"],
}


def told(**control: Any) -> Status:
    return seen(control={**CONTROL, **control})


def test_a_controller_that_is_well_is_shown_and_complained_of_by_nobody() -> None:
    seen = told()
    assert not list(problems(seen))
    console = Console(record=True, width=120, file=io.StringIO())
    print_status(seen, [], console)
    assert "controller 127.0.0.1:7090, snapshot 2.7, taken 5 s ago; left to others: r9" in console.export_text()


@pytest.mark.parametrize(
    ("control", "wrong"),
    [
        ({"attached": False, "last_loss": "it fell silent"}, "no controller is attached: it fell silent"),
        ({"last_rejection": "too old"}, "the controller's last snapshot was rejected: too old"),
        ({"left_out": {"r1": "no key"}}, "replica r1 is granted and left out: no key"),
        ({"not_kept_reason": "disk"}, "the controller's last snapshot is not kept for a restart: disk"),
    ],
)
def test_what_is_wrong_with_it_is_named(control: dict[str, Any], wrong: str) -> None:
    assert [each.text for each in problems(told(**control))] == [wrong]


def test_nothing_is_cut_off_on_a_narrow_terminal() -> None:
    name = "us-east-1-of-a-long-name-engine-7"
    stream = io.StringIO()
    state = seen(replicas=[replica(name, "available"), replica("b", "unhealthy")], peers=[peer("available")])
    print_status(state, [], Console(file=stream, width=60, highlight=False))
    told = stream.getvalue()
    assert "\N{HORIZONTAL ELLIPSIS}" not in told
    columns = [line[: line.index(" ", 2)] if " " in line[2:] else line for line in told.splitlines()]
    assert name in "".join(column.strip() for column in columns)
