from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from gateway.app.commands import cli
from gateway.app.config_keys_cli import INTRODUCTION, region_file_keys
from gateway.config.reading import read_region_file
from mesh.config_keys_cli import page_of, with_meanings

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs/reference/region_file.md"
EXAMPLE = (ROOT / "docs/examples/every_key.yaml").read_text()

WITH_A_POOL: dict[str, object] = {
    "gateway": "a",
    "region": "us",
    "jurisdiction": "US",
    "pools": [{"name": "chat", "kind": "disaggregated", "connector": "nixl", "decode_batch_max": 8}],
    "replicas": [
        {"id": role, "url": f"http://127.0.0.1/{role}", "models": ["m"], "pool": "chat", "role": role}
        for role in ("prefill", "decode")
    ],
}


@pytest.fixture(scope="module")
def rows() -> dict[str, str]:
    """Default of each key on the page, as it is written there."""
    return {key.path: key.default for key in region_file_keys()}


def leaves(document: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Path and value of each key in a document; keys in lists are of its items."""
    if isinstance(document, dict) and document:
        for key, each in document.items():
            yield from leaves(each, f"{path}.{key}" if path else key)
    elif isinstance(document, list) and any(isinstance(each, dict) for each in document):
        for each in document:
            yield from leaves(each, f"{path}[]")
    else:
        yield path, document


def test_the_page_is_as_the_models_are_now() -> None:
    assert PAGE.read_text() == page_of(INTRODUCTION, region_file_keys(), EXAMPLE), "run make config-pages"


def test_comments_of_the_example_are_the_meanings() -> None:
    assert with_meanings(EXAMPLE, region_file_keys()) == EXAMPLE, "run make config-pages"


def test_the_command_prints_the_keys() -> None:
    printed = CliRunner().invoke(cli, ["config-keys"])
    assert printed.exit_code == 0
    assert "| `limits.body_max` | size | bytes | > 0 | `16MiB` | `16MiB` | Largest request body" in printed.output


def test_every_key_has_a_docstring() -> None:
    assert [key.path for key in region_file_keys() if not key.meaning] == []


def test_every_key_of_the_example_with_every_key_is_on_the_page(rows: dict[str, str]) -> None:
    written = {path for path, _ in leaves(yaml.safe_load(EXAMPLE))}
    assert len(written) > 400, "nothing is looked at"
    patterns = {re.escape(path).replace("NAME", r"[^.]+") for path in rows}
    patterns |= {f"{re.escape(key.path)}\\..+" for key in region_file_keys() if key.type.startswith("map of")}
    every = re.compile("|".join(sorted(patterns)))
    assert {path for path in written if not every.fullmatch(path)} == set()


def test_defaults_are_those_that_a_gateway_uses(rows: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "us.yaml"
    file.write_text(yaml.safe_dump(WITH_A_POOL))
    effective = dict(leaves(read_region_file(file, {}).as_document()))
    written = {path for path, _ in leaves(WITH_A_POOL)}
    compared = {
        path: value for path, value in effective.items() if path not in written and rows.get(path, "").startswith("`")
    }
    assert len(compared) > 250, "nothing is looked at"
    assert {path: value for path, value in compared.items() if not is_written(rows[path].strip("`"), value)} == {}


def is_written(text: str, value: object) -> bool:
    """Text is the value in YAML; a region file's `on` and `off` are strings."""
    return value in (text, yaml.safe_load(text))
