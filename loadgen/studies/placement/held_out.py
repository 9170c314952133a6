"""Two workloads held out while a rule is developed: recorded by others, and used for no other purpose here.

They are played once, after the expected result was written down in `held_out.yaml`; once the rule is changed after
that, no held-out workload is left. They are played with `--look` only.
"""

from __future__ import annotations

from pathlib import Path

from loadgen.studies.data import Look, read_data
from loadgen.studies.experiments import Changes, Point
from loadgen.studies.placement.workloads import H100, REGIONS, PlacementWorkload
from loadgen.studies.recordings import AZURE_CHATS, first_file
from loadgen.studies.skywalker.plan import spread_out

LOOK = read_data("placement/held_out.yaml", Look)

_TURNS = {
    "applications": 2,
    "system_prompt_words": 600,
    "profile_words": 40,
    "turns": {"median": 2, "sigma": 0.01, "minimum": 2, "maximum": 2},
    "output_tokens": {"median": 250, "sigma": 0.6, "minimum": 16, "maximum": 1000},
}


def held_out(folder: Path | None) -> dict[str, PlacementWorkload]:
    """Held-out workloads: Azure's conversations of 2023 in recorded order, eight times as fast (44 requests per second,
    without shared prefixes), and MT-Bench's two-turn questions, whose users arrive as Azure's code requests did over
    two days of 2024, with an hour in five seconds. Empty without their files."""
    chat = first_file(folder, AZURE_CHATS)
    questions = first_file(folder, "mtbench/question.jsonl*")
    rates = first_file(folder, "azure2024_digitised/code_invocations_per_min_10min.csv")
    found = {}
    if chat is not None:
        found["azure"] = _azure(chat)
    if questions is not None and rates is not None:
        found["mtbench"] = _mtbench(questions, rates)
    return found


def _azure(file: Path) -> PlacementWorkload:
    changes: Changes = {
        "preset": H100,
        "duration": "180s",
        "warm_up": "30s",
        "workloads": {"chat": {"trace": {"file": str(file), "speed": 8.0}}},
        "clients": [{"region": region, "workload": "chat"} for region in REGIONS],
        **spread_out(6),
    }
    return PlacementWorkload(
        Point("Azure conversations of 2023, × 8, 2/2/2", "paper_conversations.yaml", changes), H100, 201
    )


def _mtbench(questions: Path, rates: Path) -> PlacementWorkload:
    def arrivals(shift_hours: int) -> dict[str, object]:
        return {"recorded": {"file": str(rates), "day": "120s", "peak": 3.0, "shift_hours": shift_hours}}

    changes: Changes = {
        "duration": "240s",
        "warm_up": "30s",
        "workloads": {"chat": {"conversations": _TURNS, "questions": str(questions)}},
        "clients": [
            {"region": region, "workload": "chat", "arrivals": arrivals(8 * number)}
            for number, region in enumerate(REGIONS)
        ],
        **spread_out(6),
    }
    return PlacementWorkload(
        Point("MT-Bench at the rates of Azure's code, 2/2/2", "paper_conversations.yaml", changes), seeds_from=201
    )
