from __future__ import annotations

import msgspec
import pytest

from loadgen.engine.faults import EngineFault, FaultMode, FaultSwitch


def test_a_fault_strikes_only_where_it_belongs() -> None:
    switch = FaultSwitch()
    assert switch.strike(FaultMode.ERROR_500) is None
    switch.turn_to(EngineFault(FaultMode.ERROR_500))

    assert switch.strike(FaultMode.SLOW_METRICS) is None
    assert switch.strike(FaultMode.ERROR_503, FaultMode.ERROR_500) == EngineFault(FaultMode.ERROR_500)


def test_a_fault_may_wear_off() -> None:
    switch = FaultSwitch()
    switch.turn_to(EngineFault(FaultMode.ERROR_500, times=2))
    struck = [switch.strike(FaultMode.ERROR_500) is not None for _ in range(3)]
    switch.turn_to(EngineFault(FaultMode.ERROR_500, times=2))

    assert struck == [True, True, False]
    assert switch.strike(FaultMode.ERROR_500) is not None


@pytest.mark.parametrize("body", [b'{"mode":"nap"}', b'{"mood":"refuse"}', b"[]"])
def test_unknown_orders_are_refused(body: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(body, type=EngineFault)
