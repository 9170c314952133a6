"""The command that measures how fast another controller takes over, on a real database."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.studies.succession.page import page_of
from loadgen.studies.succession.playing import play
from tests.cloud.pairs import SharedStore
from tests.cloud.postgresql import USER, Postgresql

pytestmark = pytest.mark.needs("pg_createcluster")
MACHINE = {"cpu": "one", "cores": 2, "memory_gib": 4, "python": "Python", "busy": "idle"}


def test_a_leader_that_is_killed_is_followed_and_the_page_says_how_soon(
    running_postgresql: Postgresql, tmp_path: Path
) -> None:
    running_postgresql.sql("DROP TABLE IF EXISTS nightside_store, nightside_documents")
    where = {"hosts": [str(running_postgresql.address)], "database": "nightside", "user": USER, "tls": False}
    file = SharedStore({"kind": "postgresql", "postgresql": where, "lease": "4s"}).file(tmp_path, "ctl")
    told: list[str] = []
    found = play(file, 1, told.append)
    (change,) = found.changes
    assert found.lease_s / 2 < change.led_s, "it did not come to lead before its lease was over"
    assert change.led_s < change.written_s + 1
    assert told[0].startswith("1 of 1: led after ")
    page = page_of([found], MACHINE)
    assert "| postgresql | 4 s | 1 | " in page
    assert "| postgresql | 2400 | 7200 |" in page
