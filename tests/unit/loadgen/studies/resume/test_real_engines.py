"""Measurements that tests on real engines write, and the page reads."""

from __future__ import annotations

from pathlib import Path

from loadgen.studies.resume.real_engines import EngineFigures, Exactness, Killed, read_measured, write_measured


def test_what_is_measured_anew_takes_the_place_of_what_was(tmp_path: Path) -> None:
    path = tmp_path / "resume_engines.json"
    assert read_measured(path) == EngineFigures()
    text = Exactness("vLLM", "/v1/completions", "text", breaks=11, equal=2, reread=9)
    ids = Exactness("vLLM", "/v1/completions", "token ids", breaks=11, equal=11, reread=0)
    for each in (text, Exactness("vLLM", "/v1/completions", "token ids", 3, 3, 0), ids):
        write_measured(path, exactness=each)
    killed = Killed("vLLM", 8, 3, 8, 0, 3, [0.1], [0.2])
    write_measured(path, killed=killed)
    measured = read_measured(path)
    assert list(measured.exactness.values()) == [text, ids]
    assert measured.killed == {"vLLM": killed}
