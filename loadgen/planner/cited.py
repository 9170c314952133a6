"""Profiles that come with the planner, each with the sources of its figures. Values only; users add their own in a
file."""

from __future__ import annotations

from loadgen.engine.iteration_cost import LinearCost
from loadgen.planner.profiles import Gpu, GpuPrice, Model, Profile

_US = 1_000
_PAPER = "token-budget paper (arXiv 2604.09613)"
_PAPER_DATE = "2026-03-13"

LLAMA_3_70B_A100 = Profile(
    name="llama-3-70b-a100-tp2",
    source=f"{_PAPER}: §4.1 (model, GPU), Appendix A (Eq. 9's W = 8 ms and H = 0.65 ms, chunks of 512, 65,536 blocks,"
    " at most 128 slots). Weights: 70.6e9 parameters of 2 bytes over 2 GPUs",
    gpu=Gpu("NVIDIA A100 80 GB", 85.9e9, GpuPrice(2.21, f"{_PAPER}, §4.2, for p4d.24xlarge", _PAPER_DATE)),
    model=Model("Llama-3-70B-Instruct", 80, 8, 128, 2, 70.6e9),
    tensor_parallel=2,
    memory_used_share=0.9,
    cost=LinearCost(base_ns=8_000 * _US, sequence_ns=650 * _US, prefill_token_ns=0),
    context_tokens_max=65_536,
    prefill_chunk_tokens=512,
    sequences_max=128,
    kv_blocks=65_536,
)

QWEN3_235B_MI300X = Profile(
    name="qwen3-235b-mi300x-tp8",
    source=f"{_PAPER}, §4.7: 94 layers, 4 KV heads of 128, FP8 (23.5 KiB a token on each GPU), 29.4 GB of weights, 10"
    " GB of activations, a margin of 10 %. Its timing is not published: W = 29.4 GB at 70 % of the data sheet's 5.3"
    " TB/s = 7.9 ms, H = 0.03 ms (keys and values of 4,000 tokens at 5.3 TB/s, and sampling), 5 µs a prefill token (44"
    " GFLOP at 40 % of 8 × 2.6 PFLOP/s); derived, not measured",
    gpu=Gpu("AMD Instinct MI300X 192 GB", 192e9, GpuPrice(3.67, f"{_PAPER}, Table 5, a cloud's rate", _PAPER_DATE)),
    model=Model("Qwen3-235B-A22B, FP8", 94, 4, 128, 1, 29.4e9, 10e9),
    tensor_parallel=8,
    memory_used_share=0.9,
    cost=LinearCost(base_ns=7_900 * _US, sequence_ns=30 * _US, prefill_token_ns=5 * _US),
    context_tokens_max=32_768,
    prefill_chunk_tokens=2_048,
    sequences_max=1_024,
)

LLAMA_31_8B_L4 = Profile(
    name="llama-3.1-8b-l4",
    source="SkyWalker (EuroSys 2026), §5.1 and §2.1, as the emulated engine's preset llama-3.1-8b-l4 has it: 16.1 GB of"
    " weights at 300 GB/s = 54 ms, 0.45 ms a sequence, 0.48 ms a prefill token, 1.5 GB of activations and graphs",
    gpu=Gpu("NVIDIA L4 24 GB", 24.15e9),
    model=Model("Llama-3.1-8B-Instruct", 32, 8, 128, 2, 16.1e9, 1.5e9),
    tensor_parallel=1,
    memory_used_share=0.92,
    cost=LinearCost(base_ns=54_000 * _US, sequence_ns=450 * _US, prefill_token_ns=480 * _US),
    context_tokens_max=16_384,
    prefill_chunk_tokens=512,
    sequences_max=256,
)

CITED = {each.name: each for each in (LLAMA_3_70B_A100, QWEN3_235B_MI300X, LLAMA_31_8B_L4)}
