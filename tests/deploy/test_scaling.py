"""The examples for autoscalers: KEDA's against a schema written for these tests, Kubernetes' against its own, and both
against the metrics of a real gateway.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gateway.app.metrics_catalogue import catalogue
from tests.deploy.test_chart import VERSIONS, validated

FOLDER = Path(__file__).parents[2] / "deploy/scaling"
KEDA = json.loads(Path(__file__).with_name("keda.schema.json").read_text())
SERIES = {each.name: each.labels for each in catalogue()}


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()))


@pytest.mark.parametrize("name", ["keda-prometheus", "keda-metrics-api"])
def test_what_is_for_keda_keeps_our_schema_of_it(name: str) -> None:
    for each in manifests(name):
        jsonschema.validate(each, KEDA)
    broken = manifests(name)[-1]
    broken["spec"]["triggers"][0]["metadata"]["treshold"] = "1"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, KEDA)


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_own_schema_is_kept(version: str) -> None:
    done = validated(FOLDER / "hpa.yaml", version)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARN" not in done.stdout + done.stderr, "a kind without a schema"


def test_they_ask_for_what_gateways_say() -> None:
    (scaled,) = manifests("keda-prometheus")
    assert "nightside_replicas_wanted{" in scaled["spec"]["triggers"][0]["metadata"]["query"]
    (autoscaler,) = manifests("hpa")
    metric = autoscaler["spec"]["metrics"][0]["external"]["metric"]
    assert set(metric["selector"]["matchLabels"]) <= set(SERIES[metric["name"]])
