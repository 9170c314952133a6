"""Measures the classifier's accuracy, and its cost. Pure but for the clock of the cost."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator, Sequence
from time import process_time_ns

from gateway.core.value import value
from gateway.core.vocabulary import Category
from gateway.request.classifying import classify
from gateway.request.content import sample_of
from loadgen.studies.prompts.texts import Document

_MIXTURES = 150
_MADE = 50
_ROUNDS = 9


@value
class ClassifiedDocuments:
    """Documents of one language, and the categories that the classifier gave them."""

    language: str
    category: Category
    taken_for: dict[Category, int]

    @property
    def documents(self) -> int:
        return sum(self.taken_for.values())

    @property
    def right(self) -> float:
        return self.taken_for.get(self.category, 0) / self.documents


def seen_of(documents: Sequence[Document]) -> list[ClassifiedDocuments]:
    found: dict[tuple[str, Category], ClassifiedDocuments] = {}
    for each in documents:
        seen = found.setdefault((each.language, each.category), ClassifiedDocuments(each.language, each.category, {}))
        taken_for = classify(sample_of(each.text.encode()))
        seen.taken_for[taken_for] = seen.taken_for.get(taken_for, 0) + 1
    return list(found.values())


def made_up(documents: Sequence[Document], rng: random.Random) -> Iterator[Document]:
    """Texts of no single kind: prose and code in turn, numbers, bytes in base64, emoji."""
    prose = [each.text for each in documents if each.category is Category.PROSE]
    code = [each.text for each in documents if each.category is Category.CODE]
    for number in range(_MIXTURES):
        first, second = rng.choice(prose), rng.choice(code)
        third = min(len(first), len(second)) // 3
        turns = (text[start : start + third] for start in (0, third, 2 * third) for text in (first, second))
        yield Document("prose and code in turn", Category.MIXED, str(number), "".join(turns), {})
    for number in range(_MADE):
        rows = "\n".join(" ".join(f"{rng.uniform(0, 1000):.3f}" for _ in range(8)) for _ in range(40))
        yield Document("numbers", Category.MIXED, str(number), rows, {})
        yield Document("base64", Category.MIXED, str(number), base64.b64encode(rng.randbytes(3000)).decode(), {})
        emoji = "".join(chr(rng.randrange(0x1F600, 0x1F640)) for _ in range(500))
        yield Document("emoji", Category.MIXED, str(number), emoji, {})


def cost_us(documents: Sequence[Document]) -> float:
    """Microseconds of CPU time per classification, sampling included; the best of several rounds over all documents."""
    texts = [each.text.encode() for each in documents]
    best = min(_round_ns(texts) for _ in range(_ROUNDS))
    return best / len(texts) / 1000


def _round_ns(texts: Sequence[bytes]) -> int:
    began_ns = process_time_ns()
    for text in texts:
        classify(sample_of(text))
    return process_time_ns() - began_ns
