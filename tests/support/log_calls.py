"""Finds every call that logs an event in a module's source, and what contradicts the registry of events."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gateway.ground.log_events import LogEvent

_LEVELS = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "exception": "error",
    "critical": "critical",
}
_LOGGERS = {"log", "logger"}
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class LogCall:
    """A call that logs one event."""

    event: str | None
    """Name of the event; None where it is not a literal."""
    level: str | None
    """Level of the call; None where the registry's is used."""
    fields: frozenset[str]
    is_open: bool
    """More fields may come from mappings."""
    where: str


def log_calls(path: str, source: str) -> Iterator[LogCall]:
    """Yield the calls of a module, also those that build an event for another module to log."""
    tree = ast.parse(source)
    bound = {field for call in _calls(tree) if _is_of_logger(call.func, {"bind"}) for field in _fields(call)}
    called = {id(call.func) for call in _calls(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_of_logger(node, {*_LEVELS, "log"}) and id(node) not in called:
            yield LogCall(None, None, frozenset(), True, f"{path}:{node.lineno}")
    for call in _calls(tree):
        if (read := _event_and_level(call)) is not None:
            event, level = read
            is_open = level is None or any(each.arg is None for each in call.keywords)
            yield LogCall(event, level, frozenset({*_fields(call), *bound}), is_open, f"{path}:{call.lineno}")


def faults_of(calls: Iterable[LogCall], known: Iterable[LogEvent], own: Iterable[LogEvent]) -> Iterator[str]:
    """Yield a sentence for each fault: `known` are the events that the calls may log, `own` those that they must."""
    calls, registry = list(calls), {each.name: each for each in known}
    for call in calls:
        if call.event is None:
            yield f"{call.where}: the event is not a literal"
        elif not _NAME.fullmatch(call.event):
            yield f"{call.where}: {call.event!r} is not snake_case"
        elif call.event not in registry:
            yield f"{call.where}: {call.event} is not registered"
        else:
            yield from _differences(call, registry[call.event])
    for each in own:
        of_it = [call for call in calls if call.event == each.name]
        if not of_it:
            yield f"{each.name} is registered, and never logged"
        elif unused := _unused(each, of_it):
            yield f"{each.name} is registered with {unused}, which no call has"


def _differences(call: LogCall, event: LogEvent) -> Iterator[str]:
    if call.level is not None and call.level not in event.levels:
        yield f"{call.where}: {event.name} is logged at {call.level}, and registered at {', '.join(event.levels)}"
    if unknown := sorted(call.fields - set(event.fields)):
        yield f"{call.where}: {event.name} has fields that are not registered: {', '.join(unknown)}"


def _unused(event: LogEvent, calls: list[LogCall]) -> str:
    """Levels and fields of the registry that no call has."""
    levels = () if any(call.level is None for call in calls) else {*event.levels} - {call.level for call in calls}
    fields = () if any(call.is_open for call in calls) else {*event.fields}.difference(*(each.fields for each in calls))
    return ", ".join(sorted([*levels, *fields]))


def _event_and_level(call: ast.Call) -> tuple[str | None, str | None] | None:
    """Event and level of a call; None if it logs nothing."""
    if isinstance(call.func, ast.Attribute) and _is_of_logger(call.func, {*_LEVELS}):
        return _literal(call, 0), _LEVELS[call.func.attr]
    if _is_of_logger(call.func, {"log"}):
        return None, None
    builds = ast.unparse(call.func)
    if builds == "Telling":
        return _literal(call, 0), None
    return (_literal(call, 2), "info") if builds == "announce" else None


def _literal(call: ast.Call, index: int) -> str | None:
    argument = call.args[index] if len(call.args) > index else None
    return argument.value if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else None


def _fields(call: ast.Call) -> Iterator[str]:
    if isinstance(call.func, ast.Attribute) and call.func.attr == "exception":
        yield "exception"
    for each in call.keywords:
        if each.arg is not None and not (ast.unparse(call.func) == "announce" and each.arg == "role"):
            yield "exception" if each.arg == "exc_info" else each.arg


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _is_of_logger(node: ast.expr, names: set[str]) -> bool:
    if not isinstance(node, ast.Attribute) or node.attr not in names:
        return False
    logger = node.value
    named = logger.attr if isinstance(logger, ast.Attribute) else logger.id if isinstance(logger, ast.Name) else ""
    return named.strip("_").lower() in _LOGGERS
