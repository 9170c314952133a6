"""Writes a tokenizer in which every byte is a token, for tools that cannot make prompts without one.

It is data for the tools alone: tokens are counted by the engines. It needs no package and downloads nothing.
"""

from __future__ import annotations

import json
from pathlib import Path

TOKENIZER = "nightside/bytes"
"""Name of the tokenizer in the cache of Hugging Face's hub."""
END = "<|endoftext|>"
_COMMIT = "0" * 40
_PRINTED = (range(0x21, 0x7F), range(0xA1, 0xAD), range(0xAE, 0x100))
"""Bytes that byte-level tokenizers write as the character of the same number."""
_OTHERS_FROM = 0x100


def write_tokenizer(cache: Path) -> Path:
    """Write a byte-level BPE without merges, in the format of Hugging Face's `tokenizers`, to a cache of its hub: some
    tools load a tokenizer again by name alone. Returns the folder of the tokenizer, by which others load it."""
    place = cache / f"models--{TOKENIZER.replace('/', '--')}"
    folder = place / "snapshots" / _COMMIT
    for each in (folder, place / "refs"):
        each.mkdir(parents=True, exist_ok=True)
    (place / "refs" / "main").write_text(_COMMIT, encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer()), encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": END,
              "model_max_length": 131_072, "clean_up_tokenization_spaces": False}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def byte_characters() -> list[str]:
    """Character by which a byte-level tokenizer writes each byte, by the byte's number."""
    printed = {number for numbers in _PRINTED for number in numbers}
    others = iter(range(_OTHERS_FROM, _OTHERS_FROM + 256))
    return [chr(number) if number in printed else chr(next(others)) for number in range(256)]


def _tokenizer() -> dict[str, object]:
    vocabulary = {character: number for number, character in enumerate(byte_characters())}
    end = {"id": len(vocabulary), "content": END, "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False, "special": True}  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model: dict[str, object] = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": vocabulary | {END: len(vocabulary)}, "merges": []}  # fmt: skip
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None,
            "pre_tokenizer": level, "post_processor": None, "decoder": level, "model": model}  # fmt: skip
