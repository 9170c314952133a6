"""Texts of an undisputed category; docs/results/token-budget-classifier.md has figures on real texts."""

from __future__ import annotations

import base64
import inspect
import json

import pytest

from gateway.core.vocabulary import Category
from gateway.request import classifying
from gateway.request.classifying import SAMPLE_BYTES, classify

C_SOURCE = (
    "static int\nfind(struct node *n, int key)\n{\n\tif (n == NULL)\n\t\treturn -1;\n\treturn n->keys[key];\n}\n" * 8
)
EXAMPLES = {
    "english": ("It was the best of times, it was the worst of times, it was the age of wisdom. " * 8, Category.PROSE),
    "german": ("Größe und Übermut tun selten gut, sagt man; doch wer hört schon darauf? " * 8, Category.PROSE),
    "russian": ("Все счастливые семьи похожи друг на друга, каждая несчастлива по-своему. " * 8, Category.PROSE),
    "chinese": ("今天的天气很好,我们去公园散步吧。" * 20, Category.CJK),
    "japanese": ("吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。" * 10, Category.CJK),
    "korean": ("모든 사람은 태어날 때부터 자유롭고 존엄과 권리에 있어 동등하다. " * 10, Category.CJK),
    "python": (inspect.getsource(classifying.classify), Category.CODE),
    "c": (C_SOURCE, Category.CODE),
    "json": (json.dumps([{"id": n, "name": "x", "tags": ["a", "b"]} for n in range(30)], indent=1), Category.CODE),
    "base64": (base64.b64encode(bytes(range(256)) * 4).decode(), Category.MIXED),
    "emoji": ("😀😁😂🤣" * 40, Category.MIXED),
    "arabic": ("يولد جميع الناس أحرارا متساوين في الكرامة والحقوق. " * 10, Category.MIXED),
    "numbers": ("3.14159 2.71828 1.41421 42 1729 65537 " * 20, Category.MIXED),
}


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_examples(name: str) -> None:
    text, category = EXAMPLES[name]
    assert classify(text.encode()[:SAMPLE_BYTES]) is category


@pytest.mark.parametrize("sample", [b"x", b"\xff", b"\x80\x80", bytes(range(256)), b" ", b"\n" * 1000])
def test_whatever_it_is_it_is_of_some_kind(sample: bytes) -> None:
    assert classify(sample) in Category
