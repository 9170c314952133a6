"""The demo with real llama.cpp servers and a real small model, as a new user runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.real import ROOT

pytestmark = pytest.mark.timeout(300)


def test_a_newcomer_reads_real_text_from_another_region(llamacpp_environment: Path) -> None:
    command = [sys.executable, "-m", "nightside", "demo", "--llamacpp", str(llamacpp_environment / "bin/python")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.findall(r"^(\S+) asks: (.*)\n(\S+) answers.*\n +(.*)", done.stdout, flags=re.MULTILINE)
    capital = "What is the capital of France? Answer in one sentence."
    assert ("us-east-1", capital, "eu-west-1", "The capital of France is Paris.") in [
        tuple(part.strip() for part in each) for each in said
    ]
    assert {engine for client, _, engine, _ in said if client == "eu-west-1"} == {"eu-west-1"}
    assert {engine for client, _, engine, _ in said if client == "us-east-1"} == {"us-east-1", "eu-west-1"}
