"""Examples on pages: each block of YAML is read as the program reads such a file, JSON and TOML are loaded, Python is
compiled and finds what it imports, and shell scripts are parsed. Commands are checked by
tests/integration/test_pages.py.
"""

from __future__ import annotations

import ast
import gzip
import importlib
import json
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import controller.config
from controller.config import ControllerFile, read_controller_file
from gateway.config.kubernetes import SERVICE_ACCOUNT_VARIABLE
from gateway.config.reading import read_region_file
from gateway.config.region_file import RegionFile
from gateway.config.sections import Sections
from gateway.core.config import CoreConfig
from gateway.features.prices.file import PricesFile, read_prices
from gateway.policy.file import PolicyDocument, load_policy
from loadgen.load.plan import without_a_fleet
from loadgen.planner.profile_file import read_profiles
from loadgen.simulator.scenario import Scenario, load_scenario
from mesh.regions import TableFile, read_table_file
from mesh.settings_reference import keys_of
from tests.support.walk import ROOT

_FOLDERS = ("docs", "policies", "terraform", "engine_plugins")
PAGES = [
    *sorted(set(ROOT.glob("*.md")) - {ROOT / "CHANGELOG.md"}),
    *(page for folder in _FOLDERS for page in sorted((ROOT / folder).rglob("*.md"))),
]
_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
FOREIGN = {
    "apiVersion": "Kubernetes",
    "terminationGracePeriodSeconds": "a pod's specification in Kubernetes",
    "model_list": "LiteLLM",
    "servingEngineSpec": "vLLM's production stack",
}
"""Keys that mark another program's file, of which only the syntax is checked."""


@dataclass(frozen=True)
class Example:
    place: str
    """Page and line."""
    language: str
    text: str


def examples_in(text: str, page: str) -> Iterator[Example]:
    for found in _FENCE.finditer(text):
        line = text[: found.start()].count("\n") + 1
        yield Example(f"{page}:{line}", found[2], textwrap.dedent(found[3]))


ALL = [each for page in PAGES for each in examples_in(page.read_text(), str(page.relative_to(ROOT)))]


# YAML


@dataclass(frozen=True)
class Kind:
    """Kind of file of our own, and how the program reads it."""

    keys: frozenset[str]
    required: frozenset[str]
    """Keys without which a file is of another kind."""
    read: Callable[[Path], object]
    base: str = ""
    """Keys that a section needs around it; an example's own come before them."""


def _names(*models: type[Any]) -> frozenset[str]:
    return frozenset(key.path.partition(".")[0].removesuffix("[]") for key in keys_of(*models))


REGION = """
insecure: true
gateway: us-east-1a
region: us-east-1
jurisdiction: US
replicas: [{id: vllm-0, url: "http://127.0.0.1:8000", models: [Qwen/Qwen3-8B]}]
"""
CONTROLLER = """
controller: controller-1
store: {path: controller.db}
regions: {us-east-1: US}
history: {path: controller.history}
"""
SCENARIO = """
name: example
round_trips: round_trips.csv
duration: 1s
slots: 4
regions: {us-east-1: {jurisdiction: US, replicas: 2}, eu-west-1: {jurisdiction: EU, replicas: 2}}
workloads: {chat: {conversations: {}}}
clients: [{region: us-east-1, workload: chat, clients: 1}]
runs: [{system: nightside}]
"""


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def read_in_a_cluster(path: Path) -> RegionFile:
    """Read a region file as in a pod, where replicas may be found by labels."""
    around = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", SERVICE_ACCOUNT_VARIABLE: str(path.parent)}
    return read_region_file(path, around)


def read_without_a_fleet(path: Path) -> Scenario:
    return load_scenario(path, {}, without_a_fleet)


SCHEMA = json.loads((ROOT / "deploy/helm/nightside/values.schema.json").read_text())
_VERSIONED = frozenset(["version"])
KINDS = (
    Kind(frozenset(TableFile.model_fields), _VERSIONED, read_table_file),
    Kind(frozenset(PolicyDocument.model_fields), _VERSIONED, load_policy),
    Kind(frozenset(PricesFile.model_fields), _VERSIONED, read_prices),
    Kind(frozenset(["profiles"]), frozenset(["profiles"]), read_profiles),
    Kind(frozenset(SCHEMA["properties"]), frozenset(["image"]), lambda path: jsonschema.validate(loaded(path), SCHEMA)),
    Kind(_names(RegionFile, CoreConfig, Sections), frozenset(), read_in_a_cluster, REGION),
    Kind(_names(ControllerFile, controller.config.ControllerSections), frozenset(), read_controller_file, CONTROLLER),
    Kind(frozenset(Scenario.model_fields), frozenset(["duration"]), read_without_a_fleet),
    Kind(frozenset(Scenario.model_fields), frozenset(), load_scenario, SCENARIO),
)
"""Kinds from the narrowest to the widest. A scenario with a duration is one for live endpoints."""


def kind_of(document: dict[str, Any]) -> Kind | None:
    """First kind of file that has all of the keys; None for another program's. Raises LookupError for none of them."""
    if FOREIGN.keys() & document.keys():
        return None
    for kind in KINDS:
        if kind.required <= document.keys() <= kind.keys:
            return kind
    raise LookupError(f"no file has all of the keys {', '.join(document)}")


