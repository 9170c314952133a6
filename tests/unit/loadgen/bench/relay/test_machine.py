from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from loadgen.bench.relay.machine import (
    cpu_ns,
    descendants,
    parse_cpu_name,
    parse_parent,
    parse_pss_kib,
    process_tree,
    pss_kib,
)

ROLLUP = """\
560be86a4000-7ffcccb23000 ---p 00000000 00:00 0                          [rollup]
Rss:                1640 kB
Pss:                 235 kB
Pss_Dirty:           112 kB
"""


def write_process(proc: Path, pid: int, parent: int, name: str = "relay") -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} {pid} 1 0\n")


@pytest.mark.parametrize("name", ["envoy", "a (b) c", ") S 9 9"])
def test_the_parent_is_found_behind_any_name(name: str) -> None:
    assert parse_parent(f"42 ({name}) S 7 42 42 0 -1") == 7


def test_memory_is_the_proportional_set_size() -> None:
    assert parse_pss_kib(ROLLUP) == 235
    with pytest.raises(ValueError, match="no line `Pss`"):
        parse_pss_kib("Rss: 1 kB\n")


def test_the_cpu_has_a_name_or_none_that_is_known() -> None:
    assert parse_cpu_name("processor\t: 0\nmodel name\t: AMD EPYC\n") == "AMD EPYC"
    assert parse_cpu_name("") == "unknown"


def test_a_tree_is_a_process_with_its_children_and_theirs() -> None:
    assert descendants(10, {10: 1, 11: 10, 12: 11, 20: 1}) == [10, 11, 12]


def test_a_tree_is_read_from_proc(tmp_path: Path) -> None:
    write_process(tmp_path, 10, 1)
    write_process(tmp_path, 11, 10, "a child (of it)")
    write_process(tmp_path, 20, 1)
    (tmp_path / "21").mkdir()
    (tmp_path / "meminfo").write_text("")
    assert process_tree(10, tmp_path) == [10, 11]


def test_cpu_time_and_memory_of_this_process_are_read() -> None:
    before_ns, own_before_ns = cpu_ns([os.getpid()]), time.process_time_ns()
    sum(range(200_000))
    used_ns, own_used_ns = cpu_ns([os.getpid()]) - before_ns, time.process_time_ns() - own_before_ns
    assert 0 < own_used_ns <= used_ns + 1_000_000
    assert pss_kib([os.getpid()]) > 1000


def test_a_process_that_is_gone_is_an_error() -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        cpu_ns([2**22 - 1])
