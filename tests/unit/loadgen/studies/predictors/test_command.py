from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from loadgen.studies.main import results
from tests.support.traces import published


def called(*arguments: str | Path) -> Result:
    return CliRunner().invoke(results, ["predictors", *map(str, arguments)])


def test_it_prints_a_table_or_rows_or_writes_them(tmp_path: Path) -> None:
    done = called("--choosing", "--requests", "300")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("| workload | realization |")
    out = tmp_path / "rows.json"
    assert called("--choosing", "--requests", "300", "--refresh", "--steps", "10", "--json", "-o", out).exit_code == 0
    assert len(json.loads(out.read_text())) == 20


def test_it_wants_loads_and_says_what_it_cannot_use(tmp_path: Path) -> None:
    assert called().exit_code == 2
    assert called("--choosing", "--traces", tmp_path).exit_code == 2
    empty = called("--traces", tmp_path)
    assert (empty.exit_code, "none of the traces" in empty.output) == (1, True)
    folder = tmp_path / "traces"
    folder.mkdir()
    none_long = called("--traces", published(folder))
    assert (none_long.exit_code, "generated anything" in none_long.output) == (1, True)
