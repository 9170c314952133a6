"""Counts the tokens of documents with tokenizers that packages carry. It runs by itself, in an environment of its own
with `tokenizers` and `bpe-openai`, which no other module needs.

    python -m loadgen.studies.prompts.count_tokens UNPACKED_PACKAGES NAME=TOKENIZER_JSON... > documents.jsonl
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

from loadgen.studies.prompts.texts import documents_in


def main(folder: str, *named: str) -> None:
    counts = _tokenizers(named)
    for document in documents_in(Path(folder)):
        tokens = {name: count(document.text) for name, count in counts.items()}
        told = dataclasses.asdict(dataclasses.replace(document, tokens=tokens))
        sys.stdout.write(json.dumps(told, ensure_ascii=False) + "\n")


def _tokenizers(named: tuple[str, ...]) -> dict[str, Callable[[str], int]]:
    from bpe_openai import get_encoding  # type: ignore[import-not-found] # noqa: PLC0415 - in its environment only
    from tokenizers import Tokenizer  # type: ignore[import-not-found] # noqa: PLC0415

    def of_file(path: str) -> Callable[[str], int]:
        tokenizer = Tokenizer.from_file(path)
        return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)

    o200k = get_encoding("o200k_base")
    files = (each.partition("=") for each in named)
    return {name: of_file(path) for name, _, path in files} | {"o200k": lambda text: len(o200k.encode(text))}


if __name__ == "__main__":
    main(*sys.argv[1:])
