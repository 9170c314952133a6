"""`nightside results token-budget-classifier`: measures the classifier's accuracy, and the convergence of token
ratios."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import click
import msgspec

from loadgen.studies.prompts.accuracy import cost_us, made_up, seen_of
from loadgen.studies.prompts.convergence import (
    CountedRequest,
    Learnt,
    PaperRule,
    Static,
    as_one,
    drawn,
    from_texts,
    over_seeds,
)
from loadgen.studies.prompts.page import PromptFigures, page_of
from loadgen.studies.prompts.texts import Document

_PAGE = Path("docs/results/token-budget-classifier.md")
_DRAWN_SEEDS, _DRAWN_REQUESTS = 50, 2000
_TEXT_SEEDS, _TEXT_REQUESTS = 5, 1500
_MADE_UP_SEED = 4


@click.command(name="token-budget-classifier")
@click.argument("documents", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=_PAGE,
    show_default=True,
    help="Write the page to this file.",
)
def token_budget_classifier(*, documents: Path, out: Path) -> None:
    """Measure the classifier's accuracy and the convergence of its ratios on DOCUMENTS, made by
    loadgen/studies/prompts/gather.sh; five minutes.

    Exit codes: 0 all was measured, 1 something cannot be read or written, 2 the command was used wrongly.
    """
    try:
        found = msgspec.json.decode(b"[%b]" % b",".join(documents.read_bytes().splitlines()), type=list[Document])
        if not found or not all(each.tokens for each in found):
            raise click.ClickException(f"{documents}: holds no documents with their tokens")
        out.write_text(page_of(measured(found)), encoding="utf-8")
    except (OSError, msgspec.DecodeError) as error:
        raise click.ClickException(f"{documents}: {error}") from error


def measured(
    documents: list[Document],
    *,
    drawn_seeds: int = _DRAWN_SEEDS,
    text_seeds: int = _TEXT_SEEDS,
    requests: int = _TEXT_REQUESTS,
) -> PromptFigures:
    aside = [each for each in documents if not each.is_for_choosing]
    mixtures = list(made_up(aside, random.Random(_MADE_UP_SEED)))
    rules: dict[str, Callable[[], PaperRule | Learnt]] = {"static": Static, "as written": PaperRule, "ours": Learnt}
    return PromptFigures(
        documents,
        seen_of([*aside, *mixtures]),
        cost_us(aside),
        {name: over_seeds(drawn, rule, seeds=drawn_seeds, requests=_DRAWN_REQUESTS) for name, rule in rules.items()},
        {
            tokenizer: {
                name: over_seeds(stream, rule, seeds=text_seeds, requests=requests)
                for name, stream, rule in _ways(aside, tokenizer)
            }
            for tokenizer in aside[0].tokens
        },
    )


Way = tuple[str, Callable[[random.Random], Iterator[CountedRequest]], Callable[[], PaperRule | Learnt]]


def _ways(documents: list[Document], tokenizer: str) -> list[Way]:
    looks = partial(from_texts, documents, tokenizer)
    return [
        ("static", looks, Static),
        ("nothing", lambda rng: as_one(looks(rng)), Learnt),
        ("looks", looks, Learnt),
        ("label", partial(looks, by_label=True), Learnt),
        ("looks, tenants", partial(looks, by_tenant=True), Learnt),
    ]
