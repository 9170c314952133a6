"""Sets up structured logging. Callers decide what is logged, and see to it that no content is.

Loggers are handed down, not looked up, so that each of several gateways in one process logs under its own name.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import msgspec
import structlog
from msgspec.structs import replace
from structlog.typing import EventDict, FilteringBoundLogger, Processor

from mesh.clock import Clock
from mesh.config import LogFormat, LoggingConfig, LogLevel
from mesh.values import SECOND_NS


def make_logger(
    config: LoggingConfig,
    name: str,
    stream: TextIO | None = None,
    clock: Clock | None = None,
    *,
    role: str = "gateway",
) -> FilteringBoundLogger:
    """Make a logger whose lines name the gateway, or the other kind of program that `role` says; to standard error and
    in real time by default."""
    stream = stream or sys.stderr
    level = logging.getLevelNamesMapping()[config.level.upper()]
    is_console = config.format is LogFormat.CONSOLE or (config.format is LogFormat.AUTO and stream.isatty())
    clock = clock or Clock()
    logger: FilteringBoundLogger = structlog.wrap_logger(
        structlog.WriteLogger(stream),
        processors=_console(stream, clock) if is_console else [],
        wrapper_class=structlog.make_filtering_bound_logger(level) if is_console else _json_lines(level, clock),
        cache_logger_on_first_use=True,
    )
    return logger.bind(**{role: name})


def announce(config: LoggingConfig, name: str, event: str, *, role: str = "gateway", **fields: object) -> None:
    """Write one line to standard output for a waiting program, in the form of the log's lines, whatever the log's
    level."""
    stream = sys.stdout
    make_logger(replace(config, level=LogLevel.INFO), name, stream, role=role).info(event, **fields)
    stream.flush()


@contextmanager
def libraries_told_of(log: FilteringBoundLogger, clock: Clock | None = None) -> Iterator[None]:
    """Log what libraries report through Python's own logging, from warnings upwards, each line of their code once in
    ten seconds. It works for a whole process; without it, the reports would go to standard error as they are."""
    handler = _Libraries(log, clock or Clock())
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


class LogRateLimit:
    """Rate limit of log lines that outside events cause."""

    def __init__(self, clock: Clock, apart_ns: int = 10 * SECOND_NS, kinds_max: int = 64) -> None:
        """Allow a line of each kind every `apart_ns`. Kinds beyond `kinds_max` count as one."""
        self._clock = clock
        self._apart_ns = apart_ns
        self._kinds_max = kinds_max
        self._kinds: dict[str, tuple[int, int]] = {}
        """Time at which the next line is due, and the number of lines skipped, by kind."""

    def turn(self, kind: str = "") -> int | None:
        """Return how many lines of this kind were skipped since the last one; None where this one is to be skipped as
        well."""
        now_ns = self._clock.now_ns()
        if kind not in self._kinds and len(self._kinds) >= self._kinds_max:
            self._forget(now_ns)
            kind = kind if len(self._kinds) < self._kinds_max else "(others)"
        due_ns, passed_over = self._kinds.get(kind, (now_ns, 0))
        if now_ns < due_ns:
            self._kinds[kind] = due_ns, passed_over + 1
            return None
        self._kinds[kind] = now_ns + self._apart_ns, 0
        return passed_over

    def _forget(self, now_ns: int) -> None:
        self._kinds = {kind: each for kind, each in self._kinds.items() if now_ns < each[0]}


class _Libraries(logging.Handler):
    def __init__(self, log: FilteringBoundLogger, clock: Clock) -> None:
        super().__init__(logging.WARNING)
        self._log = log
        self._seldom = LogRateLimit(clock)

    def emit(self, record: logging.LogRecord) -> None:
        passed_over = self._seldom.turn(f"{record.name} {record.msg}")
        if passed_over is None:
            return
        try:
            message = record.getMessage()
        except (TypeError, ValueError):  # the arguments do not fit the message
            message = str(record.msg)
        fields: dict[str, object] = {"library": record.name, "message": message, "exc_info": record.exc_info}
        if passed_over:
            fields["suppressed"] = passed_over
        if record.levelno >= logging.ERROR:
            self._log.error("library_message", **fields)
        else:
            self._log.warning("library_message", **fields)


def _console(stream: TextIO, clock: Clock) -> list[Processor]:
    """Processors of lines for a person at a terminal."""

    def add_time(_logger: object, _method: str, fields: EventDict) -> EventDict:
        fields["timestamp"] = clock.wall_time()
        return fields

    plain = structlog.dev.plain_traceback  # a traceback with local variables would show secrets and prompts
    renderer = structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=plain)
    return [structlog.processors.add_log_level, add_time, renderer]


def _json_lines(level: int, clock: Clock) -> type[Any]:
    """Make a class of loggers that write JSON lines from this level on. It does without structlog's processors, since
    each request writes a line."""
    encode = msgspec.json.Encoder(enc_hook=repr).encode

    class JsonLines(structlog.make_filtering_bound_logger(level)):  # type: ignore[misc]
        def _proxy_to_logger(self, method_name: str, event: str | None = None, **fields: Any) -> None:
            """Write a line. A value that JSON cannot express is written as its repr."""
            line: EventDict = {**self._context, **fields, "event": event, "level": method_name}
            line["timestamp"] = clock.wall_time()
            if "exc_info" in line:
                line = structlog.processors.format_exc_info(self._logger, method_name, line)
            try:
                self._logger.msg(encode(line).decode())
            except UnicodeEncodeError:  # a lone surrogate, which only an escape can express
                self._logger.msg(json.dumps(line, default=repr))

    return JsonLines
