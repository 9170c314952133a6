"""Users who replay a recording: in its order, at its times, with its texts, from any format."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from loadgen.simulator.scenario import Scenario, parse_scenario
from loadgen.simulator.world import Story, World
from loadgen.vocabulary import RequestEnd
from mesh.faults import ConfigError
from tests.support.scenarios import small_document

SECOND = 1_000_000_000


def scenario_in(folder: Path, file: str, clients: list[dict[str, Any]], **trace: Any) -> Scenario:
    document = small_document(
        name="recorded",
        duration="20s",
        regions={"us": {"jurisdiction": "US", "replicas": 2}, "eu": {"jurisdiction": "EU", "replicas": 1}},
        workloads={"trace": {"trace": {"file": file} | trace}},
        clients=[{"region": "us", "workload": "trace"} | each for each in clients],
    )
    return parse_scenario(document, folder / "recorded.yaml")


def played(scenario: Scenario) -> tuple[Story, list[str]]:
    lines: list[str] = []
    world = World(scenario, scenario.runs[0], every_invariant=True, on_line=lines.append)
    story = world.play()
    world.check_the_end()
    assert all(each.end is RequestEnd.COMPLETED for each in story.records)
    return story, lines


def mooncake(folder: Path) -> str:
    rows = [
        {"timestamp": 100 * n, "input_length": 1100, "output_length": 9, "hash_ids": [0, n % 5 + 1, 10 + n]}
        for n in range(20)
    ]
    (folder / "mooncake.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    return "mooncake.jsonl.gz"


def agentic(folder: Path) -> str:
    rows = [
        {"s": s, "i": i, "t": 3.0 * i, "in": 640 + 64 * i, "out": 5, "api": 1.5, "think": 0.5, "blk": [[1, 10 + i]]}
        for s in ("a", "b", "c")
        for i in range(4)
    ]
    (folder / "agentic.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return "agentic.jsonl"


def azure(folder: Path) -> str:
    rows = [f"2023-11-16 18:15:{second}.5,300,20" for second in range(10, 20)]
    (folder / "azure.csv").write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    return "azure.csv"


def native(folder: Path) -> str:
    rows = [
        {"at": 1, "session": "s", "id": "a", "input_tokens": 200, "output_tokens": 5, "tenant": "acme", "region": "us"},
        {"after": "a", "think": 2, "session": "s", "input_tokens": 300, "output_tokens": 5},
        {"at": 4, "input_tokens": 90, "output_tokens": 5, "region": "eu"},
    ]
    (folder / "native.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return "native.jsonl"


def servegen(folder: Path) -> str:
    (folder / "service").mkdir(exist_ok=True)
    counts = {"input_tokens": "{100: 0.5, 200: 0.5}", "output_tokens": "{7: 1.0}"}
    (folder / "service/chunk-0-dataset.json").write_text(json.dumps({"0": counts}))
    (folder / "service/chunk-0-trace.csv").write_text("0,1.0,1.0\n")
    return "service"


@pytest.mark.parametrize(
    ("write", "requests"), [(mooncake, 20), (agentic, 12), (azure, 10), (native, 3), (servegen, range(8, 40))]
)
def test_every_format_can_be_replayed_and_tells_one_story(tmp_path: Path, write: Any, requests: Any) -> None:
    file = write(tmp_path)
    until = {"until": "20s"} if write is servegen else {}
    stories = [played(scenario_in(tmp_path, file, [{}, {"region": "eu"}], **until))[0] for _ in range(2)]
    assert stories[0].digest == stories[1].digest
    count = len(stories[0].records)
    assert count in requests if isinstance(requests, range) else count == requests


def test_requests_come_at_their_times(tmp_path: Path) -> None:
    story, _ = played(scenario_in(tmp_path, azure(tmp_path), [{}], speed=2))
    assert sorted(each.sent_ns for each in story.records) == [SECOND * n // 2 for n in range(10)]


def test_recorded_prefixes_are_found_in_the_cache(tmp_path: Path) -> None:
    story, _ = played(scenario_in(tmp_path, agentic(tmp_path), [{"clients": 1}], requests_max=4))
    first = [each for each in story.records if each.prompt_tokens == 640]
    later = [each for each in story.records if each.prompt_tokens == 832]
    assert first
    assert all(each.cached_tokens == 0 for each in first)
    assert all(each.cached_tokens == 768 for each in later)


def test_a_session_thinks_after_its_answer_or_at_the_recorded_pace(tmp_path: Path) -> None:
    gaps = {}
    for pace in ("answers", "recorded"):
        story, lines = played(scenario_in(tmp_path, agentic(tmp_path), [{}], pace=pace, requests_max=4))
        asked = {int(m[2]): int(m[1]) for line in lines if (m := re.match(r"(\d+) client 0:a.0#(\d) asks", line))}
        ended = {int(m[2]): int(m[1]) for line in lines if (m := re.match(r"(\d+) client 0:a.0#(\d) compl", line))}
        gaps[pace] = [asked[n + 1] - (ended[n] if pace == "answers" else asked[n]) for n in range(3)]
        assert len(story.records) == 4
    assert gaps == {"answers": [SECOND // 2] * 3, "recorded": [2 * SECOND] * 3}


def test_rows_go_where_they_belong_and_keep_their_tenant(tmp_path: Path) -> None:
    scenario = scenario_in(tmp_path, native(tmp_path), [{}, {"region": "eu"}])
    story, _ = played(scenario)
    assert [each.prompt_tokens for each in story.records if each.client_region == "eu"] == [90]
    by_group = [list(scenario.workload_of(number).recorded()) for number in (0, 1)]  # type: ignore[attr-defined]
    assert [[program.tenant for _, program in programs] for programs in by_group] == [["acme"], [""]]


def test_closed_loop_users_take_one_session_after_another(tmp_path: Path) -> None:
    story, _ = played(scenario_in(tmp_path, azure(tmp_path), [{"clients": 2}]))
    assert len(story.records) > 10


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"file": "gone"}, "gone cannot be read: No such file or directory"),
        ({"file": "poem"}, "poem: its first line belongs to no known format"),
        ({"from": "5s", "until": "5s"}, "`until` should be later than `from`"),
        ({"sample": 0}, "greater than 0"),
    ],
)
def test_what_cannot_be_replayed_is_said(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    (tmp_path / "poem").write_text("Roses are red\n")
    azure(tmp_path)
    with pytest.raises(ConfigError) as caught:
        scenario_in(tmp_path, **{"file": "azure.csv", "clients": [{}]} | changes)
    assert complaint in str(caught.value)


def test_only_a_trace_knows_its_own_times(tmp_path: Path) -> None:
    file = azure(tmp_path)
    for clients, complaint in (
        ({"clients": 1, "shift": "5s"}, "only a trace that is replayed at its own times can be shifted"),
        ({"clients": 1, "arrivals": {"rate": 1}}, "should hold one of clients, arrivals"),
        ({"one_user": True}, "a trace says itself who asks"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            scenario_in(tmp_path, file, [clients])


def test_clients_for_whom_nothing_is_left_are_said(tmp_path: Path) -> None:
    scenario = scenario_in(tmp_path, azure(tmp_path), [{"clients": 1}], **{"from": "1h"})
    with pytest.raises(ConfigError, match=r"clients\[0\]: nothing of the trace 'trace' is left for them"):
        scenario.workload_of(0)


def test_batch_lines_whose_answers_come_in_one_piece_run_beside_each_other() -> None:
    """First tokens are not heard, so that a prompt would otherwise count as unread until its answer is over."""
    tokens = {"sigma": 0.0, "minimum": 120, "maximum": 120, "median": 120}
    pause_s = {"sigma": 0.0, "minimum": 0.1, "maximum": 0.1, "median": 0.1}
    chat = {"conversations": {"output_tokens": tokens, "think_s": pause_s}}
    document = small_document(
        name="lines",
        duration="20s",
        regions={"us": {"jurisdiction": "US", "replicas": 1}},
        round_trips=[],
        workloads={"chat": chat},
        clients=[{"region": "us", "workload": "chat", "clients": 6, "service_class": "batch", "whole_share": 1.0}],
    )
    story, _ = played(parse_scenario(document, Path("lines.yaml")))
    alone_s = 120 * 0.0045
    assert len(story.records) > 2 * 20 / alone_s
