from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config.reading import read_region_file
from gateway.engines.shared_caches import shared_cache_notes
from tests.support.core import US
from tests.support.gateways import region_document

URL = "http://127.0.0.1:8000"


def notes(folder: Path, *replicas: dict[str, object], **changes: Any) -> list[str]:
    path = folder / "us.yaml"
    listed = [{"url": URL, "models": ["m"], **each} for each in replicas]
    document = region_document(folder, "us-1", US, replicas=listed, **{"trust_tenant_header": True, **changes})
    path.write_text(yaml.safe_dump(document))
    return list(shared_cache_notes(read_region_file(path).as_config()))


@pytest.mark.parametrize("dialect,takes", [("vllm", True), ("sglang", True), ("llamacpp", False), ("openai", False)])
def test_an_engine_without_such_a_field_is_named_and_so_is_the_call_where_none_has_one(
    tmp_path: Path, dialect: str, takes: bool
) -> None:
    (note,) = notes(tmp_path, {"id": "r", "dialect": dialect})
    assert note.startswith("r: ")
    assert ("/v1/messages" in note) is takes
    assert (dialect in note) is not takes


def test_the_file_knows_better_than_the_dialect(tmp_path: Path) -> None:
    told = notes(tmp_path, {"id": "a", "cache_salt": False}, {"id": "b", "dialect": "openai", "cache_salt": True})
    assert [each[:2] for each in told] == ["a:", "b:"]
    assert "/v1/messages" in told[1]


@pytest.mark.parametrize("changes", [{"trust_tenant_header": False}, {"engine_cache": {"isolate_tenants": False}}])
def test_who_is_alone_or_shares_on_purpose_is_told_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert notes(tmp_path, {"id": "r", "dialect": "openai"}, **changes) == []
