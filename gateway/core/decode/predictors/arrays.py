"""What a fitted predictor comes down to: plain arrays, as values. They travel in files, events and journals.

Nothing here computes. Whoever takes arrays from a file has them checked by the predictor that is made of them.
"""

from __future__ import annotations

from enum import StrEnum

from gateway.core.value import value

LENGTHS_MAX = 200_000
"""Output lengths that one predictor keeps."""
KEYS_MAX = 50_000
NODES_MAX = 200_000
"""Of all trees of one forest."""
TREES_MAX = 2_000
DEPTH_MAX = 64
TOKENS_MAX = 1 << 24
"""More than any model generates: what is larger is no length."""


class UnusableArrays(ValueError):
    """Arrays that no predictor can be made of, in words."""


class PredictorKind(StrEnum):
    """How it estimates."""

    SURVIVAL = "survival"
    """From the lengths of all answers."""
    EXACT_MATCH = "exact_match"
    """From the lengths of answers to the same prompt, or to prompts about as long."""
    LEARNED = "learned"
    """By boosted trees over what is known of the request and of recent ones."""


class PromptKey(StrEnum):
    """Which prompts count as the same."""

    PROMPT = "prompt"
    LENGTH = "length"
    """Those of one quantile bucket of lengths."""
    PROMPT_OR_LENGTH = "prompt_or_length"
    """Those of its length, where there was no such prompt."""


@value
class SurvivalArrays:
    output_tokens: tuple[int, ...]
    """Ascending."""


@value
class KeyedArrays:
    """The lengths of answers by key, all behind each other."""

    keys: tuple[int, ...]
    """Ascending: hashes of prompts, or the shortest prompt of each bucket."""
    ends: tuple[int, ...]
    """Where the lengths of each key end in `output_tokens`; they begin where those of the key before it end."""
    output_tokens: tuple[int, ...]
    """Of one key after the other, each ascending."""


@value
class ExactMatchArrays:
    everybody: SurvivalArrays
    by_prompt: KeyedArrays | None
    by_length: KeyedArrays | None


@value
class ForestArrays:
    """The trees of one model, all nodes behind each other. A leaf points to itself."""

    baseline: float
    roots: tuple[int, ...]
    feature: tuple[int, ...]
    threshold: tuple[float, ...]
    """At or below it the way goes left."""
    left: tuple[int, ...]
    right: tuple[int, ...]
    value: tuple[float, ...]


@value
class LearnedArrays:
    horizon: int
    features: tuple[str, ...]
    """By name, in their order, so that no other program takes them for something else."""
    leaves: ForestArrays
    """The log-odds of leaving within the horizon."""
    remains: ForestArrays
    """Tokens that are still generated, of those who leave within it."""


PredictorArrays = SurvivalArrays | ExactMatchArrays | LearnedArrays
