"""ExactMatch: Survival among answers to the same prompt, or to prompts about as long; on a miss, Survival of all.

It sees no prompt: only a hash of one, or its length. Source: BalanceRoute, Appendix C.2.1.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from gateway.core.decode.predictor import Numbers
from gateway.core.decode.predictors.arrays import (
    KEYS_MAX,
    LENGTHS_MAX,
    ExactMatchArrays,
    PromptKey,
    UnusableArrays,
)
from gateway.core.decode.predictors.estimator import KEY_MAX, UNKNOWN_PROMPT, Ages, Estimator, Features
from gateway.core.decode.predictors.history import Ended
from gateway.core.decode.predictors.survival import Survival, check_lengths, fit_survival


class ExactMatch(Estimator):
    """Raises UnusableArrays for arrays that are not what they should be."""

    def __init__(self, arrays: ExactMatchArrays) -> None:
        _check(arrays)
        self._everybody = Survival(arrays.everybody)
        self._by_length = arrays.key_kind is PromptKey.LENGTH
        self._bounds = list(arrays.keys) if self._by_length else []
        self._part = dict(zip(arrays.keys, pairwise((0, *arrays.ends)), strict=True))
        """By key, where its lengths begin and end."""
        self._tokens = list(arrays.output_tokens)
        self._sums = [0, *accumulate(self._tokens)]

    def estimate(self, ages: Ages, features: list[Features], horizon: int) -> tuple[Numbers, Numbers]:
        """An answer that is longer than any before it to the same prompt is a miss as well."""
        probability, tokens = self._everybody.estimate(ages, features, horizon)
        for number, (age, each) in enumerate(zip(ages.tolist(), features, strict=True)):
            part = self._part.get(self._key_of(each))
            if part is None:
                continue
            first = bisect_right(self._tokens, age, part[0], part[1])
            older = part[1] - first
            if not older:
                continue
            end = bisect_right(self._tokens, age + horizon, first, part[1])
            leaving = end - first
            probability[number] = leaving / older
            tokens[number] = (self._sums[end] - self._sums[first]) / leaving - age if leaving else horizon
        return probability, tokens

    def _key_of(self, features: Features) -> int:
        if not self._by_length:
            return features.prompt_key
        return self._bounds[max(0, bisect_right(self._bounds, features.prompt_tokens) - 1)]


def _check(arrays: ExactMatchArrays) -> None:
    keys, ends, tokens = arrays.keys, arrays.ends, arrays.output_tokens
    if len(keys) != len(ends) or len(keys) > KEYS_MAX:
        raise UnusableArrays(f"{len(keys)} keys, {len(ends)} ends: should be as many, and at most {KEYS_MAX}")
    if not keys and arrays.key_kind is PromptKey.LENGTH:
        raise UnusableArrays("keys: there is no bucket of lengths")
    if any(after <= before for before, after in pairwise(keys)) or (keys and not 0 <= keys[0] <= keys[-1] <= KEY_MAX):
        raise UnusableArrays("keys: should be in ascending order, each once")
    if len(tokens) > LENGTHS_MAX:
        raise UnusableArrays(f"output_tokens: {len(tokens)} lengths are more than {LENGTHS_MAX}")
    starts = (0, *ends)
    if starts[-1] != len(tokens) or any(end <= start for start, end in pairwise(starts)):
        raise UnusableArrays("ends: should ascend to the number of output_tokens")
    for key, (start, end) in zip(keys, pairwise(starts), strict=True):
        check_lengths(tokens[start:end], f"output_tokens of key {key}")


# Fitting


def fit_exact_match(
    ended: Sequence[Ended], key_kind: PromptKey, *, buckets: int = 16, answers_min: int = 1, keys_max: int = KEYS_MAX
) -> ExactMatchArrays:
    """Of at least one request. A prompt with fewer answers than `answers_min` has no key of its own; where there are
    more keys than are kept, those with the most answers are."""
    assert ended, "nothing can be fitted to nothing"
    by_length = key_kind is PromptKey.LENGTH
    grouped = _by_length(ended, buckets) if by_length else _by_prompt(ended, answers_min, keys_max)
    keys = sorted(grouped)
    parts = [sorted(grouped[key]) for key in keys]
    ends = tuple(accumulate(map(len, parts)))
    tokens = tuple(length for part in parts for length in part)
    return ExactMatchArrays(fit_survival(each.output_tokens for each in ended), key_kind, tuple(keys), ends, tokens)


def _by_prompt(ended: Iterable[Ended], answers_min: int, keys_max: int) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for each in ended:
        if each.prompt_key != UNKNOWN_PROMPT:
            found.setdefault(each.prompt_key, []).append(each.output_tokens)
    enough = [key for key, lengths in found.items() if len(lengths) >= answers_min]
    enough.sort(key=lambda key: (-len(found[key]), key))
    return {key: found[key] for key in enough[:keys_max]}


def _by_length(ended: Sequence[Ended], buckets: int) -> dict[int, list[int]]:
    """Each bucket by its shortest prompt; equally long ones are never apart, so there may be fewer buckets."""
    ordered = sorted(each.prompt_tokens for each in ended)
    bounds = sorted({ordered[len(ordered) * number // buckets] for number in range(buckets)})
    found: dict[int, list[int]] = {bound: [] for bound in bounds}
    for each in ended:
        found[bounds[bisect_right(bounds, each.prompt_tokens) - 1]].append(each.output_tokens)
    return found
