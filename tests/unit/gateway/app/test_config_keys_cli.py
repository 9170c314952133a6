from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from gateway.app.commands import cli
from gateway.app.config_keys_cli import region_file_page
from gateway.config.reading import read_region_file

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs/reference/region_file.md"
ROW = re.compile(r"^\| `([^`]+)` \| (.*?) \| (\S*|`[^|]*`) \| ", flags=re.MULTILINE)


@pytest.fixture(scope="module")
def rows() -> dict[str, str]:
    """Default of each key on the page, as it is written there."""
    return {path: default for path, _, default in ROW.findall(PAGE.read_text())}


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
    assert PAGE.read_text() == region_file_page(), "run make config-pages"


def test_the_command_prints_or_writes_the_page(tmp_path: Path) -> None:
    printed = CliRunner().invoke(cli, ["config-keys"])
    assert (printed.exit_code, printed.output) == (0, region_file_page())
    written = CliRunner().invoke(cli, ["config-keys", "-o", str(tmp_path / "page.md")])
    assert (written.exit_code, written.output) == (0, "")
    assert (tmp_path / "page.md").read_text() == region_file_page()


def test_every_key_of_the_example_with_every_key_is_on_the_page(rows: dict[str, str]) -> None:
    written = {path for path, _ in leaves(yaml.safe_load((ROOT / "docs/examples/every_key.yaml").read_text()))}
    assert len(written) > 400, "nothing is looked at"
    patterns = {re.escape(path).replace("NAME", r"[^.]+") for path in rows}
    patterns |= {
        f"{re.escape(path)}\\..+" for path, kind, _ in ROW.findall(PAGE.read_text()) if kind.startswith("map of")
    }
    every = re.compile("|".join(sorted(patterns)))
    assert {path for path in written if not every.fullmatch(path)} == set()


def test_defaults_are_those_that_a_gateway_uses(rows: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "us.yaml"
    file.write_text("gateway: a\nregion: us\njurisdiction: US\n")
    effective = dict(leaves(read_region_file(file, {}).as_document()))
    compared = {path: value for path, value in effective.items() if rows.get(path, "").startswith("`")}
    assert len(compared) > 250, "nothing is looked at"
    assert {path: value for path, value in compared.items() if not is_written(rows[path].strip("`"), value)} == {}


def is_written(text: str, value: object) -> bool:
    """Text is the value in YAML; a region file's `on` and `off` are strings."""
    return value in (text, yaml.safe_load(text))
