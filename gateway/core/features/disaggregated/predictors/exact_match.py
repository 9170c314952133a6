"""ExactMatch: Survival among answers to the same prompt, or to prompts of about the same length; on a miss, Survival of
all.

Prompts are known only by hash or length. Source: BalanceRoute, Appendix C.2.1, which uses one of the two.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from gateway.core.features.disaggregated.predictor import Numbers
from gateway.core.features.disaggregated.predictors.arrays import (
    KEYS_MAX,
    LENGTHS_MAX,
    ExactMatchArrays,
    KeyedArrays,
    PromptKey,
    UnusableArrays,
)
from gateway.core.features.disaggregated.predictors.estimator import KEY_MAX, UNKNOWN_PROMPT, Ages, Estimator, Features
from gateway.core.features.disaggregated.predictors.history import Ended
from gateway.core.features.disaggregated.predictors.survival import Survival, check_lengths, fit_survival


class KeyedLengths:
    """Sorted lengths by key. Raises UnusableArrays for invalid arrays, with `name` in the message."""

    def __init__(self, arrays: KeyedArrays, name: str) -> None:
        _check(arrays, name)
        self._part = dict(zip(arrays.keys, pairwise((0, *arrays.ends)), strict=True))
        """Start and end of each key's lengths."""
        self._tokens = list(arrays.output_tokens)
        self._sums = [0, *accumulate(self._tokens)]

    def estimate(self, key: int, age: int, horizon: int) -> tuple[float, float] | None:
        """Probability of leaving and mean of the remaining tokens. None on a miss: an unknown key, or an age that none
        of the key's answers exceeded."""
        part = self._part.get(key)
        if part is None:
            return None
        first = bisect_right(self._tokens, age, part[0], part[1])
        older = part[1] - first
        if not older:
            return None
        end = bisect_right(self._tokens, age + horizon, first, part[1])
        leaving = end - first
        if not leaving:
            return 0.0, float(horizon)
        return leaving / older, (self._sums[end] - self._sums[first]) / leaving - age


class ExactMatch(Estimator):
    """ExactMatch estimator. Raises UnusableArrays for invalid arrays."""

    def __init__(self, arrays: ExactMatchArrays) -> None:
        self._overall = Survival(arrays.everybody)
        self._by_prompt = None if arrays.by_prompt is None else KeyedLengths(arrays.by_prompt, "by_prompt")
        self._by_length = None if arrays.by_length is None else KeyedLengths(arrays.by_length, "by_length")
        self._bounds = [] if arrays.by_length is None else list(arrays.by_length.keys)
        if arrays.by_length is not None and not self._bounds:
            raise UnusableArrays("by_length.keys: there is no bucket of lengths")

    def estimate(self, ages: Ages, features: list[Features], horizon: int) -> tuple[Numbers, Numbers]:
        probability, tokens = self._overall.estimate(ages, features, horizon)
        for number, (age, each) in enumerate(zip(ages.tolist(), features, strict=True)):
            found = self._find(each, age, horizon)
            if found is not None:
                probability[number], tokens[number] = found
        return probability, tokens

    def _find(self, features: Features, age: int, horizon: int) -> tuple[float, float] | None:
        found = None
        if self._by_prompt is not None:
            found = self._by_prompt.estimate(features.prompt_key, age, horizon)
        if found is None and self._by_length is not None:
            found = self._by_length.estimate(self._bucket_of(features.prompt_tokens), age, horizon)
        return found

    def _bucket_of(self, prompt_tokens: int) -> int:
        return self._bounds[max(0, bisect_right(self._bounds, prompt_tokens) - 1)]


def _check(arrays: KeyedArrays, name: str) -> None:
    keys, ends, tokens = arrays.keys, arrays.ends, arrays.output_tokens
    if len(keys) != len(ends) or len(keys) > KEYS_MAX:
        raise UnusableArrays(f"{name}: {len(keys)} keys, {len(ends)} ends: should be as many, and at most {KEYS_MAX}")
    if any(after <= before for before, after in pairwise(keys)) or (keys and not 0 <= keys[0] <= keys[-1] <= KEY_MAX):
        raise UnusableArrays(f"{name}.keys: should be in ascending order, each once")
    if len(tokens) > LENGTHS_MAX:
        raise UnusableArrays(f"{name}.output_tokens: {len(tokens)} lengths are more than {LENGTHS_MAX}")
    starts = (0, *ends)
    if starts[-1] != len(tokens) or any(end <= start for start, end in pairwise(starts)):
        raise UnusableArrays(f"{name}.ends: should ascend to the number of output_tokens")
    for key, (start, end) in zip(keys, pairwise(starts), strict=True):
        check_lengths(tokens[start:end], f"{name}.output_tokens of key {key}")


# Fitting


def fit_exact_match(
    ended: Sequence[Ended], key_kind: PromptKey, *, buckets: int = 16, answers_min: int = 1, keys_max: int = KEYS_MAX
) -> ExactMatchArrays:
    """Fit to at least one ended request. A prompt with fewer answers than `answers_min` gets no key of its own; at most
    `keys_max` prompts are kept, those with the most answers."""
    assert ended, "nothing can be fitted to nothing"
    by_prompt = _keyed(_by_prompt(ended, answers_min, keys_max)) if key_kind is not PromptKey.LENGTH else None
    by_length = _keyed(_by_length(ended, buckets)) if key_kind is not PromptKey.PROMPT else None
    return ExactMatchArrays(fit_survival(each.output_tokens for each in ended), by_prompt, by_length)


def _keyed(grouped: dict[int, list[int]]) -> KeyedArrays:
    keys = sorted(grouped)
    parts = [sorted(grouped[key]) for key in keys]
    tokens = tuple(length for part in parts for length in part)
    return KeyedArrays(tuple(keys), tuple(accumulate(map(len, parts))), tokens)


def _by_prompt(ended: Iterable[Ended], answers_min: int, keys_max: int) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for each in ended:
        if each.prompt_key != UNKNOWN_PROMPT:
            found.setdefault(each.prompt_key, []).append(each.output_tokens)
    enough = [key for key, lengths in found.items() if len(lengths) >= answers_min]
    enough.sort(key=lambda key: (-len(found[key]), key))
    return {key: found[key] for key in enough[:keys_max]}


def _by_length(ended: Sequence[Ended], buckets: int) -> dict[int, list[int]]:
    """Output lengths by bucket, with the bucket's shortest prompt as key. Prompts of equal length share a bucket, so
    there may be fewer than `buckets`."""
    ordered = sorted(each.prompt_tokens for each in ended)
    bounds = sorted({ordered[len(ordered) * number // buckets] for number in range(buckets)})
    found: dict[int, list[int]] = {bound: [] for bound in bounds}
    for each in ended:
        found[bounds[bisect_right(bounds, each.prompt_tokens) - 1]].append(each.output_tokens)
    return found