FILES = ("admin-token", "grafana-token", "pager-token", "db-password", "nightside.key", "webhook-secret")
"""Files with secrets that examples name; their content is not looked at."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with the files that examples name, and the example of a placement plug-in installed."""
    site = tmp_path / "site"
    shutil.copytree(ROOT / "docs/examples/placement_plugin", site)
    about = site / "nightside_packed-1.0.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: nightside-packed\nVersion: 1.0.0\n")
    (about / "entry_points.txt").write_text("[nightside.placement]\npacked = nightside_packed:Packed\n")
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "nightside_packed", raising=False)
    (tmp_path / "namespace").write_text("mesh")
    (tmp_path / "gsm8k.jsonl.gz").write_bytes(gzip.compress(b'{"question": "How many?"}\n'))
    sample = (ROOT / "loadgen/traces/sample.jsonl").read_bytes()
    (tmp_path / "conversation_trace.jsonl.gz").write_bytes(gzip.compress(sample))
    (tmp_path / "round_trips.csv").write_bytes((ROOT / "loadgen/demo/round_trips.csv").read_bytes())
    for name in FILES:
        (tmp_path / name).write_text("MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")
    (tmp_path / "regions.yaml").write_bytes((ROOT / "policies/regions.yaml").read_bytes())
    (tmp_path / "keys.yaml").write_text("version: 1\nkeys: []\n")
    return tmp_path


def check_yaml(text: str, folder: Path) -> None:
    """Read every document of a block. Raises ConfigError, LookupError or YAMLError."""
    for document in yaml.safe_load_all(text):
        kind = kind_of(document)
        if kind is None:
            continue
        whole = (yaml.safe_load(kind.base) or {}) | document
        path = folder / "example.yaml"
        path.write_text(re.sub(r"/(?:etc|var/lib)/nightside\b", str(folder), yaml.safe_dump(whole, sort_keys=False)))
        kind.read(path)


# Other languages


def check_python(text: str, _: Path) -> None:
    """Compile a block and look up what it imports. Raises SyntaxError, ImportError or AttributeError."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for each in node.names:
                importlib.import_module(each.name)
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None, "relative imports have no place on a page"
            for each in node.names:
                getattr(importlib.import_module(node.module), each.name)


def check_json(text: str, _: Path) -> None:
    """Load a block as one document or, failing that, as a document a line. Raises ValueError."""
    try:
        json.loads(text)
    except ValueError:
        for line in text.splitlines():
            json.loads(line)


def check_shell(text: str, _: Path) -> None:
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    if done.returncode or done.stderr:
        raise SyntaxError(done.stderr)


CHECKS: dict[str, Callable[[str, Path], object]] = {
    "json": check_json,
    "python": check_python,
    "sh": check_shell,
    "toml": lambda text, _: tomllib.loads(text),
    "yaml": check_yaml,
}
SHOWN_ONLY = {"", "console", "text"}
"""Languages of output and pictures, and of sessions whose commands tests/integration/test_pages.py checks."""
CHECKED = [each for each in ALL if each.language in CHECKS]


@pytest.mark.parametrize("example", CHECKED, ids=lambda each: each.place)
def test_every_example_is_read_as_its_reader_would(example: Example, folder: Path) -> None:
    CHECKS[example.language](example.text, folder)


def test_every_block_has_a_language_that_is_checked_or_only_shown() -> None:
    assert len(CHECKED) > 90, "nothing is looked at"
    assert {each.language for each in ALL} - SHOWN_ONLY == set(CHECKS)
    fences = sum(len(re.findall(r"^ *```", page.read_text(), re.MULTILINE)) for page in PAGES)
    assert fences == 2 * len(ALL), "a block is not closed, or not found"


@pytest.mark.parametrize(
    ("language", "text", "fault"),
    [
        ("yaml", "placement: {polcy: cost}", "placement.polcy: is not a known key"),
        ("yaml", "gateway: a b\nregion: us-east-1\njurisdiction: US", "gateway: 'a b' should be"),
        ("yaml", "store: {kind: floppy}", "store.kind"),
        ("yaml", "duration: 2m\nclients: [{workload: none, clients: 20}]", "workloads: is missing"),
        ("yaml", "version: 1\nregion: eu-west-1\njurisdiction: EU\nprocess: {}", "accept: is missing"),
        ("yaml", "image: {repository: nightside}\nregion: us-east-1", "is a required property"),
        ("yaml", "nonsense: 1", "no file has all of the keys nonsense"),
        ("yaml", "apiVersion: [", "while parsing"),
        ("python", "from gateway.core.placement.layered import Layers", "Layers"),
        ("python", "import gateway.nowhere", "gateway.nowhere"),
        ("python", "def f(:", "invalid syntax"),
        ("json", '{"wanted": 3,}', "Illegal trailing comma|Expecting property name"),
        ("sh", "nightside keys list 'keys.yaml", "unexpected EOF"),
        ("toml", "packed = ", "Invalid value"),
    ],
)
def test_a_wrong_example_is_found(language: str, text: str, fault: str, folder: Path) -> None:
    with pytest.raises(Exception, match=fault):
        CHECKS[language](text, folder)


def test_a_block_in_a_list_is_found_without_its_indent() -> None:
    text = "1. First\n\n   ```yaml\n   a:\n     b: 1\n   ```\n\n```json\n{}\n```\n"
    assert [*examples_in(text, "page.md")] == [
        Example("page.md:3", "yaml", "a:\n  b: 1\n"),
        Example("page.md:8", "json", "{}\n"),
    ]
