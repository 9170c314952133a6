"""What the page says of what was played."""

from __future__ import annotations

from loadgen.evaluation.resume.page import page_of
from loadgen.evaluation.resume.playing import Outcome, Seen

MACHINE = {"cpu": "a", "cores": 2, "memory_gib": 4, "python": "Python", "busy": "all of it"}
WHOLE = Seen(is_whole=True, is_broken=False, went_on=False, longest_gap_s=0.02, first_token_s=0.01)
WENT_ON = Seen(is_whole=True, is_broken=False, went_on=True, longest_gap_s=0.2, first_token_s=0.01)
BROKEN = Seen(is_whole=False, is_broken=True, went_on=False, longest_gap_s=0.02, first_token_s=0.01)


def test_no_broken_stream_is_left_out() -> None:
    before = Outcome("an engine", False, kills=3, seen=[WHOLE, BROKEN, BROKEN], held=2)
    after = Outcome("an engine", True, kills=3, seen=[WHOLE, WENT_ON, WENT_ON], held=2, tokens_read_again=17.0)
    page = page_of([before, after], MACHINE)
    assert "| an engine | off | 3 | 3 | 2 | 1 | 2 | 0 | – |" in page
    assert "| an engine | on | 3 | 3 | 2 | 3 | 0 | 2 | 17 |" in page
    assert "| an engine | 200 ms | 200 ms |" in page


def test_pauses_of_nobody() -> None:
    assert "| a region | – | – |" in page_of([Outcome("a region", True, seen=[WHOLE, WHOLE])], MACHINE)
