from __future__ import annotations

import json
from pathlib import Path

import pytest

from controller.ctl.replicas import check_replica
from mesh.faults import FileError

FILE = Path("replica.yaml")
WHOLE = {"id": "r", "url": "http://10.0.0.7:8000", "models": ["m"], "dialect": "sglang"}


def test_what_is_checked_goes_on_as_it_was_written() -> None:
    for more in ({}, {"api_key_env": "NOT_SET_HERE"}, {"api_key_file": "/not/here"}):
        assert json.loads(check_replica(FILE, WHOLE | more)) == WHOLE | more


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"url": "http://10.0.0.7:8000/v1"}, "url: should end before /v1"),
        ({"models": []}, "models: should not be empty"),
        ({"modles": ["m"]}, "modles: is not a known key"),
        ({"region": "us"}, "region and jurisdiction are written together"),
        ({"id": "a b"}, "id: 'a b' should be"),
    ],
)
def test_the_keys_are_a_region_files(more: dict[str, object], fault: str) -> None:
    with pytest.raises(FileError, match=f"replica.yaml: .*{fault}"):
        check_replica(FILE, WHOLE | more)
