"""A stalled process runs nothing; once it goes on, it runs all that came meanwhile, in order."""

from __future__ import annotations

from loadgen.simulator.process import Process


def test_what_reaches_a_stalled_process_waits_in_order() -> None:
    process, done = Process(), list[str]()
    process.run(done.append, "before")
    process.stall()
    process.run(done.append, "first")
    process.run(done.append, "second")
    assert done == ["before"]
    process.go_on()
    process.run(done.append, "after")
    assert done == ["before", "first", "second", "after"]


def test_a_second_stall_begins_only_once_the_first_is_over() -> None:
    process = Process()
    process.stall()
    process.stall()
    assert process.stalls == 1
    process.go_on()
    process.stall()
    assert process.stalls == 2
