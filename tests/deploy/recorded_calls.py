"""Plug-in for pytest that records each AWS call of the product's own code, but not the calls that tests make for their
setup.

`pytest -p tests.deploy.recorded_calls --recorded-calls FILE …` writes one JSON object per line, with the service, the
operation as AWS calls it, and the names of records that it changes.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from botocore.history import BaseHistoryHandler, get_global_history_recorder

CONTROLLER = str(Path(__file__).parents[2] / "controller")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--recorded-calls", type=Path, help="Where calls of AWS are written down.")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--recorded-calls"):
        recorder = get_global_history_recorder()
        recorder.add_handler(_Recorder(path))
        recorder.enable()


class _Recorder(BaseHistoryHandler):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._call = threading.local()

    def emit(self, event_type: str, payload: Any, source: str) -> None:
        """Record a call: botocore reports the operation first, and then, in the same thread, the request, whose headers
        name the caller.
        """
        if event_type == "API_CALL":
            self._call.said = payload
        elif event_type == "HTTP_REQUEST" and (_is_ours(payload["headers"]) or _is_asked_by_us()):
            said = self._call.said
            changes = said["params"].get("ChangeBatch", {}).get("Changes", ())
            names = sorted({each["ResourceRecordSet"]["Name"] for each in changes})
            line = json.dumps({"service": said["service"], "operation": said["operation"], "names": names})
            with self._lock, self._path.open("a") as file:
                file.write(f"{line}\n")


def _is_ours(headers: Any) -> bool:
    agent = headers.get("User-Agent", "")
    return "nightside" in (agent.decode() if isinstance(agent, bytes) else agent)


def _is_asked_by_us() -> bool:
    """True if code of the controller is on the stack: a test may have given it a client of the test's own."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename.startswith(CONTROLLER):
            return True
    return False
