"""Reads recorded routing: the experts that a real model's gates picked for the tokens of documents of four domains. A
request is a window of a document, whose first half stands for a prompt and whose second half for its answer.

The recording has prompts only, so the answers are text of the same author: prompt and answer are more alike than with
generated answers, by an unknown amount.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from loadgen.studies.eldr.requests import Requests
from loadgen.traces.files import TraceError

PATTERN = "moe_routing/deepseek_v2_lite_routing.npz"
EXPERTS = 64
PICKS = 6
WINDOW = 128
_WINDOW_MIN = 48
_CELLS_MAX = 1 << 24


def read_recorded(path: Path) -> Requests:
    """Requests of a recording. Raises TraceError."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            names = sorted(name.removesuffix("_ids") for name in arrays.files if name.endswith("_ids"))
            told = {name: (arrays[f"{name}_ids"], arrays[f"{name}_seqlens"]) for name in names}
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise TraceError(f"{path}: cannot be read as recorded routing: {error}") from error
    if not told:
        raise TraceError(f"{path}: holds no domain's routing")
    documents: list[str] = []
    domains: list[str] = []
    prefill: list[npt.NDArray[np.uint16]] = []
    decode: list[npt.NDArray[np.float32]] = []
    tokens: list[int] = []
    for domain, (ids, lengths) in told.items():
        _check(path, domain, ids, lengths)
        start = 0
        for number, length in enumerate(lengths.tolist()):
            for first, middle, last in _windows(start, length):
                documents.append(f"{domain}/{number}")
                domains.append(domain)
                prefill.append(_counts(ids[:, first:middle]).astype(np.uint16))
                decode.append((_counts(ids[:, middle:last]) / (last - middle)).astype(np.float32))
                tokens.append(middle - first)
            start += length
    return Requests(tuple(documents), tuple(domains), np.stack(prefill), np.stack(decode), tuple(tokens))


def _windows(start: int, length: int) -> list[tuple[int, int, int]]:
    """Begin, middle and end of each window; the rest of a document is a window of its own if it is long enough."""
    found = []
    for first in range(start, start + length, WINDOW):
        last = min(first + WINDOW, start + length)
        if last - first >= _WINDOW_MIN:
            found.append((first, (first + last) // 2, last))
    return found


def _counts(picks: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Counts [layers, experts] of picks [layers, tokens, k]."""
    layers = len(picks)
    flat = picks.reshape(layers, -1).astype(np.int64) + np.arange(layers)[:, None] * EXPERTS
    return np.bincount(flat.ravel(), minlength=layers * EXPERTS).reshape(layers, EXPERTS)


def _check(path: Path, domain: str, ids: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64]) -> None:
    is_sound = ids.ndim == 3 and ids.size <= _CELLS_MAX and ids.size > 0 and int(ids.max()) < EXPERTS
    if not is_sound or lengths.ndim != 1 or int(lengths.sum()) != ids.shape[1] or int(lengths.min()) < 1:
        raise TraceError(f"{path}: {domain}: its picks and lengths do not fit each other")
