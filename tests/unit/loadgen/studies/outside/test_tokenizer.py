"""The tokenizer that tools are given: every byte is one token."""

from __future__ import annotations

import json
from pathlib import Path

from loadgen.studies.outside.tokenizer import END, byte_characters, write_tokenizer


def test_every_byte_has_a_character_of_its_own() -> None:
    characters = byte_characters()
    assert len(set(characters)) == 256
    assert characters[ord("a")] == "a"
    assert characters[ord(" ")] == "Ġ"


def test_the_folder_is_what_tools_load(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer")
    document = json.loads((tmp_path / "tokenizer/tokenizer.json").read_text())
    config = json.loads((tmp_path / "tokenizer/tokenizer_config.json").read_text())
    assert sorted(document["model"]["vocab"].values()) == list(range(257))
    assert document["model"]["vocab"][END] == document["added_tokens"][0]["id"] == 256
    assert config["eos_token"] == END
