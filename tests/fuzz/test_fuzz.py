"""Readers of bytes from strangers, with mutated input: every seed, then mutations, for longer with `make fuzz`.

A finding is printed as bytes, smallest first. Keep it: a file of any name under `tests/fuzz/seeds` and its target, or a
line in a table under `tests/hostile`.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import SEEDS, TARGETS, Target

Edit = tuple[int, int, bytes]
"""Position, number of bytes removed there, and bytes inserted."""


def mutated(seed: bytes, edits: list[Edit], other: bytes) -> bytes:
    data = bytearray(seed)
    for place, removed, put in edits:
        at = place % (len(data) + 1)
        data[at : at + removed] = put
    return bytes(data) + other


def mutations(target: Target) -> st.SearchStrategy[bytes]:
    seeds = st.sampled_from(list(target.seeds()))
    put = st.one_of(st.sampled_from(target.words), st.binary(max_size=8))
    edits = st.lists(
        st.tuples(st.integers(0, 2**16), st.sampled_from([0, 0, 1, 2, 7, 64]), put), min_size=1, max_size=6
    )
    return st.builds(mutated, seeds, edits, st.one_of(st.just(b""), seeds))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_seed_is_read_or_refused(target: Target) -> None:
    seeds = list(target.seeds())
    assert len(seeds) > 5
    for seed in seeds:
        target.run(seed)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_mutation_is_read_or_refused(target: Target, request: pytest.FixtureRequest) -> None:
    @settings(
        max_examples=request.config.getoption("--fuzz-examples"),
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(mutations(target))
    def reads(data: bytes) -> None:
        target.run(data)

    reads()


def test_each_target_has_a_place_for_what_is_found() -> None:
    assert {path.name for path in SEEDS.iterdir()} == {target.name for target in TARGETS}
