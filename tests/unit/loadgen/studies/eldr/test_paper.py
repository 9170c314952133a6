from __future__ import annotations

import pytest

from loadgen.studies.eldr.paper import PAPER, intercept_in_experts


def test_a_layer_takes_as_many_times_as_long_as_published() -> None:
    besides = intercept_in_experts()
    assert (besides + 128) / (besides + 16) == pytest.approx(PAPER["moe_layer_ratio"])
