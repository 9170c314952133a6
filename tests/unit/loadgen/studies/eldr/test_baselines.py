from __future__ import annotations

from loadgen.studies.eldr.baselines import shared_out


def test_workers_are_shared_out_by_share_and_each_domain_has_one() -> None:
    homes = shared_out({"en": 50, "zh": 25, "ru": 20, "fr": 1}, 8)
    assert {name: len(home) for name, home in homes.items()} == {"en": 4, "zh": 2, "ru": 1, "fr": 1}
    assert sorted(number for home in homes.values() for number in home) == list(range(8))
