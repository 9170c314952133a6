from __future__ import annotations

from loadgen.studies.eldr.decision_costs import decision_costs, journal_bytes


def test_cosines_are_a_small_part_of_the_counts_and_every_part_of_a_decision_is_timed() -> None:
    for workers in (16, 144):
        told = journal_bytes(workers)
        assert told["cosines"] * 10 < told["counts_packed"] < told["counts_unpacked"] == 16_384
    assert set(decision_costs(4, rounds=5)) == {"unpacked", "compared", "chosen", "all"}
