from __future__ import annotations

import pytest
from click.testing import CliRunner

from loadgen.bench.moe_layer import EXPERTS, fitted, main


def test_a_line_through_times_is_found() -> None:
    line = fitted(EXPERTS, [14.0 + 2.5 * each for each in EXPERTS])
    assert [line.intercept_us, line.slope_us] == pytest.approx([14.0, 2.5])


def test_without_a_gpu_it_says_so_and_measures_nothing() -> None:
    """Machines that run the tests have no GPU, or no PyTorch."""
    done = CliRunner().invoke(main, ["--device", "cuda:99"])
    assert done.exit_code != 0
    assert not done.stdout.startswith("{")
