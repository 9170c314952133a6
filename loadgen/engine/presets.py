"""Named engine sizes, each with the arithmetic it rests on. Pure values: nothing is measured here."""

from __future__ import annotations

from dataclasses import replace

from loadgen.engine.iteration_cost import KvCost, LinearCost
from loadgen.engine.model import EngineConfig, NewTokenReservation

_US = 1_000
_MS = 1_000_000

LLAMA_31_8B_L4 = EngineConfig(
    cost=LinearCost(base_ns=54 * _MS, sequence_ns=450 * _US, prefill_token_ns=480 * _US),
    kv_blocks=2_200,
    context_tokens_max=16_384,
    sequences_max=256,
)
"""Llama-3.1-8B-Instruct in bf16 on one NVIDIA L4 (24 GB, 300 GB/s), the replica of SkyWalker's evaluation (§5.1).

Base: each iteration reads all weights, 8.03e9 parameters × 2 bytes = 16.1 GB, at 300 GB/s = 54 ms.
Sequence: keys and values are 32 layers × 8 KV heads × 128 × 2 × 2 bytes = 128 KiB a token, so that reading a context of
1,000 tokens takes 0.44 ms; 0.45 with sampling.
Prefill: "a 512-token prompt might incur around 300 ms" (§2.1): (300 - 54.45) / 512 = 0.48 ms a token.
Cache: 0.92 × 24.15 GB, less 16.1 GB of weights and 1.5 GB of activations and graphs, leaves 4.6 GB: 35,200 tokens, or
2,200 blocks. With 700 to 1,760 tokens a request that is 20 to 50 requests at once, the range the paper observed (§3.3);
memory is the limit, so `sequences_max` keeps vLLM's default. The context is what an operator would set for it, not the
model's 128 K.
"""

LLAMA_31_8B_L4_KV = replace(
    LLAMA_31_8B_L4,
    cost=KvCost(LinearCost(base_ns=54 * _MS, sequence_ns=20 * _US, prefill_token_ns=480 * _US), kv_token_ns=437),
)
"""The same replica, with the time that each context takes to read: 128 KiB a token at 300 GB/s = 437 ns. Sampling takes
20 µs a sequence."""

LLAMA_31_8B_L4_SGLANG = replace(
    LLAMA_31_8B_L4_KV, batch_tokens_max=2_048, prefill_chunk_tokens=2_048, reservation=NewTokenReservation()
)
"""The same, scheduled by SGLang, which SkyWalker's evaluation ran: chunks of 2,048 tokens, its default for a GPU with
less than 25 GB."""

LLAMA_31_8B_H100 = EngineConfig(
    cost=LinearCost(base_ns=4_800 * _US, sequence_ns=300 * _US, prefill_token_ns=32 * _US),
    kv_blocks=26_000,
    context_tokens_max=131_072,
    sequences_max=256,
    batch_tokens_max=2_048,
    prefill_chunk_tokens=2_048,
)
"""Llama-3.1-8B-Instruct in bf16 on one NVIDIA H100 (80 GB, 3.35 TB/s): for prompts of ten thousand tokens.

Base: 16.1 GB of weights at 3.35 TB/s = 4.8 ms. Sequence: 128 KiB a token, so a context of 8,000 tokens takes 0.3 ms to
read. Prefill: 16 GFLOP a token at half of 990 TFLOP/s = 0.032 ms. Cache: 0.92 × 80 GB, less 16.1 GB of weights and
3 GB of activations and graphs, leaves 54 GB: 416,000 tokens.
"""

TOKEN_BUDGET_A100 = EngineConfig(
    cost=LinearCost(base_ns=8 * _MS, sequence_ns=650 * _US, prefill_token_ns=0),
    kv_blocks=65_536,
    context_tokens_max=65_536,
    sequences_max=128,
    batch_tokens_max=512 + 128,
    prefill_chunk_tokens=512,
)
"""Llama-3-70B on A100-80GB, tensor parallel 2, as the token-budget paper simulates it (Appendix A, Eq. 9).

t = W + H · n with W = 8.0 ms and H = 0.65 ms; a chunk of up to 512 prefill tokens rides along with one token for each
decoding sequence and costs no more than its iteration; 65,536 blocks of 16 tokens; 128 slots is the short pool at
B_short ≤ 8192. Other pools are `dataclasses.replace` of this one: N_seq = min(128, 65536 // ceil(C_max / 16)).
"""

TINY = EngineConfig(
    cost=LinearCost(base_ns=4 * _MS, sequence_ns=500 * _US, prefill_token_ns=20 * _US),
    kv_blocks=512,
    context_tokens_max=4_096,
    sequences_max=8,
)
"""A made-up small engine for tests and the demo: 8 slots, 8,192 tokens of cache, about 1,000 tokens a second when full.

Small enough that a handful of clients fill it, and that a dozen of them run on a fraction of one core.
"""

PRESETS: dict[str, EngineConfig] = {
    "tiny": TINY,
    "llama-3.1-8b-l4": LLAMA_31_8B_L4,
    "llama-3.1-8b-l4-kv": LLAMA_31_8B_L4_KV,
    "llama-3.1-8b-l4-sglang": LLAMA_31_8B_L4_SGLANG,
    "llama-3.1-8b-h100": LLAMA_31_8B_H100,
    "token-budget-a100": TOKEN_BUDGET_A100,
}
