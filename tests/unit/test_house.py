"""Rules of the repository that no single module can keep: what files may contain, which versions are pinned, and that
checks can fail.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gateway.conformance.purity import impurities

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
BUILT = {".git", ".hypothesis", "build", "dist", "node_modules", "out", "__pycache__"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

ENGINE = ROOT / "loadgen/engine"
PURE_FILES = [*sorted((ROOT / "gateway/core").rglob("*.py")), ENGINE / "blocks.py", ENGINE / "model.py"]


def is_built(name: str) -> bool:
    return name in BUILT or name.startswith(".venv") or name.endswith(("_cache", ".egg-info"))


def text_files() -> Iterator[tuple[str, str]]:
    """Path and content of every file that is part of the repository, except this one. Folders of what is built are not
    entered: environments have tens of thousands of files."""
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(each for each in folders if not is_built(each))
        for path in (Path(folder, name) for name in sorted(files) if not is_built(name)):
            if path.is_file() and path != Path(__file__):
                yield str(path.relative_to(ROOT)), path.read_text(errors="replace")


def test_no_file_names_a_place_on_one_machine() -> None:
    banned = re.compile(r"/work/|/root/|/home/\w|/tmp/\w|shared/(design|papers|traces)|\.\./shared|file:///")
    assert [(path, match.group()) for path, text in text_files() if (match := banned.search(text))] == []


NAMED_FILE = re.compile(r"(?<![\w./{}*-])((?:[a-z_][\w.-]*/)*[\w-]+\.(?:py|md))\b")
NAMED_MODULE = re.compile(r"`((?:gateway|controller|loadgen|mesh(?!\.example)|protos)(?:\.[a-z_]\w*)+)`")
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


def telling_files() -> Iterator[Path]:
    """Pages and sources that name other files by their paths."""
    yield from ROOT.glob("*.md")
    yield from ROOT.glob("*.py")
    for folder in ("docs", "policies", "gateway", "controller", "loadgen", "mesh", "engine_plugins"):
        yield from (path for path in (ROOT / folder).rglob("*.*") if path.suffix in {".md", ".py"})


def named_in(path: Path, anywhere: set[str]) -> Iterator[tuple[str, bool]]:
    """Names of files and modules in a page or source, and whether each exists: from the root, beside the page, or by
    its name anywhere.
    """
    text = path.read_text()
    for name in NAMED_FILE.findall(text):
        yield name, name in anywhere or (ROOT / name).exists() or (path.parent / name).exists()
    for module in NAMED_MODULE.findall(text):
        source = ROOT / module.replace(".", "/")
        yield module, source.is_dir() or source.with_suffix(".py").is_file()
    if path.suffix == ".md":
        yield from ((link, (path.parent / link).exists()) for link in LINK.findall(text) if "://" not in link)


def test_files_that_are_named_are_there() -> None:
    anywhere = {path.name for path in telling_files()}
    named = [(str(path), *each) for path in telling_files() for each in named_in(path, anywhere)]
    assert len(named) > 100, "nothing is looked at"
    assert [(path, name) for path, name, is_there in named if not is_there] == []


ANCHORED = re.compile(r"\]\(([^)#\s:]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", flags=re.MULTILINE)


def anchors_of(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(page.read_text())}


def test_sections_that_are_linked_to_are_there() -> None:
    pages = [path for path in telling_files() if path.suffix == ".md"]
    links = [(page, *link) for page in pages for link in ANCHORED.findall(page.read_text())]
    assert len(links) > 10, "nothing is looked at"
    missing = [
        (page.name, f"{file}#{anchor}")
        for page, file, anchor in links
        if anchor not in anchors_of(page.parent / file if file else page)
    ]
    assert missing == []


def test_unit_tests_mirror_the_tree() -> None:
    unit = ROOT / "tests/unit"
    of_the_house = {unit / "test_house.py"}
    for test in set(unit.rglob("test_*.py")) - of_the_house:
        tested = ROOT / test.relative_to(unit).with_name(test.name.removeprefix("test_"))
        assert tested.is_file() or tested.with_suffix("").is_dir(), f"{test} tests nothing: there is no {tested}"


PUBLIC_CLASS = re.compile(r"^class ([^\W_]\w*)", flags=re.MULTILINE)


def files_by_class(roots: Iterable[Path]) -> dict[str, list[str]]:
    """Files that define each public class, by its name."""
    found: dict[str, list[str]] = {}
    for path in (path for root in roots for path in sorted(root.rglob("*.py")) if "_pb2" not in path.name):
        for name in PUBLIC_CLASS.findall(path.read_text()):
            found.setdefault(name, []).append(str(path))
    return found


def test_a_class_name_means_one_class(tmp_path: Path) -> None:
    files = files_by_class(ROOT / folder for folder in ("gateway", "controller", "mesh", "loadgen"))
    assert len(files) > 1000, "nothing is looked at"
    assert {name: paths for name, paths in files.items() if len(paths) > 1} == {}
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("class Twice: ...\nclass _Own: ...\n")
    assert {name: len(paths) for name, paths in files_by_class([tmp_path]).items()} == {"Twice": 2}


SOURCES = ("gateway", "controller", "mesh", "loadgen", "engine_plugins", "tests")
CODE = re.compile(r"[^#\w]*\w")
REPEATED_LINES = 6
REPEATED_MAX = 50
"""Pairs of places that may share so many lines, word for word. Fewer is better, more needs a decision."""


def code_lines(path: Path) -> list[tuple[int, str]]:
    """Number and text of each line of code: without imports, comments, blank lines, lone brackets and white space."""
    lines: list[tuple[int, str]] = []
    imports = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if imports or line.startswith(("import ", "from ")):
            imports = line.endswith("(") or (imports and line != ")")
        elif CODE.match(line):
            lines.append((number, " ".join(line.split())))
    return lines


def repeated_places(paths: Iterable[Path]) -> list[str]:
    """Pairs of places that share six lines or more, each named by its beginning."""
    places: dict[tuple[str, ...], list[tuple[Path, int, int]]] = {}
    for path in paths:
        lines = code_lines(path)
        texts = [text for _, text in lines]
        for at in range(len(lines) - REPEATED_LINES + 1):
            run = tuple(texts[at : at + REPEATED_LINES])
            places.setdefault(run, []).append((path, at, lines[at][0]))
    pairs = {(a[:2], b[:2]): (a, b) for each in places.values() for a, b in combinations(each, 2)}
    return [
        f"{a[0]}:{a[2]} {b[0]}:{b[2]}"
        for ((one, at), (other, there)), (a, b) in sorted(pairs.items())
        if ((one, at - 1), (other, there - 1)) not in pairs
    ]


def test_code_is_seldom_written_twice(tmp_path: Path) -> None:
    paths = [path for folder in SOURCES for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(paths) > 1500, "nothing is looked at"
    repeated = repeated_places(paths)
    assert len(repeated) <= REPEATED_MAX, "\n".join(repeated)
    same = [f"    step({number})\n" for number in range(REPEATED_LINES + 2)]
    (tmp_path / "a.py").write_text("def one():\n" + "".join(same))
    (tmp_path / "b.py").write_text("# Other.\n\ndef other():\n" + "\n".join(same) + "    more()\n")
    (tmp_path / "c.py").write_text("def third():\n" + "".join(same[1:REPEATED_LINES]))
    assert repeated_places(sorted(tmp_path.iterdir())) == [f"{tmp_path}/a.py:2 {tmp_path}/b.py:4"]


LONGEST_FILE = {
    "gateway/core/kernel": 500,
    "gateway/core/placement": 560,
    "gateway/request": 490,
    "gateway/door": 450,
    "gateway/http1": 850,
    "gateway/engines": 460,
}
"""Lines of the longest file that a request passes through. They may become fewer, and no more."""


@pytest.mark.parametrize(("folder", "lines_max"), LONGEST_FILE.items())
def test_files_on_a_requests_path_stay_short(folder: str, lines_max: int) -> None:
    sizes = {str(path): len(path.read_text().splitlines()) for path in sorted((ROOT / folder).rglob("*.py"))}
    assert sizes, "nothing is looked at"
    assert {path: size for path, size in sizes.items() if size > lines_max} == {}


def test_pure_modules_import_and_call_only_what_is_pure() -> None:
    assert len(PURE_FILES) > 150, "nothing is looked at"
    found = {path: list(impurities(ast.parse(path.read_text()), own=["loadgen.engine"])) for path in PURE_FILES}
    assert {path: each for path, each in found.items() if each} == {}


def pins(lock: str) -> dict[str, set[str]]:
    """Every version pinned for each package; one package may have several, each for other Python versions."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / lock).read_text(), flags=re.MULTILINE):
        found.setdefault(canonicalize_name(name), set()).add(version)
    return found


