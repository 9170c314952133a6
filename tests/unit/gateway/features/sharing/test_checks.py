from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.reading import read_region_file
from gateway.core.tenant_config import tenant_in
from gateway.core.vocabulary import ModelName, ServiceClass, TenantName
from mesh.faults import FileError
from tests.support.region_files import SMALLEST, region_at

WRITTEN = """
tenants:
  acme: {weight: 3, priority: 2}
  default: {service_class: batch}
sharing: {aging: 5s, prefix_slack_tokens: 0, yields_above: 1.5}
classes:
  interactive: {first_token: 2s}
  batch: {models: [nightly], free_share: 0.25, promotion: 30s}
"""


def test_what_was_promised_is_read_and_written_back(tmp_path: Path) -> None:
    file = read_region_file(region_at(tmp_path, SMALLEST + WRITTEN), environ={})
    core = file.core
    assert tenant_in(core.tenants, TenantName("acme")).weight == 3
    assert tenant_in(core.tenants, TenantName("zeta")).service_class is ServiceClass.BATCH, "as the default one"
    assert (core.sharing.aging_ns, core.sharing.prefix_slack_tokens) == (5_000_000_000, 0)
    assert core.sharing.yields_above == 1.5
    assert core.classes.first_token_ns(ServiceClass.INTERACTIVE) == 2_000_000_000
    assert core.classes.first_token_ns(ServiceClass.BATCH) is None
    assert core.classes.by_model() == {ModelName("nightly"): ServiceClass.BATCH}
    document = file.as_document()
    assert document["tenants"]["acme"].items() >= {"weight": 3.0, "priority": 2, "service_class": None}.items()
    assert document["classes"]["batch"]["promotion"] == "30s"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tenants: {acme: {weight: 0}}", "tenants.acme.weight: 0.0: it is 0.001 to 1,000"),
        ("sharing: {yields_above: 0.5}", "sharing.yields_above: 0.5: it is 1 to 1,000"),
        ("tenants: {acme: {priority: 10}}", "tenants.acme.priority: 10: it is 0 to 9"),
        ("tenants: {acme: {speed: 10}}", "tenants.acme.speed"),
        ("tenants: {'a b': {}}", "tenants"),
        ("tenants: {acme: {service_class: gold}}", "tenants.acme.service_class"),
        ("classes: {batch: {wait_max: 1m}}", "classes.batch.promotion: should be shorter than"),
        (
            "classes: {batch: {models: [a]}, best_effort: {models: [a]}}",
            "classes.best_effort.models: `a` is under batch",
        ),
    ],
)
def test_what_makes_no_sense_is_told_by_its_key(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(FileError) as refused:
        read_region_file(region_at(tmp_path, SMALLEST + text + "\n"), environ={})
    assert told in str(refused.value)
