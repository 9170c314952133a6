"""Estimate how many tokens a request will come to, learnt from the counts that engines reported for earlier requests;
no tokenizer, no text.

Underestimation is expensive (the request goes where it does not fit), overestimation is cheap, so estimates are on the
high side. The choice of the pool is made elsewhere. (Token-budget-aware pool routing, §2.1; where this module departs
from it, the reason stands beside it.)
"""

from __future__ import annotations

from math import ceil, exp2, log2
from typing import Final

from gateway.core.features.lengths.config import TokenBudgetConfig
from gateway.core.features.lengths.events import LearntLengths, LearntRatio, TokenBudgetSnapshot
from gateway.core.value import value
from gateway.core.vocabulary import Category, ModelName, RequestProfile, TenantName

RATIO_MIN: Final = 1.0
"""Least bytes per token: a text token is at least one byte."""
RATIO_MAX: Final = 8.0
"""Most bytes per token: no language has more. Long runs of blanks do, and are not modelled."""
_CJK_START_MAX: Final = 2.0
"""Upper bound of the start ratio for CJK text. The paper starts CJK like all else, at twice its measured ratio, which
is the expensive error."""
_FAR: Final = 4.0
"""Mean deviations from the mean at which an observation is capped."""
_DEVIATION_MIN_SHARE: Final = 0.1
"""Share of the mean that counts as the least deviation for that cap. Persistent differences widen the deviation, and
are then followed."""
_KNOWN_WEIGHT: Final = 4.0
"""Weight below which observations are not capped."""
_TENANT_WEIGHT: Final = 8.0
"""Weight from which a tenant's own ratio is used."""
_START_WEIGHT: Final = 0.05
"""Weight of the start ratio: the first observation practically replaces it."""
_UNSURE_SHARE: Final = 0.25
"""Deviation assumed after a single observation, as a share of the mean."""
_LIGHT_BYTES: Final = 256
"""Prompt size in bytes that has half the weight of a long prompt: what the engine adds around a short prompt weighs
more than its text."""
_LIGHT_BYTES_A_TOKEN: Final = 16
"""Bytes added to `_LIGHT_BYTES` for each prompt token that comes from no text, since such tokens are only estimated."""
_ABSURD: Final = 16.0
"""Factor beyond the bounds at which a reported count is discarded."""
_MODELS_MAX: Final = 4096
"""Most pairs of model and category."""
_BUCKETS_AN_OCTAVE: Final = 4
_BUCKETS: Final = 1 + 20 * _BUCKETS_AN_OCTAVE
_LENGTHS_MAX: Final = 1024
"""Answers counted before all counts are halved."""
_LENGTHS_KNOWN: Final = 20
"""Answers needed before their lengths are used."""
NO_TENANT: Final = TenantName("")
"""Tenant name of the ratios that all tenants share."""


@value
class Estimate:
    """Estimated tokens of one request."""

    prompt_tokens: int
    output_tokens: int
    is_soft: bool
    """The client set no maximum, so the answer may be longer than estimated."""

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


class Ratio:
    """Bytes per token: an exponentially weighted mean and mean deviation."""

    __slots__ = ("deviation", "mean", "weight")

    def __init__(self, mean: float, deviation: float = 0.0, weight: float = 0.0) -> None:
        self.mean = mean
        self.deviation = deviation
        self.weight = weight
        """Number of observations in the mean, bounded by the decay."""

    def cautious(self, caution: float) -> float:
        """Conservative ratio c* = ĉ − γ·σ̂."""
        return max(RATIO_MIN, self.mean - caution * self.deviation)

    def learn(self, seen: float, weight: float, decay: float) -> None:
        """Learn one more observation: its bytes per token, and its weight, at most 1.

        The effective β rises with the number of observations, up to `decay`: with constant β the average would still
        depend on its start value after 50 observations.
        """
        seen = min(max(seen, RATIO_MIN), RATIO_MAX)
        if self.weight >= _KNOWN_WEIGHT:
            far = _FAR * max(self.deviation, _DEVIATION_MIN_SHARE * self.mean)
            seen = min(max(seen, self.mean - far), self.mean + far)
        if self.weight > 0.0:
            share = weight / (self.weight + weight)
            self.deviation += share * (abs(seen - self.mean) - self.deviation)
        self.mean += weight / (max(self.weight, _START_WEIGHT) + weight) * (seen - self.mean)
        if self.weight == 0.0:
            self.deviation = _UNSURE_SHARE * self.mean
        self.weight = min(self.weight + weight, decay / (1.0 - decay))


