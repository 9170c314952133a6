"""Log events of both programs: every call logs a registered event, and every registered event is logged."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from controller.log_events import CONTROLLER
from controller.log_events import EVENTS as OF_CONTROLLERS
from mesh.gateway_log_events import EVENTS as OF_GATEWAYS
from mesh.gateway_log_events import GATEWAY
from mesh.log_events import SHARED, LogEvent
from tests.support.log_calls import LogCall, faults_of, log_calls

ROOT = Path(__file__).parents[3]
EVENT = LogEvent("disk_full", ("error",), ("path", "reason"), "The disk is full.", "Make room.")

SLOW = LogEvent("disk_slow", ("info", "warning"), (), "The disk is slow.")


@cache
def calls_in(folder: str) -> list[LogCall]:
    """Calls of a program. `CoreLog` logs each `EffectLog`, at the registry's level: those are looked at instead."""
    found = list[LogCall]()
    for path in sorted((ROOT / folder).rglob("*.py")):
        calls = log_calls(str(path.relative_to(ROOT)), path.read_text())
        found += (call for call in calls if call.event or path != ROOT / "controller/logs.py")
    return found


def test_gateways_log_registered_events() -> None:
    calls = [*calls_in("gateway"), *calls_in("mesh")]
    assert list(faults_of(calls, OF_GATEWAYS, GATEWAY)) == []


def test_controllers_log_registered_events() -> None:
    assert list(faults_of(calls_in("controller"), OF_CONTROLLERS, CONTROLLER)) == []


def test_shared_events_are_logged() -> None:
    calls = [*calls_in("gateway"), *calls_in("controller"), *calls_in("mesh")]
    assert len(calls) > 150, "nothing is looked at"
    assert list(faults_of(calls, (*OF_GATEWAYS, *CONTROLLER), SHARED)) == []


def test_fields_of_a_call_come_from_the_same_function_except_for_requests_and_refusals() -> None:
    """Tests of those two compare the fields of a line with the registry."""
    calls = [*calls_in("gateway"), *calls_in("controller"), *calls_in("mesh")]
    assert {call.event for call in calls if call.is_open} == {"request", "refused"}


def test_each_event_is_registered_once_in_order_with_a_sentence() -> None:
    names = [each.name for each in (*OF_GATEWAYS, *CONTROLLER)]
    assert len(names) == len(set(names))
    for registry in (SHARED, GATEWAY, CONTROLLER):
        assert [each.name for each in registry] == sorted(each.name for each in registry)
        assert [each.name for each in registry if not (each.meaning + each.action).endswith(".")] == []
        assert [each.name for each in registry if "|" in each.meaning + each.action or not each.levels] == []


def faults_in(source: str) -> list[str]:
    return list(faults_of(log_calls("a.py", source), [EVENT, SLOW], [EVENT]))


@pytest.mark.parametrize(
    "source",
    [
        'self._log.error("disk_full", path=path, reason=str(error))',
        'log = log.bind(path=path)\nlog.error("disk_full", reason="x")',
        'desk.log.error("disk_full", **told)',
        'yield EffectLog("disk_full", {"path": path, "reason": "x"})',
        'told = {"reason": "x"}\nlog.error("disk_full", path=path, **told)',
        'told = {"path": path}\ntold["reason"] = "x"\nlog.error("disk_full", **told)',
        'more = {"reason": "x"} if reason else {}\nlog.error("disk_full", **{"path": path, **more})',
        'told = {"reason": "x"}\ntold |= more\nlog.error("disk_full", **told)',
        'def f():\n    told = {"at": 1}\n    told = {"path": 1, "reason": ""}\n    yield EffectLog("disk_full", told)',
        'def other():\n    told = {"replica": 1}\ndef own(told):\n    log.error("disk_full", **told)',
    ],
)
def test_a_call_as_registered_is_no_fault(source: str) -> None:
    assert faults_in(source) == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("", "disk_full is registered, and never logged"),
        ('log.error("disk_empty")', "a.py:1: disk_empty is not registered"),
        ('EffectLog("disk_empty", {})', "a.py:1: disk_empty is not registered"),
        ('announce(config, name, "disk_empty", role="x")', "a.py:1: disk_empty is not registered"),
        ('log.error("DISK FULL: nothing is written")', "a.py:1: 'DISK FULL: nothing is written' is not snake_case"),
        ('log.info("disk_full")', "a.py:1: disk_full is logged at info, and registered at error"),
        ('log.error("disk_full", where=path)', "a.py:1: disk_full has fields that are not registered: where"),
        ('log.error("disk_full", path=path)', "disk_full is registered with reason, which no call has"),
        ('log.exception("disk_full")', "a.py:1: disk_full has fields that are not registered: exception"),
        ('EffectLog("disk_full", {"where": 1})', "a.py:1: disk_full has fields that are not registered: where"),
        ('EffectLog("disk_full", {"path": 1})', "disk_full is registered with reason, which no call has"),
        (
            'def f():\n    told = {"where": 1}\n    yield EffectLog("disk_full", told)',
            "a.py:3: disk_full has fields that are not registered: where",
        ),
        (
            'told = {}\ntold["where"] = 1\nlog.error("disk_full", **told)',
            "a.py:3: disk_full has fields that are not registered: where",
        ),
        (
            'log.error("disk_full", **told_of(by))',
            "a.py:1: disk_full has fields that are not registered: operator, role",
        ),
        ('EffectLog("disk_slow", {})', "a.py:1: disk_slow is registered at several levels, and told without one"),
        ('log.error(f"disk_{what}")', "a.py:1: the event is not a literal"),
        ("log.log(20, event)", "a.py:1: the event is not a literal"),
        ("tell = self._log.info if is_well else self._log.error", "a.py:1: the event is not a literal"),
    ],
)
def test_what_differs_from_the_registry_is_a_fault(source: str, fault: str) -> None:
    assert fault in faults_in(source)
