from __future__ import annotations

import io
import json
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.app.takeover import GatewayParts
from gateway.core.vocabulary import GatewayId
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from mesh.values import Address


class Parts:
    """Parts of an estate; each records that it was taken back, and one of them fails."""

    def __init__(self, failing: str) -> None:
        self.taken_back: list[str] = []
        self.stream = io.StringIO()
        log = make_logger(LoggingConfig(format=LogFormat.JSON), GatewayId("us-1"), self.stream)
        config = SimpleNamespace(listen=SimpleNamespace(peers=Address("127.0.0.1", 0)))

        def take(name: str) -> None:
            self.taken_back.append(name)
            if name == failing:
                raise RuntimeError(name)

        async def take_later(name: str) -> None:
            take(name)

        def part(name: str) -> Any:
            return SimpleNamespace(
                take_back=lambda: take(name), begin=lambda: take(name), reopen=lambda: take_later(name)
            )

        desk = SimpleNamespace(audit=part("audit"), log=log)
        accounts = SimpleNamespace(usage=part("usage"))
        succession: Any = SimpleNamespace(config=config, observed=desk, accounts=accounts, tenure=part("loops"))
        self.estate = GatewayParts(succession, part("peers"), part("dns"))
        self.estate.doors = {role: part(role) for role in ("admin", "http")}


@pytest.mark.parametrize("failing", ["usage", "audit", "loops", "dns", "admin", "http"])
async def test_a_part_that_cannot_be_taken_back_keeps_no_other_from_it(failing: str) -> None:
    parts = Parts(failing)
    await parts.estate.take_back()
    assert parts.taken_back == ["usage", "audit", "loops", "dns", "admin", "http"]
    (told,) = map(json.loads, parts.stream.getvalue().splitlines())
    assert (told["level"], told["part"]) == ("critical", failing)
