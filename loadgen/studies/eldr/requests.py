"""Requests described by their experts: the picks for the prompt, and the probability of each pick for a token of the
answer. Values, whose meaning depends on their source. No two parts of a split share a document."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gateway.core.features.expert_locality.artifact import MoeShape
from gateway.features.expert_locality.fit.eldr_calibration import Calibration

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests in columns; each column has one entry per request."""

    documents: tuple[str, ...]
    domains: tuple[str, ...]
    prefill: npt.NDArray[np.uint16]
    """[requests, layers, experts]: tokens of the prompt that each expert was picked for."""
    decode: Floats
    """The same shape: the share of the answer's tokens that each expert is picked for."""
    prompt_tokens: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def shape(self) -> MoeShape:
        return MoeShape(self.prefill.shape[1], self.prefill.shape[2])

    def only(self, chosen: list[int]) -> Requests:
        at = np.array(chosen, np.intp)
        return Requests(
            tuple(self.documents[index] for index in chosen),
            tuple(self.domains[index] for index in chosen),
            self.prefill[at],
            self.decode[at],
            tuple(self.prompt_tokens[index] for index in chosen),
        )

    def calibration(self) -> Calibration:
        ids = tuple(f"{document}/{number}" for number, document in enumerate(self.documents))
        return Calibration(self.shape, ids, self.documents, self.domains, self.prefill, self.decode)


def split(requests: Requests, share: float) -> tuple[Requests, Requests]:
    """Calibration and test part. About `share` of the documents of each domain is for calibration, and each part has at
    least one where there are two."""
    by_domain: dict[str, list[str]] = {}
    for document, domain in sorted(set(zip(requests.documents, requests.domains, strict=True))):
        by_domain.setdefault(domain, []).append(document)
    chosen: set[str] = set()
    for documents in by_domain.values():
        documents.sort(key=_shuffled)
        chosen.update(documents[: max(1, min(len(documents) - 1, round(share * len(documents))))])
    inside = [number for number, document in enumerate(requests.documents) if document in chosen]
    outside = [number for number, document in enumerate(requests.documents) if document not in chosen]
    return requests.only(inside), requests.only(outside)


def _shuffled(document: str) -> bytes:
    return hashlib.blake2b(document.encode(), digest_size=8).digest()
