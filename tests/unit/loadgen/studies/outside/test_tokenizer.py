"""The tokenizer that tools are given: every byte is one token."""

from __future__ import annotations

import json
from pathlib import Path

from loadgen.studies.outside.tokenizer import END, TOKENIZER, byte_characters, write_tokenizer


def test_every_byte_has_a_character_of_its_own() -> None:
    characters = byte_characters()
    assert len(set(characters)) == 256
    assert characters[ord("a")] == "a"
    assert characters[ord(" ")] == "Ġ"


def test_the_folder_is_what_tools_load(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path)
    document = json.loads((folder / "tokenizer.json").read_text())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert sorted(document["model"]["vocab"].values()) == list(range(257))
    assert document["model"]["vocab"][END] == document["added_tokens"][0]["id"] == 256
    assert config["eos_token"] == END


def test_its_name_leads_to_the_folder(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path)
    model = tmp_path / f"models--{TOKENIZER.replace('/', '--')}"
    assert model / "snapshots" / (model / "refs" / "main").read_text() == folder
