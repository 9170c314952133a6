from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from gateway.app.metrics_cli import metrics


def test_every_series_is_listed_for_people_and_for_programs(tmp_path: Path) -> None:
    listed = json.loads(CliRunner().invoke(metrics, ["--json"]).output)
    assert {each["name"]: each["labels"] for each in listed}["nightside_certificate_expiry_seconds"] == ["role"]
    done = CliRunner().invoke(metrics, ["-o", str(tmp_path / "page.md")])
    assert (done.exit_code, done.output) == (0, "")
    page = (tmp_path / "page.md").read_text()
    assert all(f"| `{each['name']}` | {each['kind']} |" in page for each in listed)
