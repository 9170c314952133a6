"""Fitted predictors as plain arrays. Files, events and journals carry them.

No computation happens here. Arrays from a file are checked by the predictor that is made from them.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

LENGTHS_MAX = 200_000
"""Most output lengths of one predictor."""
KEYS_MAX = 50_000
NODES_MAX = 200_000
"""Most nodes of all trees of one forest."""
TREES_MAX = 2_000
DEPTH_MAX = 64
TOKENS_MAX = 1 << 24
"""Bound above any real output length; larger values are invalid."""


class UnusableArrays(ValueError):
    """Arrays that no predictor can be made from; the message gives the reason."""


class PredictorKind(StrEnum):
    """Method of estimation."""

    SURVIVAL = "survival"
    """Based on the lengths of all answers."""
    EXACT_MATCH = "exact_match"
    """Based on the lengths of answers to the same prompt, or to prompts of about the same length."""
    LEARNED = "learned"
    """Boosted trees over properties of the request and of recent ones."""


class PromptKey(StrEnum):
    """Key by which prompts count as the same."""

    PROMPT = "prompt"
    LENGTH = "length"
    """Prompts in one quantile bucket of lengths."""
    PROMPT_OR_LENGTH = "prompt_or_length"
    """Same prompt, or prompts of its length bucket if that prompt is unknown."""


class SurvivalArrays(Struct, frozen=True):
    output_tokens: tuple[int, ...]
    """Lengths in ascending order."""


class KeyedArrays(Struct, frozen=True):
    """Lengths of answers by key, concatenated."""

    keys: tuple[int, ...]
    """Keys in ascending order: hashes of prompts, or the shortest prompt of each bucket."""
    ends: tuple[int, ...]
    """End of each key's lengths in `output_tokens`; they begin at the end of the previous key's."""
    output_tokens: tuple[int, ...]
    """Lengths of one key after the other, each in ascending order."""


class ExactMatchArrays(Struct, frozen=True):
    everybody: SurvivalArrays
    by_prompt: KeyedArrays | None
    by_length: KeyedArrays | None


class ForestArrays(Struct, frozen=True):
    """Trees of one model, with all nodes concatenated. A leaf points to itself."""

    baseline: float
    roots: tuple[int, ...]
    feature: tuple[int, ...]
    threshold: tuple[float, ...]
    """Split value; values at or below it go left."""
    left: tuple[int, ...]
    right: tuple[int, ...]
    value: tuple[float, ...]


class LearnedArrays(Struct, frozen=True):
    horizon: int
    features: tuple[str, ...]
    """Names of the features in order, so that a program with other features cannot misread them."""
    leaves: ForestArrays
    """Forest of the log-odds of leaving within the horizon."""
    remains: ForestArrays
    """Forest of the remaining tokens of requests that leave within the horizon."""


PredictorArrays = SurvivalArrays | ExactMatchArrays | LearnedArrays