@pytest.mark.parametrize(
    ("lock", "requirements"),
    [
        ("requirements.lock", PROJECT["dependencies"]),
        ("requirements-dev.lock", [*PROJECT["dependencies"], *EXTRAS["test"], *EXTRAS["check"]]),
    ],
)
def test_every_requirement_is_pinned_within_its_range(lock: str, requirements: list[str]) -> None:
    pinned = pins(lock)
    for requirement in map(Requirement, requirements):
        versions = pinned.get(canonicalize_name(requirement.name), set())
        assert versions, f"{requirement} is not in {lock}: run make lock"
        assert all(requirement.specifier.contains(version) for version in versions), (
            f"{requirement} but {versions}: run make lock"
        )


def test_both_locks_pin_the_same_versions() -> None:
    assert pins("requirements.lock").items() <= pins("requirements-dev.lock").items()


@pytest.mark.parametrize("lock", sorted(path.name for path in ROOT.glob("*.lock")))
def test_locks_name_no_index_and_hash_everything(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    assert "--index" not in text
    blocks = re.split(r"^(?=[\w])", text, flags=re.MULTILINE)[1:]
    assert [block for block in blocks if "--hash=sha256:" not in block] == []


@pytest.mark.parametrize("program", ["gateway", "controller"])
def test_groups_of_tasks_are_those_that_can_be_stopped(program: str) -> None:
    """asyncio.TaskGroup can forget that it was cancelled before Python 3.13, and servers are stopped at any moment:
    only mesh/task_group.py may use it.
    """
    ours = {path for path in (ROOT / program).rglob("*.py") if "asyncio.TaskGroup" in path.read_text()}
    assert ours <= {ROOT / "mesh/task_group.py"}


def test_the_changelog_is_short_and_names_every_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (.+)$", text, flags=re.MULTILINE) == ["[Unreleased]", "[0.1.0] - 2026-11-30"]
    assert re.findall(r"^### (.+)$", text, flags=re.MULTILINE) == ["Changed", "Added", "Fixed"]
    assert 600 < len(text.split()) < 1_500


def test_the_image_is_built_without_being_told_what_on() -> None:
    (base,) = re.findall(r"^ARG BASE_IMAGE=(\S+)$", (ROOT / "deploy/image/Dockerfile").read_text(), flags=re.MULTILINE)
    assert re.fullmatch(r"docker\.io/library/python:3\.11-slim-\w+", base)
    compose = (ROOT / "deploy/compose/compose.yaml").read_text()
    assert f"BASE_IMAGE: ${{BASE_IMAGE:-{base}}}" in compose


def test_what_the_image_is_built_from_reaches_the_build() -> None:
    """The wheel's sources must be let in by .dockerignore: the build sees nothing else."""
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert {"gateway", "controller", "loadgen", "mesh", "protos", "policies", "nightside.py", "setup.py"} <= let_in


def test_no_compiled_module_has_a_class_that_is_read_by_its_annotations() -> None:
    """Compiled classes keep simplified annotations: msgspec would decode `list[Choice]` as a list of dicts."""
    (names,) = re.findall(r"^COMPILED = \((.*?)^\)", (ROOT / "setup.py").read_text(), flags=re.MULTILINE | re.DOTALL)
    modules = re.findall(r'"([^"]+)"', names)
    assert len(modules) > 150
    assert modules == sorted(modules)
    read = re.compile(r"^class \w+\(.*(\b(Struct|BaseModel)\b|, frozen=)", flags=re.MULTILINE)
    assert [each for each in modules if read.search((ROOT / each).read_text())] == []


def test_every_make_target_is_explained() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE)[0].split()
    shown = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = shown.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == targets
    assert [line for line in lines if len(line) > 120] == []
    assert [line for line in lines if line and not line.startswith("  ")][:3] == ["Setup", "Run", "Test"]


