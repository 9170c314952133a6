from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from gateway.features.expert_locality.files import read_eldr
from loadgen.fit.main import fit
from loadgen.fit.seats import INDEX
from tests.support.calibrations import calibration, write_calibration


def run(folder: Path, *options: str) -> Result:
    path = folder / "calibration.jsonl"
    if not path.exists():
        write_calibration(path, calibration())
    return CliRunner().invoke(fit, ["eldr", "--calibration", str(path), "-o", str(folder / "eldr.json"), *options])


def test_it_writes_an_artifact_a_report_a_placement_and_what_they_are_worth(tmp_path: Path) -> None:
    report, placement = tmp_path / "report.html", tmp_path / "placement"
    said = run(
        tmp_path, "--workers", "3", "--report", str(report), "--ranks", "4", "--placement", str(placement), "--json"
    )
    assert said.exit_code == 0, said.output
    told = json.loads(said.stdout)
    artifact = read_eldr(tmp_path / "eldr.json")
    assert (artifact.clusters, told["clusters"], told["sizes"]) == (3, 3, [16, 16, 16])
    assert told["scores"]["requests"] == 12
    assert sorted(each.name for each in placement.iterdir()) == [INDEX, "seat-0.json", "seat-1.json", "seat-2.json"]
    assert json.loads((placement / INDEX).read_text())["artifact"] == told["digest"]
    rows = json.loads((placement / "seat-2.json").read_text())["physical_to_logical_map"]
    assert [sorted(row) for row in rows] == [list(range(12))] * 4
    page = report.read_text()
    assert "domain 0" in page
    assert "<svg" in page
    assert "count-idf, chosen layers" in page


def test_a_placement_has_the_form_of_the_engine_that_is_named(tmp_path: Path) -> None:
    placement = tmp_path / "placement"
    said = run(tmp_path, "--workers", "2", "--ranks", "3", "--placement", str(placement), "--engine", "vllm-ascend")
    assert said.exit_code == 0, said.output
    document = json.loads((placement / "seat-0.json").read_text())
    assert document["moe_layer_count"] == 4
    assert [len(each["device_expert"]) for each in document["layer_list"][0]["device_list"]] == [4, 4, 4]


def test_another_k_keeps_the_layers_and_a_background_fit_scores_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, "--workers", "3").exit_code == 0
    first = read_eldr(tmp_path / "eldr.json")
    said = run(tmp_path, "--workers", "5", "--previous", str(tmp_path / "eldr.json"), "--held-out", "0")
    assert said.exit_code == 0, said.output
    assert "5 clusters of 8 to 10 requests" in said.stdout
    assert "nothing was held out" in said.stdout
    assert read_eldr(tmp_path / "eldr.json").mask == first.mask


def test_what_cannot_be_fitted_to_says_why(tmp_path: Path) -> None:
    said = run(tmp_path, "--workers", "49")
    assert (said.exit_code, "48 requests are too few for 49 clusters" in said.output) == (1, True)
    (tmp_path / "calibration.jsonl").write_text("{}\n")
    said = run(tmp_path, "--workers", "2")
    assert (said.exit_code, "calibration.jsonl:1" in said.output) == (1, True)
    said = run(tmp_path, "--workers", "2", "--ranks", "2")
    assert (said.exit_code, "belong together" in said.output) == (2, True)
    said = run(tmp_path, "--workers", "2", "--ranks", "2", "--placement", str(tmp_path / "p"),
               "--engine", "vllm-ascend", "--dense-layers", "1")  # fmt: skip
    assert (said.exit_code, "--dense-layers: the form of vllm-ascend" in said.output) == (2, True)
    write_calibration(tmp_path / "calibration.jsonl", calibration())
    said = run(tmp_path, "--workers", "2", "--ranks", "5", "--placement", str(tmp_path / "p"))
    assert (said.exit_code, "cannot be shared out equally" in said.output) == (1, True)
    spoilt = tmp_path / "spoilt.json"
    spoilt.write_text("{}")
    said = run(tmp_path, "--workers", "2", "--previous", str(spoilt))
    assert (said.exit_code, "spoilt.json: is damaged" in said.output) == (1, True)
