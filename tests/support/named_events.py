"""Reads event streams whose events have names: those of the responses and the messages API."""

from __future__ import annotations

import json
from typing import Any


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """Data of the events. Asserts that each event is named after its own type."""
    read = []
    for event in stream.decode().split("\n\n")[:-1]:
        name, data = event.split("\n")
        read.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {read[-1]['type']}"
    return read
