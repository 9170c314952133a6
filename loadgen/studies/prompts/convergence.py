"""Token-budget paper, Table 4: the error of a ratio after 50 answers, and the share of requests routed to the wrong
pool.

Two streams of requests: the paper's, drawn around known ratios, under its rule and under the gateway's; and real texts
cut to the same lengths. Estimates come from the gateway's own `TokenBudget`.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean

from msgspec.structs import replace

from gateway.core.features.lengths.config import TokenBudgetConfig
from gateway.core.features.lengths.token_budget import NO_TENANT, TokenBudget
from gateway.core.value import value
from gateway.core.vocabulary import Category, ModelName, RequestId, RequestProfile, TenantName
from gateway.request.classifying import classify
from gateway.request.content import sample_of
from loadgen.studies.prompts.texts import Document

PAPER_RATIOS = {Category.PROSE: 4.48, Category.CODE: 3.52, Category.CJK: 2.01, Category.MIXED: 3.81}
THRESHOLD_TOKENS = 8192
"""B_short, the short pool's window."""
ANSWERS = 50
_NOISE = 0.15
"""Standard deviation of a text's ratio around its category's, as a share of that. The paper does not give its own."""
_LENGTHS = (64, 2048, 8192, 65536)
_SHARES = (0.80, 0.12, 0.08)
"""Shares of total tokens between those lengths: the paper's Azure load, from its published shares; uniform in between,
as there."""
_OUTPUT_SHARE, _OUTPUT_DEVIATION = 0.10, 0.05
_MODEL = ModelName("m")


@value
class CountedRequest:
    """A request with known tokens."""

    category: Category
    """Category that the classifier gives it."""
    text_bytes: int
    prompt_tokens: int
    output_tokens: int
    tenant: TenantName = NO_TENANT

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


@value
class Found:
    """Results of a stream of requests after the first `ANSWERS` of each category."""

    ratio_error: dict[Category, float]
    """Error of the ratio after the first `ANSWERS`."""
    requests: int
    misrouted: dict[Category, float]
    """Share of a category's requests that went to the short pool, which cannot serve them."""
    too_careful: float
    """Share of the requests that fit the short pool that went to the long one."""
    estimate_error: float
    """Mean relative error of the prompt's tokens."""


class Learnt:
    """The gateway's own estimator."""

    def __init__(self, config: TokenBudgetConfig | None = None) -> None:
        self.budget = TokenBudget(config or TokenBudgetConfig())

    def estimate(self, asked: CountedRequest) -> int:
        return self.budget.estimate(_profile(asked)).total_tokens

    def observe(self, asked: CountedRequest) -> None:
        self.budget.observe(_profile(asked), asked.prompt_tokens, asked.output_tokens)

    def ratio(self, category: Category) -> float:
        return next(
            each.mean
            for each in self.budget.snapshot().ratios
            if each.category is category and each.tenant == NO_TENANT
        )


