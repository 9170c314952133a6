from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from loadgen.pages.world_map import area_of, main, path_of, rings_of, simplified, unwrapped

SQUARE = [(0.0, 0.0), (5.0, 0.01), (10.0, 0.0), (10.0, 10.0), (0.0, 10.0), (0.0, 0.0)]


def test_a_point_that_hardly_matters_is_left_out_and_corners_stay() -> None:
    assert simplified(SQUARE, 0.1) == [(0, 0), (10, 0), (10, 10), (0, 10), (0, 0)]
    assert simplified(SQUARE, 0.001) == SQUARE


def test_a_path_is_told_in_tenths_of_a_degree_and_closed() -> None:
    assert path_of([simplified(SQUARE, 0.1)]) == "M0 0l10 0 0 10 -10 0z"
    assert path_of([[(0, 0), (0.01, 0), (0, 0.01), (0, 0)]]) == "", "too small to be seen"


def test_arcs_are_put_together_in_either_direction(tmp_path: Path) -> None:
    topology = {
        "transform": {"scale": [0.1, 0.1], "translate": [-10, -20]},
        "arcs": [[[0, 0], [100, 0], [0, 100]], [[0, 0], [0, 100], [100, 0]]],
        "objects": {"land": {"type": "GeometryCollection", "geometries": [{"type": "Polygon", "arcs": [[0, -2]]}]}},
    }
    (ring,) = rings_of(topology)
    assert ring == [(-10, -20), (0, -20), (0, -10), (-10, -10), (-10, -20)]
    assert area_of(ring) == 100
    file = tmp_path / "land.json"
    file.write_text(json.dumps(topology))
    printed = CliRunner().invoke(main, [str(file)]).output
    assert printed.endswith('export const WORLD =\n  "M-10 -20l10 0 0 10 -10 0z";\n')


def test_a_coast_beyond_the_date_line_stays_in_one_piece() -> None:
    there_and_back = [(170.0, 60.0), (-170.0, 60.0), (-170.0, 70.0), (170.0, 70.0), (170.0, 60.0)]
    assert unwrapped(there_and_back) == [(170, 60), (190, 60), (190, 70), (170, 70), (170, 60)]
    from_the_other_side = [(-170.0, 60.0), (170.0, 60.0), (170.0, 70.0), (-170.0, 70.0), (-170.0, 60.0)]
    assert {x for x, _ in unwrapped(from_the_other_side)} == {-170, -190}
