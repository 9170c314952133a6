"""Measures the cost of counting for the shape of a model: `python -m vllm_expert_counts.cost`, with `--device cuda` on
an accelerator. It runs with or without vLLM, and measures the counting alone, with full steps; on a host in processor
time, which other processes do not add to."""

from __future__ import annotations

import argparse
import sys
import time
import timeit
from typing import Any

import numpy as np

from vllm_expert_counts.counting import Counter, Scheduled
from vllm_expert_counts.ledger import Ledger
from vllm_expert_counts.rows import HostRows
from vllm_expert_counts.wire import handed_over

_STEPS = 20
_DECODES = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("layers", 48), ("experts", 128), ("top-k", 8), ("tokens", 2048), ("block-tokens", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    blocks = -(-asked.tokens // asked.block_tokens)
    shape = (_DECODES + blocks, asked.block_tokens, asked.layers, asked.experts)
    picks: Any = np.random.default_rng(0).integers(
        0, asked.experts, (asked.tokens, asked.layers, asked.top_k), dtype=np.int32
    )
    rows: Any = HostRows(*shape)
    if asked.device != "cpu":
        import torch  # type: ignore[import-not-found]  # noqa: PLC0415 - a host needs none

        from vllm_expert_counts.device_rows import DeviceRows  # noqa: PLC0415

        rows, picks = DeviceRows(*shape, torch.device(asked.device)), torch.from_numpy(picks).to(asked.device)
    counter = Counter(Ledger(*shape[:2]), rows)
    prompt = Scheduled("prompt", 0, asked.tokens, asked.tokens, range(blocks), is_wanted=True)

    def read_prompt() -> np.ndarray[Any, Any]:
        counter.end(["prompt"])
        return counter.step([prompt], picks)["prompt"]()

    def decode() -> None:
        counter.step([Scheduled(str(each), 0, 1, 9, [blocks + each], False) for each in range(_DECODES)], picks)

    counts = read_prompt()
    timer = time.process_time if asked.device == "cpu" else timeit.default_timer
    for name, each in (
        (f"a step of a prompt of {asked.tokens} tokens, and its sum", read_prompt),
        (f"a step of {_DECODES} requests, a token each", decode),
        ("what is handed over, packed", lambda: handed_over(counts, asked.tokens, "model")),
    ):
        times = timeit.repeat(each, timer=timer, number=1, repeat=_STEPS)
        sys.stdout.write(f"{1000 * sorted(times)[_STEPS // 2]:8.2f} ms  {name}\n")
    packed = handed_over(counts, asked.tokens, "model")["counts"]
    sys.stdout.write(f"{len(str(packed)):8} bytes handed over, {rows.nbytes / shape[0]:.0f} kept a block\n")


if __name__ == "__main__":
    main()
