"""Counts as JSON: what a hand-off carries, and the lines of a calibration file. Versioned, little-endian, deflated."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEY = "nightside_expert_counts"
"""Key in `kv_transfer_params`, both to ask for counts and to return them."""
CARRIED = "nightside_expert_counts_carried"
"""Attribute of a step's output that carries counts from a worker to the scheduler."""
DOCUMENT, DOMAIN = "document", "domain"
"""Keys in a request's `vllm_xargs`: the text that it is from, and the kind of that text."""
VERSION = 1
_LEVEL = 1
_CEILING = 65_535


def handed_over(counts: NDArray[np.uint32], tokens: int, model: str) -> dict[str, object]:
    """Return the counts as handed over. `counts`: layers by experts, over the prompt's tokens; more than 65,535 is
    given as 65,535."""
    layers, experts = counts.shape
    return {
        "v": VERSION,
        "layers": layers,
        "experts": experts,
        "model": model,
        "tokens": tokens,
        "counts": _packed(_saturated(counts)),
    }


@dataclass(frozen=True, slots=True)
class Label:
    """Labels that calibration gives a request. Without a document, the request's id stands for one."""

    document: str = ""
    domain: str = ""


def label_of(extra: Mapping[str, object]) -> Label:
    """Return a request's labels. `extra`: the request's `vllm_xargs`."""
    return Label(str(extra.get(DOCUMENT, "")), str(extra.get(DOMAIN, "")))


def calibration_line(
    request_id: str, label: Label, model: str, *, prefill: NDArray[np.uint32], decode: NDArray[np.uint32], steps: int
) -> str:
    """Return one line of a calibration file. `decode`: summed over `steps` steps of one token each."""
    layers, experts = prefill.shape
    line = {
        "v": VERSION,
        "id": request_id,
        "document": label.document or request_id,
        "model": model,
        "layers": layers,
        "experts": experts,
        "prefill": _packed(_saturated(prefill)),
        "decode": _packed(decode.astype("<u4")),
        "steps": steps,
    }
    if label.domain:
        line["domain"] = label.domain
    return json.dumps(line, separators=(",", ":"))


def adds_up(counts: NDArray[np.uint32], tokens: int, top_k: int) -> bool:
    """Tell whether each layer has as many picks as that many tokens make. A prompt that grew since it was counted has
    more."""
    return bool((counts.sum(axis=1) == tokens * top_k).all())


def is_asked_for(kv_transfer_params: object) -> bool:
    """Counts are for requests that hand over their prompt and for those that ask for counts by name; other requests do
    not pay for them."""
    is_handed_over = isinstance(kv_transfer_params, dict) and kv_transfer_params.get("do_remote_decode") is True
    return is_handed_over or is_asked_for_by_name(kv_transfer_params)


def is_asked_for_by_name(kv_transfer_params: object) -> bool:
    return isinstance(kv_transfer_params, dict) and kv_transfer_params.get(KEY) is True


def _saturated(counts: NDArray[np.uint32]) -> NDArray[Any]:
    return np.minimum(counts, _CEILING).astype("<u2")


def _packed(counts: NDArray[Any]) -> str:
    return base64.b64encode(zlib.compress(counts.tobytes(), _LEVEL)).decode("ascii")