class PaperRule:
    """Estimator by Eq. 3 to 5 as they are written: β from the first answer on, from 4.0, and σ from 0."""

    def __init__(self) -> None:
        self._mean = dict.fromkeys(Category, 4.0)
        self._deviation = dict.fromkeys(Category, 0.0)

    def estimate(self, asked: CountedRequest) -> int:
        ratio = max(1.0, self._mean[asked.category] - self._deviation[asked.category])
        return -int(-asked.text_bytes // ratio) + asked.output_tokens

    def observe(self, asked: CountedRequest) -> None:
        seen, category = asked.text_bytes / asked.prompt_tokens, asked.category
        self._mean[category] = 0.95 * self._mean[category] + 0.05 * seen
        off = abs(seen - self._mean[category])
        self._deviation[category] = 0.95 * self._deviation[category] + 0.05 * off

    def ratio(self, category: Category) -> float:
        return self._mean[category]


class Static(PaperRule):
    """Estimator with a constant of four bytes per token."""

    def observe(self, asked: CountedRequest) -> None:
        pass


def drawn(rng: random.Random) -> Iterator[CountedRequest]:
    """The paper's requests, without end."""
    categories = list(PAPER_RATIOS)
    while True:
        category = rng.choice(categories)
        ratio = PAPER_RATIOS[category] * rng.lognormvariate(0.0, _NOISE)
        prompt, output = lengths(rng)
        yield CountedRequest(category, max(1, round(prompt * ratio)), prompt, output)


def lengths(rng: random.Random) -> tuple[int, int]:
    """Tokens of a prompt and of its answer."""
    (bucket,) = rng.choices(range(len(_SHARES)), _SHARES)
    total = rng.uniform(_LENGTHS[bucket], _LENGTHS[bucket + 1])
    output = total * min(max(rng.gauss(_OUTPUT_SHARE, _OUTPUT_DEVIATION), 0.02), 0.95)
    return max(1, round(total - output)), max(1, round(output))


def from_texts(
    documents: Sequence[Document],
    tokenizer: str,
    rng: random.Random,
    *,
    by_label: bool = False,
    by_tenant: bool = False,
) -> Iterator[CountedRequest]:
    """Prompts of whole documents of one language, the last one cut; the tokens of a cut one are its share of the
    whole's. `by_label` takes categories from the documents instead of the classifier. `by_tenant` gives each language a
    tenant."""
    by_language: dict[str, list[Document]] = {}
    for each in documents:
        by_language.setdefault(each.language, []).append(each)
    languages = list(by_language)
    while True:
        language = rng.choice(languages)
        prompt_tokens, output = lengths(rng)
        text, tokens = _prompt(by_language[language], tokenizer, prompt_tokens, rng)
        category = by_language[language][0].category if by_label else classify(sample_of(text))
        yield CountedRequest(category, len(text), tokens, output, TenantName(language) if by_tenant else NO_TENANT)


def as_one(stream: Iterator[CountedRequest]) -> Iterator[CountedRequest]:
    """Stream in which all texts have the same category."""
    return (dataclasses.replace(each, category=Category.MIXED) for each in stream)


def _prompt(documents: Sequence[Document], tokenizer: str, wanted: int, rng: random.Random) -> tuple[bytes, int]:
    parts: list[bytes] = []
    tokens = 0
    while tokens < wanted:
        document = rng.choice(documents)
        text, counted = document.text.encode(), max(1, document.tokens[tokenizer])
        if tokens + counted > wanted:
            share = (wanted - tokens) / counted
            text, counted = text[: max(1, round(share * len(text)))], wanted - tokens
        parts.append(text)
        tokens += counted
    return b"".join(parts), tokens


def followed(stream: Iterable[CountedRequest], rule: PaperRule | Learnt, requests: int) -> Found:
    """Feed `requests` requests to the rule; results count after each category's first `ANSWERS`."""
    counts = dict.fromkeys(Category, 0)
    true_bytes, true_tokens = dict.fromkeys(Category, 0), dict.fromkeys(Category, 0)
    ratios: dict[Category, float] = {}
    sent: dict[Category, list[bool]] = {category: [] for category in Category}
    fitting: list[bool] = []
    errors: list[float] = []
    for number, asked in enumerate(stream):
        if number == requests:
            break
        category = asked.category
        counts[category] += 1
        if counts[category] > ANSWERS:
            estimate = rule.estimate(asked)
            errors.append(abs(estimate - asked.total_tokens) / asked.prompt_tokens)
            fits = asked.total_tokens <= THRESHOLD_TOKENS
            goes_short = estimate <= THRESHOLD_TOKENS
            sent[category].append(goes_short and not fits)
            if fits:
                fitting.append(not goes_short)
        rule.observe(asked)
        if counts[category] == ANSWERS:
            ratios[category] = rule.ratio(category)
        true_bytes[category] += asked.text_bytes
        true_tokens[category] += asked.prompt_tokens
    truth = {each: true_bytes[each] / true_tokens[each] for each in Category if true_tokens[each]}
    return Found(
        {each: abs(ratio / truth[each] - 1) for each, ratio in ratios.items()},
        len(errors),
        {each: fmean(found) for each, found in sent.items() if found},
        fmean(fitting),
        fmean(errors),
    )


def over_seeds(
    streams: Callable[[random.Random], Iterator[CountedRequest]],
    rules: Callable[[], PaperRule | Learnt],
    *,
    seeds: int,
    requests: int,
) -> Found:
    """Mean of several streams."""
    found = [followed(streams(random.Random(seed)), rules(), requests) for seed in range(seeds)]
    categories = [each for each in Category if all(each in one.ratio_error and each in one.misrouted for one in found)]
    return Found(
        {each: fmean(one.ratio_error[each] for one in found) for each in categories},
        sum(one.requests for one in found),
        {each: fmean(one.misrouted[each] for one in found) for each in categories},
        fmean(one.too_careful for one in found),
        fmean(one.estimate_error for one in found),
    )


_EMPTY = RequestProfile(
    RequestId("r"), _MODEL, NO_TENANT, prompt_bytes=1, prefix=b"", prefix_block_bytes=1, session_key="s", stream=True
)


def _profile(asked: CountedRequest) -> RequestProfile:
    return replace(
        _EMPTY,
        tenant=asked.tenant,
        category=asked.category,
        text_bytes=asked.text_bytes,
        output_tokens_max=asked.output_tokens,
    )
