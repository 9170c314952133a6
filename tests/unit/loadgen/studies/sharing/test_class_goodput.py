from __future__ import annotations

from typing import Any

from loadgen.studies.sharing import class_goodput


def test_with_classes_people_are_in_time_and_the_backlog_is_worked_off_all_the_same() -> None:
    without: dict[str, Any] = class_goodput._row("without", "interactive", {}, 1, 40)
    yielding: dict[str, Any] = class_goodput._row("with", "batch", {}, 1, 40)
    assert yielding["chat"]["goodput"] > 0.95
    assert yielding["chat"]["goodput"] > without["chat"]["goodput"] + 0.1
    assert yielding["backlog_tokens_per_s"] > 0.7 * without["backlog_tokens_per_s"], "it takes what is idle"
    text = class_goodput.section({"seconds": 40, "rows": [without, yielding]})
    assert text.startswith("## ")
    assert "| with |" in text
