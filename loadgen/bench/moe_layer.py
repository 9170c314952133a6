"""Measures on a GPU the constants of the expert locality model: the time of one mixture-of-experts layer by batch and
by distinct experts (ELDR's Fig. 2), and the time that attention takes to read a batch's keys and values. Run it by
itself on a machine with PyTorch and a GPU: `python -m loadgen.bench.moe_layer`.

It prints JSON: device, date, versions, every median, and the constants that `loadgen/studies/eldr` takes. Without a
GPU it says so and exits with 1, since a CPU's times predict none of a GPU's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import click

from mesh.clock import Clock

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
EXPERTS = (16, 32, 48, 64, 96, 128)
CONTEXTS = (512, 1_024, 2_048, 4_096)
_WARM_UPS, _ROUNDS = 10, 50


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Shape of one layer of Qwen3-30B-A3B."""

    hidden: int = 2048
    intermediate: int = 768
    experts: int = 128
    picks: int = 8
    heads: int = 32
    kv_heads: int = 4
    head_size: int = 128


@dataclass(frozen=True, slots=True)
class CostLine:
    """Least-squares fit: time = intercept + slope · size."""

    intercept_us: float
    slope_us: float


def fitted(sizes: Sequence[float], times_us: Sequence[float]) -> CostLine:
    mean_size, mean_time = sum(sizes) / len(sizes), sum(times_us) / len(times_us)
    spread = sum((size - mean_size) ** 2 for size in sizes)
    slope = sum((size - mean_size) * (took - mean_time) for size, took in zip(sizes, times_us, strict=True)) / spread
    return CostLine(mean_time - slope * mean_size, slope)


@click.command()
@click.option("--device", default="cuda", show_default=True, help="As PyTorch names it; ROCm's are cuda too.")
def main(device: str) -> None:
    """Print one JSON document of medians over rounds, in microseconds."""
    try:
        import torch  # type: ignore[import-not-found]  # noqa: PLC0415 - not a dependency
    except ImportError:
        click.echo("PyTorch is not installed: nothing was measured", err=True)
        sys.exit(1)
    if not torch.cuda.is_available():
        click.echo("there is no GPU: nothing was measured", err=True)
        sys.exit(1)
    shape = LayerShape()
    layer = {f"{batch} x {active}": took for (batch, active), took in _layer_times(torch, device, shape).items()}
    attention = {
        f"{batch} x {tokens}": took for (batch, tokens), took in _attention_times(torch, device, shape).items()
    }
    at_64 = [layer[f"64 x {active}"] for active in EXPERTS]
    reads = [batch * tokens for batch in BATCHES for tokens in CONTEXTS]
    taken = [attention[f"{batch} x {tokens}"] for batch in BATCHES for tokens in CONTEXTS]
    document = {
        "script": "loadgen/bench/moe_layer.py",
        "device": torch.cuda.get_device_name(device),
        "date": Clock().wall_time()[:10],
        "torch": torch.__version__,
        "shape": asdict(shape),
        "layer_us": layer,
        "attention_us": attention,
        "ratio_16_to_128_at_64": at_64[-1] / at_64[0],
        "layer_and_expert": asdict(fitted(EXPERTS, at_64)),
        "kv_token": asdict(fitted(reads, taken)),
    }
    click.echo(json.dumps(document, indent=2))


def _layer_times(torch: Any, device: str, shape: LayerShape) -> dict[tuple[int, int], float]:
    """Times of one layer by batch and number of active experts: for each expert, the two products of the gated
    feed-forward network over the tokens that picked it. The batch is padded by expert, as grouped kernels do."""
    size = shape.experts, 2 * shape.intermediate, shape.hidden
    up = torch.randn(size, device=device, dtype=torch.bfloat16)
    down = torch.randn((shape.experts, shape.hidden, shape.intermediate), device=device, dtype=torch.bfloat16)
    found = {}
    for batch in BATCHES:
        for active in EXPERTS:
            each = max(1, -(-batch * shape.picks // active))
            tokens = torch.randn((active, each, shape.hidden), device=device, dtype=torch.bfloat16)
            chosen_up, chosen_down = up[:active], down[:active]

            def run(tokens: Any = tokens, chosen_up: Any = chosen_up, chosen_down: Any = chosen_down) -> None:
                gate, value = torch.bmm(tokens, chosen_up.transpose(1, 2)).chunk(2, dim=-1)
                torch.bmm(torch.nn.functional.silu(gate) * value, chosen_down.transpose(1, 2))

            found[batch, active] = _median_us(torch, run)
    return found


def _attention_times(torch: Any, device: str, shape: LayerShape) -> dict[tuple[int, int], float]:
    """Times of attention by batch and context: one token of each request over that many keys and values."""
    found = {}
    for batch in BATCHES:
        for tokens in CONTEXTS:
            query = torch.randn((batch, shape.heads, 1, shape.head_size), device=device, dtype=torch.bfloat16)
            size = batch, shape.kv_heads, tokens, shape.head_size
            keys, values = (torch.randn(size, device=device, dtype=torch.bfloat16) for _ in range(2))

            def run(query: Any = query, keys: Any = keys, values: Any = values) -> None:
                torch.nn.functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)

            found[batch, tokens] = _median_us(torch, run)
    return found


def _median_us(torch: Any, run: Callable[[], None]) -> float:
    """Median time between two events on the device, one run at a time."""
    for _ in range(_WARM_UPS):
        run()
    took: list[float] = []
    for _ in range(_ROUNDS):
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begun.record()
        run()
        ended.record()
        torch.cuda.synchronize()
        took.append(begun.elapsed_time(ended) * 1_000)
    return median(took)


if __name__ == "__main__":
    main()
