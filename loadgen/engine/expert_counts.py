"""Expert counts of a prompt: which experts an emulated model's gates pick for its tokens, in the plug-in's format.
There is no model: a token's experts follow from the token alone, so prompts with the same words share theirs.

Pure. A prompt has the same counts whether any of it was cached or not, like those of an engine that keeps counts by
block.
"""

from __future__ import annotations

import zlib
from base64 import b64encode
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.engine.tokens import TOKEN_BYTES, token_count

COUNTS_KEY = "nightside_expert_counts"
_ODD = 0x9E3779B1
_SHIFT = 16
_MOST = 65_535


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """Size of the emulated model's mixture of experts."""

    layers: int
    experts: int
    picks: int
    """Experts of a layer to which each token is routed."""

    def __post_init__(self) -> None:
        assert self.layers > 0
        assert 0 < self.picks <= self.experts


def counts_of(prompt: bytes, shape: ExpertShape) -> npt.NDArray[np.uint16]:
    """Number of the prompt's tokens routed to each expert, by layer and expert, at most 65,535."""
    padded = prompt.ljust(token_count(prompt) * TOKEN_BYTES, b"\0")
    tokens = np.frombuffer(padded, "<u4").astype(np.uint64)
    apart = np.arange(shape.picks, dtype=np.uint64) * np.uint64(shape.experts // shape.picks)
    counts = np.zeros((shape.layers, shape.experts), np.int64)
    for layer in range(shape.layers):
        mixed = ((tokens + np.uint64(layer + 1)) * np.uint64(_ODD) * np.uint64(2 * layer + 1)) >> np.uint64(_SHIFT)
        picked = (mixed[:, None] + apart) % np.uint64(shape.experts)
        counts[layer] = np.bincount(picked.ravel().astype(np.int64), minlength=shape.experts)
    return np.minimum(counts, _MOST).astype(np.uint16)


def told_counts(prompt: bytes, shape: ExpertShape, model: str) -> dict[str, Any]:
    """Counts in the format in which the plug-in puts them into a hand-off."""
    packed = zlib.compress(counts_of(prompt, shape).astype("<u2").tobytes(), 1)
    return {
        "v": 1,
        "layers": shape.layers,
        "experts": shape.experts,
        "model": model,
        "tokens": token_count(prompt),
        "counts": b64encode(packed).decode(),
    }
