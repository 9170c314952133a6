"""Classifier of text by a few windows of a prompt: code, prose, CJK or mixed. Pure.

It counts bytes by kind, which takes some microseconds, and parses nothing. The thresholds were fitted on texts whose
kind is known from their source, and are evaluated on others: docs/results/token-budget-classifier.md.
"""

from __future__ import annotations

from typing import Final

from gateway.core.vocabulary import Category

SAMPLE_BYTES: Final = 512
"""Bytes of a sample; more hardly improve the result."""


def _table() -> bytes:
    """Table of byte kinds: a letter, d digit, s blank, n newline, m mark that ends statements or binds names, p mark of
    code, q mark of prose; in UTF-8, e first byte of a European letter, k of a Chinese, Japanese or Korean character, o
    of any other, c continuation byte."""
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
"""Share of bytes of CJK characters; CJK texts contain much else."""
_OTHER_SHARE: Final = 0.2
_DIGITS_SHARE: Final = 0.2
_BLANKS_SHARE: Final = 0.04
"""Smallest share of blanks in text of words; below it are numbers in some base, or a script without blanks."""
_BLANKS_WITHIN_BYTES: Final = 128
"""Bytes in which blanks are counted, the most expensive count."""
_MARKS_WEIGHT: Final = 30.0
_STATEMENTS_WEIGHT: Final = 75.0
_INDENTED_WEIGHT: Final = 7.5
"""Weight of the share of lines that begin with a tab or with several blanks."""
_PROSE_BELOW: Final = 2.25
_CODE_FROM: Final = 6.0
"""Scores of prose and code; between the two stand mixtures of both."""


def classify(sample: bytes) -> Category:
    """Classify a sample, which must not be empty."""
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
