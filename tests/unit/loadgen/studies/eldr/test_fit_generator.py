from __future__ import annotations

import numpy as np
import pytest

from loadgen.studies.eldr.fit_generator import as_recorded, figures_of, fit_spread
from loadgen.studies.eldr.generator import Generator, ModelShape, Spread

SHAPE = ModelShape(6, 32, 4)


def test_spreads_that_requests_were_made_with_are_found_again() -> None:
    """The figures are recovered, which is all that was fitted, by a generator of another seed."""
    tokens = np.full(60, 64, np.int64)
    drawn = Generator(SHAPE, Spread(0.4, 1.0, 0.4, 0.6), 3).draw({"a": 1.0, "b": 1.0, "c": 1.0}, 60, 1, tokens=tokens)
    recorded = as_recorded(Generator(SHAPE, Spread(0.4, 1.0, 0.4, 0.6), 3), drawn)
    found = fit_spread(recorded, 4)
    made = as_recorded(Generator(SHAPE, found, 7), recorded)
    wanted = figures_of(recorded)
    assert figures_of(made) == pytest.approx(wanted, rel=0.06)
