from __future__ import annotations

import pytest

from gateway.core.config import CoreConfig
from gateway.core.features.lengths.config import ThresholdConfig, TokenBudgetConfig
from gateway.features.lengths.checks import length_faults


@pytest.mark.parametrize(
    ("core", "told"),
    [
        (CoreConfig(token_budget=TokenBudgetConfig(decay=0.1)), "token_budget.decay: 0.1: it is 0.5 to 0.999"),
        (CoreConfig(threshold=ThresholdConfig(relax=9)), "threshold.relax: 9: it is 1.01 to 4"),
    ],
)
def test_a_setting_out_of_bounds_is_named(core: CoreConfig, told: str) -> None:
    assert not list(length_faults(CoreConfig()))
    (fault,) = length_faults(core)
    assert str(fault) == told
