"""Which kind of text a few windows of a prompt are: code, prose, CJK, or something else. Pure.

Bytes are counted by what they are, which takes some microseconds, and nothing is parsed. The bounds were found on texts
whose kind is known by where they come from, and are measured on others: docs/results/token-budget-classifier.md.
"""

from __future__ import annotations

from typing import Final

from gateway.core.vocabulary import Category

SAMPLE_BYTES: Final = 1024
"""Of a text; more of it tells hardly more."""


def _table() -> bytes:
    """What each byte is: a letter, d digit, s blank, n line's end, t tab, p mark of code, q mark of prose; of UTF-8,
    e beginning of a letter of Europe, k of a character of China, Japan or Korea, o of any other, c what follows."""
    kinds = bytearray(b"o" * 256)
    for byte in range(256):
        mark = chr(byte)
        if byte < 0x80:
            kinds[byte] = ord("a" if mark.isalpha() else "d" if mark.isdigit() else "p")
        elif byte < 0xC0:
            kinds[byte] = ord("c")
        elif 0xC2 <= byte <= 0xCA or 0xCE <= byte <= 0xD3:
            kinds[byte] = ord("e")
        elif 0xE3 <= byte <= 0xED or byte == 0xEF:
            kinds[byte] = ord("k")
    for marks, kind in ((b" ", "s"), (b"\n\r", "n"), (b"\t", "t"), (b".,'\"-:!?", "q"), (b"\xe2", "q")):
        for byte in marks:
            kinds[byte] = ord(kind)
    return bytes(kinds)


_KINDS: Final = _table()


def classify(sample: bytes) -> Category:
    """`sample` is not empty."""
    kinds = sample.translate(_KINDS)
    count, size = kinds.count, len(sample)
    if 3 * count(b"k") >= 0.3 * size:
        return Category.CJK
    if 2 * count(b"o") >= 0.2 * size:
        return Category.MIXED
    marks, letters = count(b"p"), count(b"a") + count(b"e")
    blanks = count(b"s") + count(b"n") + count(b"t")
    if blanks < 0.04 * size or count(b"d") >= 0.2 * size:
        return Category.MIXED
    if marks >= 0.09 * (letters + marks):
        return Category.CODE
    return Category.PROSE
