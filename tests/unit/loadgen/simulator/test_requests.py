"""Legs of simulated requests."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.core.vocabulary import Jurisdiction, LegResult, LegRole, Place, RegionName
from gateway.request.legs import LegFailure
from loadgen.simulator.requests import SimEngineLeg
from tests.support.listeners import Heard


def a_leg(number: int, *, is_stream: bool = True) -> tuple[SimEngineLeg, Heard]:
    home: Any = SimpleNamespace(turn_over=lambda: None, wants_counts=False)
    request: Any = SimpleNamespace(is_stored=False, profile=SimpleNamespace(stream=is_stream), output_tokens=7)
    sink: Any = SimpleNamespace(said=0, legs=[], ran_at=None, client_request=request)
    place = Place(RegionName("eu"), Jurisdiction("DE"))
    engine: Any = SimpleNamespace(replica_id="r0", spec=SimpleNamespace(place=place))
    order: Any = SimpleNamespace(request_id=f"request-{number}", attempt=1, leg=1, role=LegRole.WHOLE,
                                 decision=SimpleNamespace(pool=None))  # fmt: skip
    heard = Heard()
    return SimEngineLeg(home, home, sink, order, heard, engine=engine, run_id=""), heard


@pytest.mark.parametrize("has_begun", [False, True])
def test_connections_break_at_every_byte_of_an_event_and_complete_none(*, has_begun: bool) -> None:
    event = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
    lengths = set()
    for number in range(2_000):
        leg, heard = a_leg(number)
        if has_begun:
            leg.first_token(SimpleNamespace(replica_id="r0", identity=""))  # type: ignore[arg-type]
            assert heard.body == event
        leg.broke("the engine is gone")
        part = heard.body.removeprefix(event) if has_begun else heard.body
        assert event.startswith(part)
        assert heard.failure == LegFailure(LegResult.FAILED, "the engine is gone")
        lengths.add(len(part))
    assert lengths == set(range(len(event)))


def test_nothing_is_heard_of_an_answer_in_one_piece_before_its_end() -> None:
    leg, heard = a_leg(1, is_stream=False)
    leg.run = None
    leg.first_token(SimpleNamespace(replica_id="r0", identity=""))  # type: ignore[arg-type]
    assert heard.body == b""
    leg.finished()
    assert json.loads(heard.body)["choices"][0]["message"]["content"] == "x"
    assert heard.failure is None


def test_an_answer_in_one_piece_that_breaks_has_not_begun() -> None:
    leg, heard = a_leg(1, is_stream=False)
    leg.first_token(SimpleNamespace(replica_id="r0", identity=""))  # type: ignore[arg-type]
    leg.broke("the engine is gone")
    assert heard.body == b""
    assert heard.failure == LegFailure(LegResult.FAILED, "the engine is gone")
