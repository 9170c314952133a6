"""Measures the cost of an expert locality decision in a gateway: time from a prefill worker's message to the choice of
a decode worker, and bytes in the journal with a reduced signature or with all counts. Times are thread CPU time, so
other load on the machine does not count."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import zlib
from base64 import b64encode
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
from msgspec.structs import replace

from gateway.core.features.disaggregated.catalogue import BUILT_IN
from gateway.core.features.disaggregated.config import DecodeConfig, DecodePolicyName
from gateway.core.features.disaggregated.predictor import Facts
from gateway.core.features.disaggregated.tier import DecodeTier
from gateway.core.features.expert_locality.artifact import EldrArtifact, MoeShape
from gateway.core.features.expert_locality.catalogue import BY_EXPERTS
from gateway.core.features.expert_locality.signature import Comparer
from gateway.core.kernel.events import LegEnded
from gateway.core.vocabulary import Connector, LegResult, PoolKind, PoolName, PoolSpec, ReplicaId, RequestId
from gateway.features.expert_locality.expert_counts import read_counts
from loadgen.bench.relay.machine import is_core_compiled
from loadgen.figures import Figures
from mesh.clock import Clock
from mesh.journal_lines import encode_step
from mesh.steps import Step

LAYERS, EXPERTS = 48, 128
MASKED = 16
"""Layers in the mask, so that a signature has 2,048 dimensions: about as many as the paper's."""
_IN_FLIGHT = 30
_ALWAYS_NS = 1 << 60


def artifact_of(workers: int, masked: int = MASKED) -> EldrArtifact:
    """Synthetic artifact: the cost of a comparison does not depend on its values."""
    rng = np.random.default_rng(workers)
    rows = rng.uniform(0, 1, (workers, masked * EXPERTS)).astype("<f4")
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    idf = rng.uniform(0, 2, (LAYERS, EXPERTS)).astype("<f4")
    shape = MoeShape(LAYERS, EXPERTS, "m")
    return EldrArtifact(shape, tuple(range(masked)), idf.tobytes(), workers, rows.tobytes())


def told(seed: int, tokens: int = 600) -> bytes:
    """Message of a prefill worker's plug-in about a prompt with unequally used experts."""
    rng = np.random.default_rng(seed)
    shares = rng.gamma(0.4, 1.0, (LAYERS, EXPERTS))
    shares /= shares.sum(axis=1, keepdims=True)
    counts = np.minimum(rng.poisson(shares * tokens * 8), 65_535).astype("<u2")
    packed = b64encode(zlib.compress(counts.tobytes())).decode()
    document = {"v": 1, "layers": LAYERS, "experts": EXPERTS, "model": "m", "tokens": tokens, "counts": packed}
    return json.dumps(document, separators=(",", ":")).encode()


def costs_by_core(counts: Sequence[int], rounds: int) -> dict[tuple[int, str], Figures]:
    """Costs by number of workers and core, compiled (if available) and plain, each measured in a process of its own."""
    kinds = ["plain", "compiled"] if is_core_compiled() else ["plain"]
    return {(workers, kind): _measured(kind, workers, rounds) for workers in counts for kind in kinds}


def _measured(kind: str, workers: int, rounds: int) -> Figures:
    command = [sys.executable, "-m", "loadgen.studies.eldr.decision_child", kind, str(workers), str(rounds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603 - this Python
    figures: Figures = json.loads(done.stdout)
    return figures


def decision_costs(workers: int, rounds: int = 1_000) -> Figures:
    """Milliseconds of CPU time at the median and the 99th percentile: unpacking the message, comparing it, choosing a
    worker; and the three together."""
    comparer = Comparer(artifact_of(workers))
    tier = _busy_tier(workers, comparer, min(_IN_FLIGHT, rounds // 4))
    words = [told(seed) for seed in range(20)]
    clock = Clock()
    parts: dict[str, list[int]] = {"unpacked": [], "compared": [], "chosen": [], "all": []}
    for number in range(rounds):
        begun_ns = clock.thread_ns()
        counts = read_counts(words[number % len(words)])
        read_ns = clock.thread_ns()
        nearness = comparer.nearness(counts.counts, counts.model)
        compared_ns = clock.thread_ns()
        key = RequestId(f"q{number}")
        tier.add(Facts(key, 600, nearness=nearness), 0, _ALWAYS_NS)
        chosen_ns = clock.thread_ns()
        tier.ended(key, 0)
        for name, took_ns in (
            ("unpacked", read_ns - begun_ns),
            ("compared", compared_ns - read_ns),
            ("chosen", chosen_ns - compared_ns),
            ("all", chosen_ns - begun_ns),
        ):
            parts[name].append(took_ns)
    return {
        name: {"p50_ms": median(took) / 1e6, "p99_ms": sorted(took)[int(len(took) * 0.99)] / 1e6}
        for name, took in parts.items()
    }


def _busy_tier(workers: int, comparer: Comparer, in_flight: int) -> DecodeTier:
    spec = PoolSpec(PoolName("pd"), PoolKind.DISAGGREGATED, Connector.NIXL, 256)
    config = DecodeConfig(DecodePolicyName.ELDR)
    tier = DecodeTier(config, spec, random.Random(1), policies=BUILT_IN | BY_EXPERTS)
    for number in range(workers):
        tier.join(ReplicaId(f"w{number:03}"), "", 0)
    tier.take_artifact(comparer.digest, comparer.clusters, 0)
    for number in range(workers * in_flight):
        tier.add(Facts(RequestId(f"before {number}"), 600), 0, _ALWAYS_NS)
    return tier


def journal_bytes(workers: int) -> Figures:
    """Size of the journal line of a prefill's end: without expert locality, and the additions for cosines, for packed
    counts and for unpacked counts."""
    plain = LegEnded(RequestId("0123456789abcdef"), 1, 1, LegResult.COMPLETED, prompt_tokens=600)
    words = told(1)
    counts = read_counts(words)
    near = Comparer(artifact_of(workers)).nearness(counts.counts, counts.model)
    size = _line(plain)
    return {
        "plain": size,
        "cosines": _line(replace(plain, nearness=near)) - size,
        "counts_packed": len(words),
        "counts_unpacked": len(b64encode(counts.counts.tobytes())),
        "encode_cosines_ms": _encode_ms(replace(plain, nearness=near)),
        "encode_counts_ms": _encode_ms(replace(plain, detail=words.decode())),
    }


def _line(event: LegEnded) -> int:
    return len(encode_step(Step(1, event, [])))


def _encode_ms(event: LegEnded, rounds: int = 300) -> float:
    clock = Clock()
    return _median_ms(lambda: encode_step(Step(1, event, [])), clock, rounds)


def _median_ms(call: Callable[[], object], clock: Clock, rounds: int) -> float:
    took = []
    for _ in range(rounds):
        begun_ns = clock.thread_ns()
        call()
        took.append(clock.thread_ns() - begun_ns)
    return median(took) / 1e6
