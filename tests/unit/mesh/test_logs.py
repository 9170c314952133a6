from __future__ import annotations

import io
import json
import logging

from mesh.clock import Clock
from mesh.config import LogFormat, LoggingConfig, LogLevel
from mesh.logs import LogRateLimit, libraries_told_of, make_logger
from tests.support.clock import StillClock

JSON = LoggingConfig(format=LogFormat.JSON)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_format_follows_the_stream_unless_told() -> None:
    def line(log_format: LogFormat, stream: io.StringIO) -> str:
        make_logger(LoggingConfig(format=log_format), "us-1", stream).info("hello", number=1)
        return stream.getvalue()

    assert json.loads(line(LogFormat.AUTO, io.StringIO()))["number"] == 1
    assert "hello" in line(LogFormat.AUTO, Terminal())
    assert not line(LogFormat.AUTO, Terminal()).startswith("{")
    assert json.loads(line(LogFormat.JSON, Terminal()))["gateway"] == "us-1"
    assert not line(LogFormat.CONSOLE, io.StringIO()).startswith("{")


def test_the_level_is_a_threshold() -> None:
    stream = io.StringIO()
    log = make_logger(LoggingConfig(format=LogFormat.JSON, level=LogLevel.WARNING), "us-1", stream)
    log.info("quiet")
    log.warning("loud")
    assert json.loads(stream.getvalue())["event"] == "loud"


def test_two_programs_of_one_process_log_apart() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs = [make_logger(JSON, "a", first), make_logger(JSON, "b", second, role="controller")]
    for log in logs:
        log.info("hello")
    assert json.loads(first.getvalue())["gateway"] == "a"
    assert json.loads(second.getvalue())["controller"] == "b"


def test_lines_carry_the_time_of_the_clock_that_was_handed_in() -> None:
    class OldClock(Clock):
        def wall_ns(self) -> int:
            return 1_500_000_000

    stream = io.StringIO()
    make_logger(JSON, "us-1", stream, OldClock()).info("hello")
    assert json.loads(stream.getvalue())["timestamp"] == "1970-01-01T00:00:01.500000Z"


def test_a_traceback_shows_no_local_variables() -> None:
    stream = io.StringIO()
    secret = "s3cr3t of a local variable"
    try:
        raise ValueError("wrong")
    except ValueError:
        make_logger(LoggingConfig(format=LogFormat.CONSOLE), "us-1", stream).exception("failed")
    assert "ValueError: wrong" in stream.getvalue()
    assert secret not in stream.getvalue()


def test_an_error_keeps_its_traceback() -> None:
    stream = io.StringIO()
    log = make_logger(JSON, "us-1", stream)
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        log.exception("failed")
    assert "RuntimeError: boom" in json.loads(stream.getvalue())["exception"]


def test_what_libraries_say_is_lines_of_the_log_while_it_is_taken_in() -> None:
    stream = io.StringIO()
    library = logging.getLogger("a.library")
    with libraries_told_of(make_logger(JSON, "us-1", stream)):
        library.info("nobody needs this")
        library.warning("%d is too many", 7)
        try:
            raise ValueError("no message")
        except ValueError:
            library.exception("it failed")
    with libraries_told_of(make_logger(JSON, "us-1", io.StringIO())):
        library.warning("somebody else's")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["level"], first["library"], first["message"]) == ("warning", "a.library", "7 is too many")
    assert (second["level"], second["message"]) == ("error", "it failed")
    assert "ValueError: no message" in second["exception"]


def test_what_a_library_says_again_and_again_is_one_line_in_a_while_with_how_many_there_were() -> None:
    stream, clock = io.StringIO(), StillClock()
    with libraries_told_of(make_logger(JSON, "us-1", stream), clock):
        for number in range(1000):
            logging.getLogger("chatty").error("call %d failed", number)
        logging.getLogger("chatty").error("another line of its code")
        clock.now += 10_000_000_000
        logging.getLogger("chatty").error("call %d failed", 1000)
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(each["message"], each.get("suppressed")) for each in told] == [
        ("call 0 failed", None),
        ("another line of its code", None),
        ("call 1000 failed", 999),
    ]


def test_kinds_of_lines_that_strangers_choose_are_bounded() -> None:
    clock = StillClock()
    seldom = LogRateLimit(clock, apart_ns=10, kinds_max=2)
    assert [seldom.turn(each) for each in ("a", "b", "c", "d", "e", "a")] == [0, 0, 0, None, None, None]
    clock.now += 10
    assert [seldom.turn(each) for each in ("f", "a", "g", "g")] == [0, 0, 0, None]
