"""Finds every call that logs an event in a module's source, and what contradicts the registry of events; compares lines
with the registry."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mesh.log_events import LogEvent

_LEVELS = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "exception": "error",
    "critical": "critical",
}
_LOGGERS = {"log", "logger"}
OPERATORS_FIELDS = ("operator", "role")
"""Fields that `told_of` gives."""
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_MAY_LOG = re.compile(r"(?<![a-z])log(ger)?_*\.|EffectLog|announce", flags=re.IGNORECASE)
"""Text without which a module logs nothing: most are not parsed."""


_OF_EVERY_LINE = frozenset(["event", "level", "timestamp", "gateway", "controller"])


def fields_of(line: Iterable[str]) -> set[str]:
    """Fields of a log line beyond those of every line."""
    return {*line} - _OF_EVERY_LINE


def registered_fields(event: str, registry: Iterable[LogEvent]) -> set[str]:
    (found,) = (each for each in registry if each.name == event)
    return {*found.fields}


@dataclass(frozen=True, slots=True)
class LogCall:
    """A call that logs one event."""

    event: str | None
    """Name of the event; None where it is not a literal."""
    level: str | None
    """Level of the call; None where the registry's is used."""
    fields: frozenset[str]
    is_open: bool
    """More fields may come from mappings that are not written in the same function."""
    where: str


def log_calls(path: str, source: str) -> Iterator[LogCall]:
    """Yield the calls of a module, also those that build an event for another module to log."""
    if not _MAY_LOG.search(source):
        return
    tree = ast.parse(source)
    nodes = [*ast.walk(tree)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    bound = {field for call in calls if _is_of_logger(call.func, {"bind"}) for field in _fields(call)}
    called = {id(call.func) for call in calls}
    for node in nodes:
        if isinstance(node, ast.Attribute) and _is_of_logger(node, {*_LEVELS, "log"}) and id(node) not in called:
            yield LogCall(None, None, frozenset(), True, f"{path}:{node.lineno}")
    for call in calls:
        if (read := _event_and_level(call)) is not None:
            around = _innermost(functions, call) or tree
            keys = [_keys(mapping, call.lineno, around) for mapping in _mappings(call)]
            fields = frozenset({*_fields(call), *bound}.union(*(_as_logged(each or ()) for each in keys)))
            yield LogCall(*read, fields, None in keys, f"{path}:{call.lineno}")


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
    if call.level is None and len(event.levels) > 1:
        yield f"{call.where}: {event.name} is registered at several levels, and told without one"
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
    builds = call.func.id if isinstance(call.func, ast.Name) else ""
    if builds == "EffectLog":
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
            yield from _as_logged([each.arg])


def _as_logged(names: Iterable[str]) -> Iterator[str]:
    yield from ("exception" if each == "exc_info" else each for each in names)


def _mappings(call: ast.Call) -> Iterator[ast.expr]:
    """Yield the mappings that a call takes fields from."""
    if ast.unparse(call.func) == "EffectLog":
        yield from call.args[1:]
    yield from (each.value for each in call.keywords if each.arg is None)


def _keys(mapping: ast.expr, line: int, function: ast.AST) -> frozenset[str] | None:
    """Keys that a mapping may have at that line of a function; None where the function does not tell."""
    match mapping:
        case ast.Dict():
            return _joined(
                _keys(value, line, function) if key is None else _constant(key)
                for key, value in zip(mapping.keys, mapping.values, strict=True)
            )
        case ast.IfExp():
            return _joined(_keys(each, line, function) for each in (mapping.body, mapping.orelse))
        case ast.Name():
            return _keys_of_name(mapping.id, line, function)
        case ast.Call() if ast.unparse(mapping.func) == "told_of":
            return frozenset(OPERATORS_FIELDS)
        case _:
            return None


def _keys_of_name(name: str, line: int, function: ast.AST) -> frozenset[str] | None:
    """Keys of the name's last assignment before the line, and those that are set one by one after it."""
    found: frozenset[str] | None = None
    for at, target, value in sorted(_assignments(function, line), key=lambda each: each[0]):
        match target:
            case ast.Name() if target.id == name:
                found = _keys(value, at, function)
            case ast.Subscript() if ast.unparse(target.value) == name:
                found = _joined((found, _constant(target.slice)))
            case _:
                pass
    return found


def _assignments(function: ast.AST, line: int) -> Iterator[tuple[int, ast.expr, ast.expr]]:
    """Yield line, target and value of each assignment before that line."""
    for node in ast.walk(function):
        match node:
            case ast.Assign() if node.lineno < line:
                yield from ((node.lineno, target, node.value) for target in node.targets)
            case ast.AnnAssign() if node.lineno < line and node.value is not None:
                yield node.lineno, node.target, node.value
            case ast.AugAssign() if node.lineno < line:
                yield node.lineno, node.target, ast.BinOp(node.target, node.op, node.value)
            case _:
                pass


def _joined(keys: Iterable[frozenset[str] | None]) -> frozenset[str] | None:
    joined: set[str] = set()
    for each in keys:
        if each is None:
            return None
        joined |= each
    return frozenset(joined)


def _constant(key: ast.expr) -> frozenset[str] | None:
    return frozenset([key.value]) if isinstance(key, ast.Constant) and isinstance(key.value, str) else None


def _innermost(
    functions: list[ast.FunctionDef | ast.AsyncFunctionDef], call: ast.Call
) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Innermost function around a call; outer functions come first in the walk."""
    around = (each for each in reversed(functions) if each.lineno <= call.lineno <= (each.end_lineno or each.lineno))
    return next(around, None)


def _is_of_logger(node: ast.expr, names: set[str]) -> bool:
    if not isinstance(node, ast.Attribute) or node.attr not in names:
        return False
    logger = node.value
    named = logger.attr if isinstance(logger, ast.Attribute) else logger.id if isinstance(logger, ast.Name) else ""
    return named.strip("_").lower() in _LOGGERS
