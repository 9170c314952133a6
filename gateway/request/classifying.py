"""Which kind of text a few windows of a prompt are: code, prose, CJK, or something else. Pure.

Bytes are counted by what they are, which takes some microseconds, and nothing is parsed. The bounds were found on texts
whose kind is known by where they come from, and are measured on others: docs/results/token-budget-classifier.md.
"""

from __future__ import annotations

from typing import Final

from gateway.core.vocabulary import Category

SAMPLE_BYTES: Final = 512
"""Of a text; more of it tells hardly more."""


def _table() -> bytes:
    """What each byte is: a letter, d digit, s blank, n line's end, m mark that ends statements or binds names,
    p mark of code, q mark of prose; of UTF-8, e beginning of a letter of Europe, k of a character of China, Japan or
    Korea, o of any other, c what follows."""
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
    for marks, kind in ((b" \t", "s"), (b"\n", "n"), (b".,'\"-:!?", "q"), (b"={};", "m"), (b"\xe2", "q")):
        for byte in marks:
            kinds[byte] = ord(kind)
    return bytes(kinds)


_KINDS: Final = _table()


_CJK_SHARE: Final = 0.15
"""Of the bytes. What is written in China, Japan and Korea has much that is not."""
_OTHER_SHARE: Final = 0.2
_DIGITS_SHARE: Final = 0.2
_BLANKS_SHARE: Final = 0.04
"""With fewer it is no text of words: numbers in some base, or a script without blanks."""
_BLANKS_WITHIN_BYTES: Final = 128
"""They are what is dearest to count."""
_MARKS_WEIGHT: Final = 30.0
_STATEMENTS_WEIGHT: Final = 75.0
_INDENTED_WEIGHT: Final = 7.5
"""Of the share of lines that begin with a tab or with several blanks."""
_PROSE_BELOW: Final = 2.25
_CODE_FROM: Final = 6.0
"""Between the two stand half of one and half of the other."""


def classify(sample: bytes) -> Category:
    """`sample` is not empty."""
    count, size = sample.translate(_KINDS).count, len(sample)
    if 3 * count(b"k") >= _CJK_SHARE * size:
        return Category.CJK
    if 2 * count(b"o") >= _OTHER_SHARE * size or count(b"d") >= _DIGITS_SHARE * size:
        return Category.MIXED
    lines = count(b"n")
    looked = min(size, _BLANKS_WITHIN_BYTES)
    if count(b"s", 0, looked) + lines < _BLANKS_SHARE * looked:
        return Category.MIXED
    statements = count(b"m")
    score = (_MARKS_WEIGHT * (statements + count(b"p")) + _STATEMENTS_WEIGHT * statements) / size
    if lines:
        score += _INDENTED_WEIGHT * (sample.count(b"\n  ") + sample.count(b"\n\t")) / lines
    if score < _PROSE_BELOW:
        return Category.PROSE
    return Category.CODE if score >= _CODE_FROM else Category.MIXED
