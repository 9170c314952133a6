"""Tokens of media parts as region files declare them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gateway.core.vocabulary import ModelName
from gateway.request.media import MediaKind, MediaTokens
from tests.support.region_files import SMALLEST, load_config, region_at, region_faults


def document(**content: object) -> str:
    return yaml.safe_dump({**yaml.safe_load(SMALLEST), "content": content})


def test_a_model_s_parts_come_to_what_is_declared_and_others_to_what_is_said_of_all(tmp_path: Path) -> None:
    declared = {"Qwen/Qwen2-VL": {"image_tokens": 1280, "video_tokens": 16_000}}
    config = load_config(region_at(tmp_path, document(models=declared, file_tokens=3000)), environ={})
    tokens = MediaTokens(lambda: config.content)
    known, other = ModelName("Qwen/Qwen2-VL"), ModelName("other")
    assert [tokens.of(known, kind) for kind in MediaKind] == [1280, 1024, 16_000, 3000]
    assert [tokens.of(other, kind) for kind in MediaKind] == [1024, 1024, 8192, 3000]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ({"audio_tokens": 0}, "content.audio_tokens: should be greater than or equal to 1"),
        ({"file_tokens": 100_001}, "content.file_tokens: 100001: it is 1 to 100,000"),
        ({"models": {"m": {"image_tokens": 100_001}}}, "content.models.m.image_tokens: 100001: it is 1 to 100,000"),
        ({"models": {"m": {"picture_tokens": 5}}}, "content.models.m.picture_tokens"),
        ({"models": {"m": 5}}, "content.models.m"),
    ],
)
def test_what_cannot_be_is_named(tmp_path: Path, content: dict[str, object], fault: str) -> None:
    found = region_faults(tmp_path, document(**content))
    assert any(fault in each for each in found), found
