from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.planner.profile_file import read_profiles
from loadgen.planner.profiles import GpuPrice
from mesh.faults import FileError

WHOLE = """
profiles:
  mine:
    source: measured on our own machines
    gpu:
      name: NVIDIA L40S
      memory_gb: 48
      price: {usd_per_hour: 1.1, source: our contract, date: 2026-10-01}
    model: {name: m, layers: 32, kv_heads: 8, head_dim: 128, kv_value_bytes: 2, weights_gb: 16.1}
    tensor_parallel: 1
    iteration: {base_ms: 20, sequence_ms: 0.4, prefill_token_us: 90}
    context_tokens_max: 32768
    kv_blocks: 8000
    slots: {"32768": 4}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "profiles.yaml"
    path.write_text(text)
    return path


def test_a_profile_of_one_s_own_is_read(tmp_path: Path) -> None:
    profile = read_profiles(written(tmp_path, WHOLE))["mine"]
    assert profile.gpu.price == GpuPrice(1.1, "our contract", "2026-10-01")
    assert profile.cost.iteration_ns(10, 100) == 20_000_000 + 4_000_000 + 9_000_000
    assert profile.slots_at(32_768) == 4
    assert profile.kv_tokens == 128_000


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (", date: 2026-10-01", "", "gpu.price.date: is missing"),
        ("memory_gb: 48", "memory_gb: -1", "gpu.memory_gb: should be greater than 0"),
        ("layers: 32", "layers: 32, heads: 3", "model.heads: is not a known key"),
        ("context_tokens_max: 32768", "", "context_tokens_max: is missing"),
    ],
)
def test_a_fault_is_told_by_its_key(tmp_path: Path, old: str, new: str, fault: str) -> None:
    with pytest.raises(FileError, match=r"profiles\.mine\.") as told:
        read_profiles(written(tmp_path, WHOLE.replace(old, new)))
    assert fault in str(told.value)