class AnswerLengths:
    """Histogram of the lengths of answers without a maximum."""

    __slots__ = ("_counts", "_total")

    def __init__(self, counts: tuple[int, ...] = (0,) * _BUCKETS) -> None:
        self._counts = list(counts)
        self._total = sum(self._counts)

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(self._counts)

    def learn(self, tokens: int) -> None:
        if self._total >= _LENGTHS_MAX:
            self._counts = [count // 2 for count in self._counts]
            self._total = sum(self._counts)
        self._counts[_bucket_of(tokens)] += 1
        self._total += 1

    def quantile(self, share: float) -> int | None:
        """Number of tokens that this share of the answers did not exceed; None while too few are known."""
        if self._total < _LENGTHS_KNOWN:
            return None
        left = share * self._total
        for bucket, count in enumerate(self._counts):
            left -= count
            if left <= 0.0:
                return _tokens_of(bucket)
        return _tokens_of(_BUCKETS - 1)


class TokenBudget:
    """Token estimates of one gateway, over all models."""

    def __init__(self, config: TokenBudgetConfig) -> None:
        self._config = config
        self._shared: dict[tuple[ModelName, Category], Ratio] = {}
        self._own: dict[tuple[ModelName, TenantName, Category], Ratio] = {}
        self._lengths: dict[tuple[ModelName, Category], AnswerLengths] = {}
        # All three are ordered by their last observation, oldest first.
        self.observed = 0
        """Number of observations learnt."""

    def configure(self, config: TokenBudgetConfig) -> None:
        """Apply a changed config; everything learnt is kept, up to the new `tenants_max`."""
        self._config = config
        while len(self._own) > config.tenants_max:
            del self._own[next(iter(self._own))]

    def estimate(self, profile: RequestProfile) -> Estimate:
        """Estimate the request's tokens, with a few dictionary look-ups."""
        prompt_tokens = ceil(text_bytes_of(profile) / self.bytes_a_token(profile)) + profile.extra_prompt_tokens
        if profile.output_tokens_max is not None:
            return Estimate(prompt_tokens, profile.output_tokens_max, is_soft=False)
        return Estimate(prompt_tokens, self._output_tokens(profile), is_soft=True)

    def bytes_a_token(self, profile: RequestProfile) -> float:
        """Ratio to use for a request: the tenant's own once it has enough weight, else the ratio shared by all
        tenants."""
        model, category = profile.model, profile.category
        own = self._own.get((model, profile.tenant, category))
        if own is not None and own.weight >= _TENANT_WEIGHT:
            return own.cautious(self._config.caution)
        shared = self._shared.get((model, category))
        if shared is not None and shared.weight > 0.0:
            return shared.cautious(self._config.caution)
        return self._start(category)

    def observe(
        self,
        profile: RequestProfile,
        prompt_tokens: int | None,
        output_tokens: int | None,
        was_cut: bool = False,
    ) -> None:
        """Learn from the counts that the engine reported; None or absurd values are ignored. `was_cut`: the answer was
        cut by the pool's limit and would have been longer."""
        if profile.is_control:
            return
        if prompt_tokens is not None:
            self._learn_prompt(profile, prompt_tokens)
        if output_tokens is not None and output_tokens > 0 and profile.output_tokens_max is None:
            self._learn_output(profile, 2 * output_tokens if was_cut else output_tokens)

    def ratios(self) -> dict[tuple[ModelName, Category], float]:
        """Conservative ratios used for tenants without an own one."""
        return {key: ratio.cautious(self._config.caution) for key, ratio in self._shared.items()}

    def snapshot(self) -> TokenBudgetSnapshot:
        shared = [_learnt(model, NO_TENANT, category, each) for (model, category), each in self._shared.items()]
        own = [_learnt(model, tenant, category, each) for (model, tenant, category), each in self._own.items()]
        lengths = [LearntLengths(model, category, each.counts) for (model, category), each in self._lengths.items()]
        return TokenBudgetSnapshot((*shared, *own), tuple(lengths))

    def restore(self, snapshot: TokenBudgetSnapshot) -> None:
        """Restore a snapshot before anything is learnt. Entries out of bounds are left out."""
        for each in snapshot.ratios:
            if _is_sound(each):
                ratio = Ratio(each.mean, each.deviation, each.weight)
                if each.tenant == NO_TENANT:
                    self._keep_shared(each.model, each.category, ratio)
                else:
                    self._keep_own(each.model, each.tenant, each.category, ratio)
        for known in snapshot.lengths:
            if len(known.counts) == _BUCKETS and min(known.counts) >= 0 and sum(known.counts) <= _LENGTHS_MAX:
                self._keep_lengths(known.model, known.category, AnswerLengths(known.counts))

    # Internals

    def _start(self, category: Category) -> float:
        start = self._config.ratio_start
        return min(start, _CJK_START_MAX) if category is Category.CJK else start

    def _output_tokens(self, profile: RequestProfile) -> int:
        known = self._lengths.get((profile.model, profile.category))
        tokens = None if known is None else known.quantile(self._config.output_share)
        return self._config.output_start_tokens if tokens is None else tokens

    def _learn_prompt(self, profile: RequestProfile, prompt_tokens: int) -> None:
        """Learn from a prompt, unless it follows a stored response, whose content the engine counts but the gateway
        does not see."""
        text_bytes, extra = text_bytes_of(profile), profile.extra_prompt_tokens
        if text_bytes <= 0 or prompt_tokens <= 0 or profile.follows:
            return
        seen = text_bytes / max(1, prompt_tokens - extra)
        if not RATIO_MIN / _ABSURD <= seen <= RATIO_MAX * _ABSURD:
            return
        weight = text_bytes / (text_bytes + _LIGHT_BYTES + _LIGHT_BYTES_A_TOKEN * extra)
        model, tenant, category = profile.model, profile.tenant, profile.category
        shared = self._shared.pop((model, category), None)
        if shared is None:
            shared = Ratio(self._start(category))
        own = self._own.pop((model, tenant, category), None)
        if own is None:
            own = Ratio(self._start(category))
        self.observed += 1
        shared.learn(seen, weight, self._config.decay)
        own.learn(seen, weight, self._config.decay)
        self._keep_shared(model, category, shared)
        self._keep_own(model, tenant, category, own)

    def _learn_output(self, profile: RequestProfile, tokens: int) -> None:
        lengths = self._lengths.pop((profile.model, profile.category), None)
        if lengths is None:
            lengths = AnswerLengths()
        self.observed += 1
        lengths.learn(tokens)
        self._keep_lengths(profile.model, profile.category, lengths)

    def _keep_shared(self, model: ModelName, category: Category, ratio: Ratio) -> None:
        if len(self._shared) >= _MODELS_MAX:
            del self._shared[next(iter(self._shared))]
        self._shared[model, category] = ratio

    def _keep_own(self, model: ModelName, tenant: TenantName, category: Category, ratio: Ratio) -> None:
        if len(self._own) >= self._config.tenants_max:
            del self._own[next(iter(self._own))]
        self._own[model, tenant, category] = ratio

    def _keep_lengths(self, model: ModelName, category: Category, lengths: AnswerLengths) -> None:
        if len(self._lengths) >= _MODELS_MAX:
            del self._lengths[next(iter(self._lengths))]
        self._lengths[model, category] = lengths


def text_bytes_of(profile: RequestProfile) -> int:
    return profile.text_bytes or profile.prompt_bytes


def _learnt(model: ModelName, tenant: TenantName, category: Category, ratio: Ratio) -> LearntRatio:
    return LearntRatio(model, tenant, category, ratio.weight, ratio.mean, ratio.deviation)


def _is_sound(learnt: LearntRatio) -> bool:
    """Return whether the values are within bounds; NaN is not."""
    return (
        RATIO_MIN <= learnt.mean <= RATIO_MAX and 0.0 <= learnt.deviation <= RATIO_MAX and 0.0 < learnt.weight <= 1000.0
    )


def _bucket_of(tokens: int) -> int:
    """First bucket whose bound is at least `tokens`."""
    return min(_BUCKETS - 1, ceil(_BUCKETS_AN_OCTAVE * log2(max(1, tokens))))


def _tokens_of(bucket: int) -> int:
    return ceil(exp2(bucket / _BUCKETS_AN_OCTAVE))
