"""Streams whose events have names: the responses and the messages API."""

from __future__ import annotations

import json
from typing import Any


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """What they carry. Each is named after its own type."""
    read = []
    for event in stream.decode().split("\n\n")[:-1]:
        name, data = event.split("\n")
        read.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {read[-1]['type']}"
    return read
