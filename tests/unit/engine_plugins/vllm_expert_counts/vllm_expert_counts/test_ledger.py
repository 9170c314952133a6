from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from vllm_expert_counts.ledger import Ledger

BLOCK = 4


def slots(*numbers: int) -> NDArray[np.int64]:
    return np.array(numbers, dtype=np.int64)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(blocks=8, block_tokens=BLOCK)


def test_tokens_of_a_prompt_are_told_with_their_blocks(ledger: Ledger) -> None:
    written = ledger.write(slots(8, 9, 10, 11, 20, 21))
    assert written.tokens.tolist() == [0, 1, 2, 3, 4, 5]
    assert written.blocks.tolist() == [2, 2, 2, 2, 5, 5]
    assert written.fresh.tolist() == [2, 5]
    assert ledger.covers([2, 5], 6)


def test_padding_is_nobodys(ledger: Ledger) -> None:
    written = ledger.write(slots(8, 9, -1, -1))
    assert written.tokens.tolist() == [0, 1]
    assert ledger.covers([2], 2)


def test_a_step_without_tokens_changes_nothing(ledger: Ledger) -> None:
    ledger.write(slots(8))
    assert ledger.write(slots(-1)).fresh.tolist() == []
    assert ledger.covers([2], 1)


def test_a_block_goes_on_where_it_stopped(ledger: Ledger) -> None:
    ledger.write(slots(8, 9))
    assert ledger.write(slots(10)).fresh.tolist() == []
    assert ledger.covers([2], 3)
    assert not ledger.covers([2], 2), "it has more than was asked for"


@pytest.mark.parametrize(
    "later", [(11,), (9,), (8 + 1, 8 + 2), (10, 10)], ids=["gap", "again", "overlap", "twice in one step"]
)
def test_a_gap_or_a_repetition_breaks_a_block_until_it_begins_anew(ledger: Ledger, later: tuple[int, ...]) -> None:
    ledger.write(slots(8, 9))
    ledger.write(slots(*later))
    assert not any(ledger.covers([2], tokens) for tokens in range(1, BLOCK + 1))
    ledger.write(slots(8, 9, 10))
    assert ledger.covers([2], 3)


@pytest.mark.parametrize("mixed", [(8, 20, 9), (9, 20, 8)])
def test_two_who_write_one_block_break_it(ledger: Ledger, mixed: tuple[int, ...]) -> None:
    ledger.write(slots(*mixed))
    assert not any(ledger.covers([2], tokens) for tokens in (1, 2))
    assert ledger.covers([5], 1)


def test_what_was_never_counted_is_not_covered(ledger: Ledger) -> None:
    """Blocks that were loaded from another engine were never counted."""
    ledger.write(slots(20, 21))
    assert not ledger.covers([1, 5], BLOCK + 2)
    assert not ledger.covers([], 0)
    ledger.write(slots(8, 9, 10, 11))
    assert not ledger.covers([2], BLOCK + 2), "a block is missing"


def test_a_block_that_goes_on_in_another_is_as_known_there(ledger: Ledger) -> None:
    ledger.write(slots(8, 9))
    ledger.copy(2, 5)
    ledger.write(slots(22))
    assert ledger.covers([5], 3)
    assert ledger.covers([2], 2)
    ledger.copy(1, 5)
    assert not ledger.covers([5], 3), "nothing is known of block 1"
