from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from gateway.door.errors import ENDINGS
from gateway.door.errors_page import ACTIONS, every_kind, markdown

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs/reference/errors.md"
ROW = re.compile(r"^\| (\d{3}) \| `(\w+)` \| ([^|]+) \| ([^|]*) \| ([^|]+) \|$", flags=re.MULTILINE)
KEY = re.compile(r"`([a-z_]+\.[a-z_]+)`")
SETTINGS: dict[str, Any] = yaml.load((ROOT / "docs/examples/every_key.yaml").read_text(), yaml.CSafeLoader)


def codes_in_sources() -> Iterator[str]:
    """Code of every `ErrorKind(...)` in the gateway's sources, wherever it stands."""
    for path in (ROOT / "gateway").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ErrorKind":
                code = node.args[2]
                assert isinstance(code, ast.Constant), f"{path}: a code that is not written out"
                assert isinstance(code.value, str)
                yield code.value


def test_the_page_is_as_the_definitions_are_now() -> None:
    assert PAGE.read_text() == markdown(), "run make errors-page"


def test_every_code_that_a_source_defines_is_on_the_page() -> None:
    defined = list(codes_in_sources())
    assert len(defined) > 50, "nothing is looked at"
    assert {code for _, code, *_ in ROW.findall(PAGE.read_text())} == set(defined)


def test_every_ending_of_a_request_is_on_the_page() -> None:
    rows = {(int(status), code, message) for status, code, message, *_ in ROW.findall(PAGE.read_text())}
    assert {(kind.status, kind.code, kind.message) for kind in ENDINGS.values()} <= rows


def test_no_remedy_is_left_over() -> None:
    assert set(ACTIONS) == {kind.code for kind in every_kind()}


def test_messages_and_remedies_are_sentences_without_riddles() -> None:
    texts = [*(kind.message for kind in every_kind()), *ACTIONS.values()]
    assert [text for text in texts if not re.fullmatch(r"[A-Z].*\.", text)] == []
    assert [text for text in texts if re.search(r"\b(nobody|somebody|whoever|anybody|whom)\b", text)] == []


def test_keys_that_remedies_name_are_keys_of_the_region_file() -> None:
    named = {key for text in ACTIONS.values() for key in KEY.findall(text)}
    assert named
    assert {key for key in named if key.split(".")[1] not in SETTINGS[key.split(".")[0]]} == set()
