"""The command: its wrong uses, and the page from stored data."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from loadgen.studies.main import results
from loadgen.studies.protocols.command import DATA
from loadgen.studies.protocols.page import NAME
from tests.support.protocol_runs import LOADS, record


def called(*arguments: str | Path) -> Result:
    return CliRunner().invoke(results, ["protocols", *map(str, arguments)])


def test_the_page_is_made_from_stored_data(tmp_path: Path) -> None:
    document = {"loads": LOADS, **record().document()}
    (tmp_path / DATA).write_text(json.dumps(document))
    assert called("--stored", "-o", tmp_path).exit_code == 0
    assert json.loads((tmp_path / DATA).read_text()) == document
    page = (tmp_path / NAME).read_bytes()
    assert called("--stored", "-o", tmp_path).exit_code == 0
    assert (tmp_path / NAME).read_bytes() == page


def test_data_of_another_shape_is_told(tmp_path: Path) -> None:
    (tmp_path / DATA).write_text('{"seeds": [1]}')
    done = called("--stored", "-o", tmp_path)
    assert (done.exit_code, "runs" in done.output) == (1, True)


def test_without_data_or_traces_nothing_is_written(tmp_path: Path) -> None:
    assert called("--stored", "-o", tmp_path).exit_code == 2
    done = called("--plan", "-o", tmp_path)
    assert (done.exit_code, "--traces" in done.output) == (1, True)
    assert called("--quick").exit_code == 2
    assert list(tmp_path.iterdir()) == []
