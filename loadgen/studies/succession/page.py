"""Page of the duration of a leader change. It shows the measurements, and says whether the aim is met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from loadgen.studies.rendering import render
from loadgen.studies.succession.playing import Succession

AIM_S = 10.0


def page_of(successions: Sequence[Succession], machine: Mapping[str, object]) -> str:
    return render(
        "succession/page.j2", successions=successions, machine=machine, aim_s=AIM_S, spread=_spread
    )  # fmt: skip


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"
