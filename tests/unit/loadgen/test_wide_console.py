from __future__ import annotations

import pytest
from rich.table import Table

from loadgen.wide_console import PLAIN_WIDTH, wide_console


def test_a_wide_table_is_whole_where_the_output_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(*(f"column-{number}" for number in range(11)))
    table.add_row(*("x" * 9 for _ in range(11)))
    wide_console().print(table)
    told = capsys.readouterr().out
    assert told.count("x" * 9) == 11
    assert 80 < max(map(len, told.splitlines())) <= PLAIN_WIDTH