def test_nightly_runs_the_tests_that_make_test_leaves_out() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (prerequisites,) = re.findall(r"^nightly: ([^#]*)", makefile, flags=re.MULTILINE)
    assert {"test", "test-nightly"} <= set(prerequisites.split())
    chosen = dict(
        re.findall(r"^(test|test-nightly):.*\n\t.* -m (\"not nightly\"|nightly) \$\(ARGS\)$", makefile, re.MULTILINE)
    )
    assert chosen == {"test": '"not nightly"', "test-nightly": "nightly"}


def test_a_missing_test_program_is_named_and_fails(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.write_text("# a comment\n\nsh dash the shell\nno-such-program - a reason to have it\n")
    done = subprocess.run([ROOT / ".ci/setup-tests", programs], capture_output=True, text=True)
    assert done.returncode == 1
    assert "no-such-program (Debian package -): a reason to have it" in done.stderr
    assert "the shell" not in done.stderr


BANNED_LINES = [
    "import time\nNOW = time.monotonic_ns()",
    "import datetime\nNOW = datetime.datetime.now(datetime.UTC)",
    "import random\nCHANCE = random.random()",
    "import os\nHOME = os.environ['HOME']",
    "import os\nHOME = os.getenv('HOME')",
    "import asyncio\nasyncio.create_task(asyncio.sleep(0))",
    "import pickle\nDATA = pickle.loads(b'')",
    "from unittest.mock import patch\nPATCH = patch",
]


@pytest.mark.parametrize("line", BANNED_LINES)
def test_the_linter_bans_with_a_reason(line: str) -> None:
    ruff = [str(BIN / "ruff"), "check", "--output-format=concise", "--stdin-filename", "gateway/probe.py", "-"]
    done = subprocess.run(ruff, cwd=ROOT, input=line, capture_output=True, text=True)
    assert done.returncode == 1
    assert "TID251" in done.stdout


LAYER_BREAKS = [
    ("gateway/core/probe.py", "import time", "Pure"),
    ("gateway/core/probe.py", "import gateway.request.legs", "Gateway"),
    ("gateway/door/probe.py", "import gateway.peers", "Gateway"),
    ("gateway/door/probe.py", "import protos.mesh.v1.peer_pb2", "Wire"),
    ("gateway/engines/probe.py", "import loadgen.wan", "Roots"),
    ("gateway/new_room.py", "", "Gateway"),
    ("controller/probe.py", "import gateway.core.kernel.events", "Controller"),
    ("gateway/app/probe.py", "import gateway.features.disaggregated.fit.trees", "Fitting"),
    ("gateway/features/disaggregated/extension.py", "import gateway.features.disaggregated.fit.trees", "Fitting"),
    ("gateway/state/probe.py", "import sklearn", "Fitting"),
    ("loadgen/probe.py", "import gateway.request.driver", "Load"),
    ("loadgen/probe.py", "import nightside", "Command"),
]


@pytest.fixture(scope="module")
def tree_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("tree")
    shutil.copy(ROOT / "pyproject.toml", copy)
    for package in ("gateway", "controller", "loadgen", "mesh", "protos"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="module")
def broken_contracts(tree_copy: Path) -> dict[str, str]:
    """Violations that the linter reports of each broken contract, by the first word of its name, in a copy of the tree
    with every break.
    """
    for path, line, _ in LAYER_BREAKS:
        with (tree_copy / path).open("a") as probe:
            probe.write(f"{line}\n")
    command = [str(BIN / "lint-imports"), "--no-logo", "--no-cache"]
    done = subprocess.run(command, cwd=tree_copy, capture_output=True, text=True)
    assert done.returncode == 1
    _, *told = re.split(r"^([A-Z][\w' ]*): ", done.stdout.partition("Broken contracts\n")[2], flags=re.MULTILINE)
    return {name: " ".join(violations.split()) for name, violations in zip(told[::2], told[1::2], strict=True)}


@pytest.mark.parametrize(("path", "line", "contract"), LAYER_BREAKS)
def test_the_layers_hold(broken_contracts: dict[str, str], path: str, line: str, contract: str) -> None:
    module = path.removesuffix(".py").replace("/", ".")
    violation = f"{module} -> {line.removeprefix('import ')} (" if line else f"not listed as layers: - {module} "
    assert violation in broken_contracts[contract]
