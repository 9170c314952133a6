"""The kernel's figures for memory, in both versions of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.machine_memory import memory_bytes

MEBIBYTE = 2**20


def kernel(folder: Path, cgroup: str, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in {
        "proc/meminfo": "MemFree: 1 kB\nMemTotal:  8388608 kB\n",
        "proc/self/cgroup": cgroup,
        **files,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / "proc", folder / "groups"


@pytest.mark.parametrize(
    ("cgroup", "files", "mebibytes"),
    [
        ("0::/\n", {}, 8192),
        ("0::/\n", {"groups/memory.max": "max\n"}, 8192),
        ("0::/\n", {"groups/memory.max": f"{512 * MEBIBYTE}\n"}, 512),
        (
            "0::/pods/one\n",
            {"groups/pods/memory.max": f"{300 * MEBIBYTE}\n", "groups/pods/one/memory.max": "max\n"},
            300,
        ),
        ("0::/pods/one\n", {"groups/memory.max": f"{9 * 2**40}\n", "groups/pods/one/memory.max": f"{MEBIBYTE}\n"}, 1),
        ("4:cpu:/x\n3:memory:/x\n0::/\n", {"groups/memory/x/memory.limit_in_bytes": f"{64 * MEBIBYTE}\n"}, 64),
        ("3:cpu,memory:/x\n", {"groups/memory/x/memory.limit_in_bytes": "9223372036854771712\n"}, 8192),
    ],
)
def test_it_is_the_least_of_the_machine_and_every_group_around(
    tmp_path: Path, cgroup: str, files: dict[str, str], mebibytes: int
) -> None:
    assert memory_bytes(*kernel(tmp_path, cgroup, files)) == mebibytes * MEBIBYTE


def test_where_nothing_tells_there_is_no_bound(tmp_path: Path) -> None:
    assert memory_bytes(tmp_path / "proc", tmp_path / "groups") is None
