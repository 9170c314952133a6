"""Kills of a soak, the errors that one explains, and what is judged of processes that are killed and of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from loadgen.studies.long.flatness import ProcessSample
from loadgen.studies.outside.counts import RunCounts
from loadgen.studies.outside.soak import (
    ErrorCause,
    KeptSoak,
    SoakError,
    SoakKill,
    cause_of,
    errors_in,
    held_in,
    plan_kills,
    soak_judgement,
)

SECOND = 1_000_000_000
KILL = SoakKill("gw-ap", 100 * SECOND, 101 * SECOND, 120 * SECOND, 125 * SECOND, address=2)
BROKEN = SoakError(98 * SECOND, 100 * SECOND, 2, "ClientPayloadError: Response payload is not completed")
REFUSED = SoakError(110 * SECOND, 110 * SECOND, 2, "ClientConnectorError: ConnectionRefusedError(111)")
SOAK = KeptSoak(
    3600.0, "1.0", {}, "aiperf profile", 0, 50 * SECOND, 3700.0, [KILL], [], [1.0], {}, ["gw-us", "gw-eu", "gw-ap"]
)


def samples(name: str, pids: Sequence[int], growth: float = 0.0) -> list[ProcessSample]:
    """Samples of one process in each minute of an hour, whose pid is the next one after an equal part of it."""
    part = 61 / len(pids)
    return [
        ProcessSample(60.0 * at, name, pids[int(at / part)], round(100_000 + growth * at), 40, 9) for at in range(61)
    ]


def met(soak: KeptSoak, *errors: SoakError) -> dict[str, bool]:
    counts = RunCounts(failed=len(errors))
    return {text: is_met for is_met, text in soak_judgement(soak, errors, counts)}


def test_engines_and_now_and_then_the_gateway_are_killed_until_shortly_before_the_end() -> None:
    planned = plan_kills(3600.0, "gw-ap", ["engine 0", "engine 1"])
    assert [each.name for each in planned[:5]] == ["engine 0", "engine 1", "gw-ap", "engine 0", "engine 1"]
    assert [each.at_s for each in planned if each.name == "gw-ap"] == [360.0, 1080.0, 1800.0, 2520.0, 3240.0]
    assert (len(planned), planned[0].at_s, planned[-1].at_s) == (29, 120.0, 3480.0)
    assert [each.at_s for each in plan_kills(50.0, "gw-ap", ["engine 0"])] == [10.0, 20.0, 30.0, 40.0]
    assert plan_kills(10.0, "gw-ap", ["engine 0"]) == []


@pytest.mark.parametrize(("error", "cause"), [
    (BROKEN, ErrorCause.IN_FLIGHT),
    (replace(BROKEN, ended_ns=99 * SECOND + 9 * SECOND // 10), ErrorCause.IN_FLIGHT),
    (replace(BROKEN, ended_ns=99 * SECOND + 7 * SECOND // 10), ErrorCause.UNEXPLAINED),
    (replace(BROKEN, ended_ns=119 * SECOND), ErrorCause.IN_FLIGHT),
    (replace(BROKEN, ended_ns=120 * SECOND), ErrorCause.UNEXPLAINED),
    *((replace(BROKEN, text=f"{kind}: gone"), ErrorCause.IN_FLIGHT) for kind in (
        "ServerDisconnectedError", "ClientOSError", "ConnectionResetError", "ClientConnectionResetError",
    )),
    *((replace(BROKEN, text=text), ErrorCause.UNEXPLAINED) for text in (
        "500 Internal Server Error: ClientPayloadError", "502: no", "TimeoutError: ", "SSEResponseError: gone",
        "500 ClientPayloadError: gone",
    )),
    (replace(BROKEN, began_ns=102 * SECOND, ended_ns=103 * SECOND), ErrorCause.UNEXPLAINED),
    (replace(BROKEN, address=0), ErrorCause.UNEXPLAINED),
    (replace(BROKEN, address=None), ErrorCause.UNEXPLAINED),
    (REFUSED, ErrorCause.REFUSED),
    (replace(REFUSED, address=1), ErrorCause.UNEXPLAINED),
    (replace(REFUSED, began_ns=99 * SECOND), ErrorCause.REFUSED),
    (replace(REFUSED, text="503: no replica"), ErrorCause.UNEXPLAINED),
    (replace(REFUSED, text="502 Bad Gateway: ConnectionRefusedError"), ErrorCause.UNEXPLAINED),
    (replace(REFUSED, began_ns=121 * SECOND, ended_ns=121 * SECOND), ErrorCause.UNEXPLAINED),
])  # fmt: skip
def test_a_kill_explains_what_was_open_or_refused_at_its_own_address(error: SoakError, cause: ErrorCause) -> None:
    assert cause_of(error, [KILL]) is cause


def test_the_kill_of_an_engine_explains_nothing() -> None:
    engine = replace(KILL, address=None)
    assert cause_of(BROKEN, [engine]) is ErrorCause.UNEXPLAINED
    assert cause_of(replace(BROKEN, address=None), [engine]) is ErrorCause.UNEXPLAINED


def test_the_latest_of_several_kills_explains_as_well() -> None:
    assert cause_of(REFUSED, [replace(KILL, killed_ns=1, dead_ns=2, ready_ns=3), KILL]) is ErrorCause.REFUSED


def test_errors_are_read_without_what_the_client_cancelled() -> None:
    def record(number: int, error: dict[str, Any] | None) -> dict[str, Any]:
        told = {"session_num": number, "request_start_ns": 5, "request_end_ns": 7}
        return {"metadata": told} if error is None else {"metadata": told, "error": error}

    records = [
        record(0, None),
        record(1, {"code": 499, "type": "RequestCancellationError", "message": "cancelled"}),
        record(5, {"code": None, "type": "ServerDisconnectedError", "message": "gone"}),
        record(6, {"code": 503, "type": None, "message": "no"}),
        record(7, {"code": 502, "type": "Bad Gateway", "message": "gone"}),
        record(-1, {"type": "ValueError", "message": "no metadata"}),
    ]
    assert errors_in(records, 3) == [
        SoakError(5, 7, 2, "ServerDisconnectedError: gone"),
        SoakError(5, 7, 0, "503: no"),
        SoakError(5, 7, 1, "502 Bad Gateway: gone"),
        SoakError(5, 7, None, "ValueError: no metadata"),
    ]


def test_growth_of_a_process_and_from_life_to_life_is_not_flat() -> None:
    steady = [*samples("gw-us", [1]), *samples("gw-ap", range(10, 24))]
    assert all(met(replace(SOAK, processes=steady)).values())
    growing = [*samples("gw-us", [1], growth=300.0), *samples("gw-ap", range(10, 24), growth=300.0)]
    failed = [text for text, is_met in met(replace(SOAK, processes=growing)).items() if not is_met]
    assert [text.partition(" are")[0] for text in failed] == [
        "gw-us: resident MiB", "gw-ap, its lives: resident MiB",
    ]  # fmt: skip


def test_what_cannot_be_judged_is_not_met() -> None:
    soak = replace(SOAK, processes=samples("gw-us", [1])[:1], rest=({"gw-us": 40, "gw-ap": 40}, {"gw-us": 43}))
    changes = {(each.what, each.unit): each for each in held_in(soak)}
    assert changes["gw-us", "resident MiB"].reason == "there are 1 values"
    assert changes["gw-ap", "descriptors at rest"].reason == "it did not run then"
    judged = met(soak)
    assert judged["gw-us: descriptors at rest are flat (40.0, then 43.0)"] is False
    assert judged["gw-us: resident MiB: not judged: there are 1 values"] is False


def test_every_other_aim_is_judged() -> None:
    odd = {"gw-us": {"completed": 9, "abandoned": 1, "not_found": 2, "failed_midstream": 1, "failed_internally": 1}}
    soak = replace(SOAK, status=None, kills=[KILL, replace(KILL, whole_ns=None)], ends={**odd, "gw-eu": {"bad": 0}})
    errors = BROKEN, replace(BROKEN, address=1)
    assert {text: is_met for is_met, text in soak_judgement(soak, errors, RunCounts(failed=3))} == {
        "AIPerf ended by itself (exit status None)": False,
        "a kill explains each error (2 errors, 1 without one)": False,
        "AIPerf counts the errors that it records (3 counted, 2 recorded)": False,
        "AIPerf or a kill can cause each end that gateways count (1 otherwise, 1 × `failed_internally`)": False,
        "all was whole again after each kill (1 of 2)": False,
    }


def test_what_gateways_count_of_kills_and_of_the_client_is_no_failure() -> None:
    ends = {"gw-us": {"completed": 9, "abandoned": 1, "not_found": 2, "failed_before_first_byte": 1}}
    assert all(met(replace(SOAK, ends=ends), BROKEN).values())


def test_without_a_report_no_error_is_called_explained() -> None:
    judged = {text: is_met for is_met, text in soak_judgement(SOAK, [], RunCounts(), "no export")}
    assert judged.pop("AIPerf's report could be read") is False
    assert not [text for text in judged if "error" in text]
