from __future__ import annotations

from pathlib import Path

from loadgen.engine.decode_group import DecodeGroup, DecodeGroupConfig
from loadgen.engine.step_trace import HEADER, StepTrace

CONFIG = DecodeGroupConfig(ranks=2, batch_max=2, base_ns=1_000, kv_token_ns=7)


def traced(folder: Path, lines_max: int) -> list[str]:
    trace = StepTrace(folder / "steps", 2, lines_max=lines_max)
    group = DecodeGroup(CONFIG, trace.add)
    group.admit("a", 0, 100, 4, 0)
    group.admit("b", 0, 10, 1, 1_500)
    while (at_ns := group.next_change_ns()) is not None:
        group.advance(at_ns)
    trace.close()
    return [path.read_text().removeprefix(HEADER) for path in trace.paths]


def test_each_rank_has_a_line_for_each_step_also_for_those_in_which_it_runs_nothing(tmp_path: Path) -> None:
    one, other = traced(tmp_path, 100)

    assert one.splitlines() == [
        "0,0,1700,1,100",
        "1,1700,3477,2,111",
        "2,3477,5191,1,102",
        "3,5191,6912,1,103",
    ]
    assert other.splitlines() == ["0,0,1700,0,0", "1,1700,3477,0,0", "2,3477,5191,0,0", "3,5191,6912,0,0"]
    assert sorted(path.name for path in (tmp_path / "steps").iterdir()) == ["steps-rank0.csv", "steps-rank1.csv"]


def test_it_ends_before_the_disk_does(tmp_path: Path) -> None:
    one, _ = traced(tmp_path, 2)

    assert one.splitlines() == ["0,0,1700,1,100", "1,1700,3477,2,111", "# more steps than fit"]
