"""Fabricated figures of the study of protocols: what a run shows follows from its policy, batch and seed alone."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.features.disaggregated.config import DecodePolicyName
from loadgen.figures import Figures
from loadgen.studies.protocols.plan import FULL_CASES, SCALED, ProtocolCell, all_cells, long_cells
from loadgen.studies.protocols.record import ProtocolRecord, record_of

SEEDS = (7, 8)
LONG_SEEDS = (9, 10, 11)
FULL_SEEDS = (12,)
LOADS: dict[str, Figures] = {
    each.name: {"requests": 1_000, "prompt_mean": 12_000, "prompt_variation": 1.5, "answer_mean": 300,
                "answer_variation": 0.8, "held_mean": 12_150, "prompt_share": 0.98, "longest": 90_000,
                "rooms": {"16": 150_000, "32": 300_000, "64": 600_000}}
    for each in SCALED
}  # fmt: skip


def figures_of(cell: ProtocolCell) -> Figures:
    """Figures of a run: BalanceRoute divides the gap of 1,000 × batch by ten, and has a tenth more tokens; with a
    limited cache it has fewer than the baselines."""
    setting, protocol = cell.setting, cell.protocol
    is_ours = setting.policy in (DecodePolicyName.BR_0, DecodePolicyName.BR_H)
    gap = 1_000.0 * setting.batch * (1 + setting.seed / 100)
    tokens = 800.0 + (20.0 if protocol.sends_at_once else 0.0)
    found: Figures = {
        "gap": gap / 10 if is_ours else gap,
        "tokens_per_s": tokens * ((0.9 if protocol.room_share else 1.3) if is_ours else 1.0),
        "tpot_p95_ms": 80.0, "running": 80.0, "mean": 100_000.0, "largest": 125_000.0, "kv_share": 0.5, "aged": 0,
        "expired": 0, "degraded": 0,
    }  # fmt: skip
    if setting.predictor:
        found |= {"foreseen_share": 0.25, "ending_share": 0.01, "right_share": 0.75}
    return found


def record(seeds: Sequence[int] = SEEDS) -> ProtocolRecord:
    cells = [*all_cells(seeds), *long_cells(LONG_SEEDS), *long_cells(FULL_SEEDS, FULL_CASES)]
    return record_of({cell: figures_of(cell) for cell in cells}, seeds, LONG_SEEDS, FULL_SEEDS)
