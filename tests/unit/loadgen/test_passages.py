from __future__ import annotations

from loadgen.passages import BlockText, runs_of

PASSAGE = BlockText("space", ((1, 3), (7, 7)), 64, 270, "mine")


def test_a_token_is_four_bytes() -> None:
    assert len(PASSAGE.text().encode()) == 4 * 270
    assert PASSAGE.text().count(" ") == 270


def test_numbers_in_a_row_are_ranges() -> None:
    assert runs_of([1, 2, 3, 7, 6]) == ((1, 3), (7, 7), (6, 6))
    assert runs_of([]) == ()
    assert list(PASSAGE.numbers()) == [1, 2, 3, 7]


def test_another_space_is_another_text() -> None:
    elsewhere = BlockText("elsewhere", PASSAGE.runs, 64, 270, "mine")
    assert not set(elsewhere.names(16, 0)) & set(PASSAGE.names(16, 0))
    assert elsewhere.text()[:64] != PASSAGE.text()[:64]


def test_what_follows_the_blocks_is_its_own() -> None:
    others = BlockText("space", PASSAGE.runs, 64, 270, "other")
    assert PASSAGE.text()[: 256 * 4] == others.text()[: 256 * 4]
    assert PASSAGE.text() != others.text()


def test_a_cut_passage_is_a_beginning() -> None:
    assert PASSAGE.text().startswith(PASSAGE.cut(100).text())
    assert PASSAGE.cut(100).tokens == 100
    assert PASSAGE.cut(300) == PASSAGE


def test_a_scaled_passage_has_as_many_shorter_blocks() -> None:
    half = PASSAGE.scaled(0.5)
    assert (half.block_tokens, half.tokens, half.runs) == (32, 4 * 32 + 7, PASSAGE.runs)
    assert PASSAGE.cut(96).scaled(0.5).tokens == 48
    assert PASSAGE.scaled(0.001).tokens == 4
