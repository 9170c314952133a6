"""Writes docs/results/token-budget-classifier.md from the measurements. Every figure on it is computed elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from gateway.core.value import value
from gateway.core.vocabulary import Category
from loadgen.pages.markdown import NOTHING
from loadgen.studies.prompts.accuracy import ClassifiedDocuments
from loadgen.studies.prompts.convergence import ANSWERS, PAPER_RATIOS, THRESHOLD_TOKENS, Found
from loadgen.studies.prompts.texts import Document
from loadgen.studies.rendering import render

_PAPER_ERRORS = {Category.PROSE: 1.6, Category.CODE: 1.4, Category.CJK: 3.5, Category.MIXED: 1.8}
_PAPER_MISROUTED = {Category.PROSE: 0.3, Category.CODE: 0.2, Category.CJK: 0.8, Category.MIXED: 0.4}
_ORDER = (Category.PROSE, Category.CODE, Category.CJK, Category.MIXED)


@value
class PromptFigures:
    documents: list[Document]
    """All documents, with their tokens."""
    seen: list[ClassifiedDocuments]
    """Classifications of the documents that nothing was chosen on, and of texts synthesized from them."""
    cost_us: float
    drawn: dict[str, Found]
    """Results by rule."""
    texts: dict[str, dict[str, Found]]
    """Results by tokenizer, and by way of categorizing texts."""


def page_of(measured: PromptFigures) -> str:
    documents, tokenizers = measured.documents, list(measured.documents[0].tokens)
    aside = [each for each in documents if not each.is_for_choosing]
    languages: dict[tuple[int, str], list[Document]] = {}
    for each in documents:
        languages.setdefault((_ORDER.index(each.category), each.language), []).append(each)
    cjk = [each for each in documents if each.category is Category.CJK]

    def right(category: Category) -> str:
        seen = [each for each in measured.seen if each.category is category]
        whole = sum(each.documents for each in seen)
        return f"{sum(each.taken_for.get(category, 0) for each in seen) / whole:.1%}" if whole else NOTHING

    return render(
        "prompts/page.j2", measured=measured, documents=documents, order=_ORDER, right=right,
        chosen=len(documents) - len(aside), tokenizers=tokenizers, languages=sorted(languages.items()), ratio=_ratio,
        people=len({each.language for each in aside if each.category is not Category.CODE}),
        programs=len({each.language for each in aside if each.category is Category.CODE}),
        seen=sorted(measured.seen, key=lambda each: (_ORDER.index(each.category), each.language)),
        cjk=[_ratio(cjk, name) for name in tokenizers] if cjk else [0.0], drawn=measured.drawn, answers=ANSWERS,
        threshold_tokens=THRESHOLD_TOKENS, paper_ratios=PAPER_RATIOS, paper_errors=_PAPER_ERRORS,
        paper_misrouted=_PAPER_MISROUTED, mean=fmean, language_count=len({each.language for each in documents}),
    )  # fmt: skip


def _ratio(documents: Sequence[Document], tokenizer: str) -> float:
    return sum(len(each.text.encode()) for each in documents) / sum(each.tokens[tokenizer] for each in documents)
