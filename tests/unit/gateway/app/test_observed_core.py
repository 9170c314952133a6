"""The supervisor of a core: when the core fails, the gateway stops in order."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

from gateway.app.observed_core import ObservedCore
from gateway.core.kernel.effects import EndRequest
from gateway.core.kernel.events import TimePassed
from gateway.core.vocabulary import Outcome, RequestId
from gateway.request.legs import RequestSummary
from mesh.clock import Clock
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from tests.support.core import US, profile
from tests.support.gateways import region_config, write_policy


def desk_in(folder: Path, stream: io.StringIO) -> ObservedCore:
    config = region_config("us-1", US, [], policy_file=write_policy(folder, US))
    return ObservedCore(config, Clock(), make_logger(LoggingConfig(format=LogFormat.JSON), config.gateway_id, stream))


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


async def test_a_background_loop_that_fails_is_told_and_counted(tmp_path: Path) -> None:
    stream = io.StringIO()
    observed = desk_in(tmp_path, stream)
    try:
        raise RuntimeError("boom")
    except RuntimeError as error:
        observed.loop_failed("test", error)
    observed.close()
    assert observed.metrics.registry.get_sample_value("nightside_supervised_restarts_total", {"task": "test"}) == 1
    (line,) = lines(stream)
    assert line["loop"] == "test"
    assert "RuntimeError: boom" in str(line["exception"])


async def test_an_error_of_ours_in_a_request_is_told_with_where_it_happened(tmp_path: Path) -> None:
    stream = io.StringIO()
    observed = desk_in(tmp_path, stream)
    try:
        raise KeyError("boom")
    except KeyError as error:
        observed.request_failed(error)
    observed.close()
    (line,) = lines(stream)
    assert line["level"] == "error"
    assert "KeyError: 'boom'" in str(line["exception"])
    assert "test_observed_core.py" in str(line["exception"])


async def test_whoever_fails_over_a_finished_request_stops_the_gateway_and_nobody_waits_for_it(tmp_path: Path) -> None:
    """An observer that fails over a step causes this; the request's owner is not to blame."""

    def fail(*_: object) -> None:
        raise ValueError("cannot be written down")

    stream = io.StringIO()
    observed = desk_in(tmp_path, stream)
    observed.finished.hand_to(fail)
    request_id = RequestId("r-1")

    class Finished:
        def on_effect(self, effect: object) -> None:
            """Take in that the gateway stops."""

        def report(self) -> None:
            end = EndRequest(request_id, Outcome.COMPLETED, "", 1)
            observed.on_finished(profile(request_id), end, RequestSummary(), None)

    request = Finished()
    observed.driver._open[request_id] = request
    async with asyncio.TaskGroup() as tasks:
        idle = tasks.create_task(observed.until_idle())
        await asyncio.sleep(0)
        observed.driver.submit(TimePassed())
        observed.driver.over(request_id, request)
        await idle
    assert observed.driver.failed.is_set()
    assert observed.driver.crash is not None
    assert str(observed.driver.crash.error) == "cannot be written down"
    assert any(line["level"] == "critical" for line in lines(stream))
    observed.close()
