"""Findings of checkov in terraform/ must be exactly those that terraform/checkov.yaml sets aside."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import yaml

from tests.deploy.terraforming import TERRAFORM, TOOLS


def test_what_it_finds_is_what_is_set_aside(tmp_path: Path) -> None:
    command: list[Path | str] = [
        TOOLS / "bin/checkov",
        "--directory",
        TERRAFORM,
        "--framework",
        "terraform",
        "--skip-download",
        "--output=json",
    ]
    environment = {"PATH": f"{TOOLS / 'bin'}:{os.defpath}", "HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["passed"] > 200, "little is looked at"
    assert report["summary"]["parsing_errors"] == 0
    failed = {each["check_id"]: each["check_name"] for each in report["results"]["failed_checks"]}
    set_aside = yaml.safe_load((TERRAFORM / "checkov.yaml").read_text())["skip-check"]
    assert sorted(failed) == sorted(set_aside), failed


def test_each_is_set_aside_for_a_reason() -> None:
    lines = [line for line in (TERRAFORM / "checkov.yaml").read_text().splitlines() if "- CKV" in line]
    assert [line for line in lines if len(line.partition("#")[2].split()) < 3] == []
