from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gateway.config.reading import read_region_file
from loadgen.studies.token_budget.live import BLIND, DESIGNS, FirstTokens, at, middle, plans, region_file
from loadgen.studies.token_budget.live_command import section


@pytest.mark.parametrize("design", DESIGNS)
def test_a_gateway_takes_the_file_of_every_design(tmp_path: Path, design: str) -> None:
    (tmp_path / "policy.yaml").write_text("version: 1\nregion: us-east-1\njurisdiction: US\n")
    path = tmp_path / "gateway.yaml"
    path.write_text(yaml.safe_dump(region_file(design, [1, 2, 3, 4], [5, 6, 7], tmp_path)))
    found = read_region_file(path)
    pools = {replica.pool for replica in found.replicas}
    assert len(pools) == (2 if design == "split" else 1)


def test_every_design_is_asked_the_same() -> None:
    one, other = list(plans(1, FirstTokens())), list(plans(1, FirstTokens()))
    assert [(each.at_s, each.words) for each in one] == [(each.at_s, each.words) for each in other]
    assert [each.at_s for each in one] == sorted(each.at_s for each in one)
    assert {each.words for each in one} == {200, 16_000}


def test_the_section_has_a_row_for_each_and_says_what_failed() -> None:
    seen = FirstTokens([0.1, 0.2], [0.3, 0.4], [5.0], ["no"])
    text = section({BLIND: [seen], "split": [FirstTokens()]}, {"cpu": "A CPU", "cores": 2}, 0.5)
    assert "| one pool, pushed blindly | 0.20 (0.20–0.20) |" in text
    assert "| split | – |" in text
    assert text.rstrip().endswith("| 0 |")


def test_ranks_of_nothing_are_nothing() -> None:
    assert at([], 0.5) is None
    assert at([1.0, 2.0, 3.0], 0.99) == 3.0
    assert middle([None, 2.0]) == 2.0
