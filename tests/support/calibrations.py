"""Small synthetic calibrations of expert locality: a few domains whose requests prefer experts of their own."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from pathlib import Path

import numpy as np

from gateway.core.features.expert_locality.artifact import MoeShape
from gateway.features.expert_locality.fit.eldr_calibration import Calibration


def calibration(
    requests: int = 48, domains: int = 3, layers: int = 4, experts: int = 12, *, told_by: int = 2, seed: int = 1
) -> Calibration:
    """Calibration in which the first `told_by` layers tell domains apart and the others pick experts at random. Each
    two requests share a document."""
    rng = np.random.default_rng(seed)
    home = np.arange(requests) // 2 % domains
    share = experts // domains
    chances = rng.gamma(0.2, 1.0, (requests, layers, experts))
    chances[:, :told_by] = 0.1
    for request, domain in enumerate(home):
        chances[request, :told_by, domain * share : (domain + 1) * share] = 6.0
    chances *= rng.uniform(0.8, 1.2, chances.shape)
    chances /= chances.sum(axis=2, keepdims=True)
    prefill = rng.poisson(chances * 90).astype(np.uint16)
    chances[:, told_by:] = 1.0 / experts  # the prompt's experts in these layers predict nothing about the answer's
    decode = (rng.poisson(chances * 200) / 200).astype(np.float32)
    return Calibration(
        MoeShape(layers, experts, "m"),
        tuple(f"r{number}" for number in range(requests)),
        tuple(f"text {number // 2}" for number in range(requests)),
        tuple(f"domain {number}" for number in home),
        prefill,
        decode,
    )


def write_calibration(path: Path, given: Calibration) -> Path:
    lines = []
    for at, name in enumerate(given.ids):
        document = {
            "v": 1,
            "id": name,
            "document": given.documents[at],
            "domain": given.domains[at],
            "layers": given.shape.layers,
            "experts": given.shape.experts,
            "model": given.shape.model,
            "steps": 200,
            "prefill": b64encode(zlib.compress(given.prefill[at].astype("<u2").tobytes())).decode(),
            "decode": b64encode(zlib.compress(np.round(given.decode[at] * 200).astype("<u4").tobytes())).decode(),
        }
        lines.append(json.dumps(document))
    path.write_text("\n".join(lines) + "\n")
    return path
