"""Commands as README and docs print them: each exists with all of its options, and those that need no mesh, cloud or
hours are run.

README, docs/how_to/operations.md, docs/how_to/coming_from.md and the pages of docs/get_started are run step by step by
tests of their own.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import nightside
from loadgen.bench.main import bench_names
from loadgen.studies.main import results
from tests.support.calibrations import calibration, write_calibration
from tests.support.walk import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "policies/README.md")),
    *sorted(
        page
        for page in (ROOT / "docs").rglob("*.md")
        if page.name == "README.md" or (page.parent.name != "results" and page.name != "command_line.md")
    ),
    *sorted((ROOT / "terraform").rglob("*.md")),
]
WALKED = {
    "README.md",
    "docs/get_started/kubernetes.md",
    "docs/get_started/one_region.md",
    "docs/get_started/three_clouds.md",
    "docs/get_started/three_regions.md",
    "docs/how_to/coming_from.md",
    "docs/how_to/operations.md",
}
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```\s*$", flags=re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^ {4}(nightside .*)$", flags=re.MULTILINE)
_INLINE = re.compile(r"`((?:nightside|make) [^`\n]+)`")
_OURS = re.compile(r"(?:^|[\s(])nightside ([a-z].*)")
_WITHIN = re.compile(r"(?:\$\(|&&|\|\||[;|/]|\bdo|--|\bexec \S+) ?(nightside [a-z].*)")
"""Command of ours behind another one, or run by it."""
_REST = re.compile(r"\s(?:[|>&#]|2>)|\)$|…")
"""End of the command: a pipe, a comment, or a part that the page leaves to its reader."""
_SUBSTITUTED = re.compile(r'"\$\((?!nightside)[^)]*\)"')
_PROMPT = re.compile(r"^[$#] (?=\w)")


@dataclass(frozen=True)
class Printed:
    page: str
    text: str
    is_block: bool
    """True if it stands in a block to be pasted, and not in a sentence."""

    @property
    def words(self) -> list[str]:
        """Words after `nightside`; empty for other commands."""
        found = _OURS.search(_SUBSTITUTED.sub("WORD", self.text))
        return [] if found is None else shlex.split(_REST.split(found[1])[0])


def printed_in(page: Path) -> Iterator[Printed]:
    text, name = page.read_text(), str(page.relative_to(ROOT))
    for language, block in _FENCE.findall(text):
        if language not in ("", "sh", "bash", "console"):
            continue
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            is_command = language != "console" or _PROMPT.match(line)
            command = _PROMPT.sub("", line.strip())
            if is_command and re.match(r"(?:nightside|make|pip|openssl|[A-Z_]+=\S+ nightside) ", command):
                yield Printed(name, command, is_block=True)
            elif is_command and not command.startswith("#"):
                yield from (Printed(name, found[1], is_block=False) for found in _WITHIN.finditer(command))
    text = _FENCE.sub("", text)
    yield from (Printed(name, command.strip(), is_block=True) for command in _INDENTED.findall(text))
    yield from (Printed(name, command.strip(), is_block=False) for command in _INLINE.findall(text))


ALL = [each for page in PAGES for each in printed_in(page)]


def fault_of(words: Sequence[str]) -> str | None:
    """Fault that the command line would report for these words' commands and options."""
    command: click.Command = nightside.main
    options = {"--help", "-h", "--version"}
    taken: list[str] = []
    for number, word in enumerate(words):
        if isinstance(command, click.Group) and re.match(r"[a-z]", word):
            found = command.get_command(click.Context(command), word)
            if taken == ["bench"] and word in bench_names():
                return None
            if found is None:
                return f"there is no command {' '.join([*taken, word])}"
            command = found.load() if isinstance(found, nightside.LazyCommand) else found
            taken.append(word)
            options |= {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
            continue
        for given in words[number:]:
            if re.match(r"--?[a-z]", given) and given.partition("=")[0] not in options:
                return f"{' '.join(taken)} has no option {given}"
        break
    return None


def test_every_command_that_is_named_exists_with_all_of_its_options() -> None:
    ours = [each for each in ALL if each.words]
    assert len(ours) > 250, "nothing is looked at"
    assert [(each.page, each.text, fault) for each in ours if (fault := fault_of(each.words))] == []


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("nightside plann", "there is no command plann"),
        ("nightside keys ad keys.yaml", "there is no command keys ad"),
        ("nightside plan FILE --format nightside", "plan has no option --format"),
        ("nightside sim skewed_day -o out/   # a comment --with options", None),
    ],
)
def test_one_that_does_not_is_found(command: str, fault: str | None) -> None:
    assert fault_of(Printed("page", command, is_block=True).words) == fault


def test_every_make_target_that_is_printed_can_be_made() -> None:
    """Dry run only: the targets take minutes."""
    commands = {_REST.split(each.text)[0].strip() for each in ALL if each.text.startswith("make ")}
    assert len(commands) > 15, "nothing is looked at"
    for command in sorted(commands):
        words = [*shlex.split(command), "--dry-run", "--silent"]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr}"
    named = {name for command in commands for name in re.findall(r"make results NAME=([\w-]+)", command)}
    assert len(named) > 8, "nothing is looked at"
    assert named - {"records", "study"} <= set(results.commands)


# Commands that are run


NEEDS = {
    "docs/how_to/batches.md": {"nightside batch": "a gateway with batches: tests/integration/test_batch_command.py"},
    "docs/how_to/alerts.md": {
        "nightside gateway status": "a gateway: tests/integration/test_readme.py",
        "nightside explain": "a gateway that has served: tests/integration/test_get_started.py",
    },
    "docs/concepts/controller.md": {
        "nightside controller run controller.yaml": "runs until it is told to stop: tests/integration/test_readme.py"
    },
    "docs/how_to/disaggregated.md": {
        "nightside engine": "runs until it is told to stop: tests/integration/test_disaggregated.py"
    },
    "docs/how_to/front.md": {"nightside gateway": "the page's file: tests/integration/faults/test_front.py"},
    "docs/how_to/identity.md": {"nightside ctl freeze": "a controller"},
    "docs/how_to/keys.md": {"nightside gateway usage": "a gateway that runs: tests/integration/test_usage.py"},
    "docs/how_to/load.md": {"nightside load": "endpoints: tests/integration/test_readme.py"},
    "docs/how_to/spot.md": {"nightside replica": "a gateway: tests/integration/test_leaving.py"},
    "docs/how_to/pools.md": {
        "nightside plan --metrics": "a gateway that has counted",
        "nightside engine": "runs until it is told to stop: tests/integration/test_readme.py",
    },
    "docs/how_to/predictors.md": {
        "pip install": "a package index",
        "nightside fit predictor --history": "what a gateway wrote",
    },
    "docs/how_to/prices.md": {"nightside audit price": "what a gateway wrote"},
    "docs/reference/records.md": {"nightside audit verify": "what a gateway wrote: tests/integration/test_audit.py"},
    "docs/how_to/simulator.md": {
        "nightside sim skewed_day --sweep seed=1,2,3 --ray": "a Ray cluster: tests/integration/test_ray.py",
        "nightside results trial": "recorded traces",
    },
    "docs/how_to/tenant_limits.md": {
        "nightside gateway check": "a region file with tenants: tests/unit/gateway/app/test_commands.py"
    },
    "docs/how_to/stores.md": {"nightside controller run": "a store that is shared: tests/cloud"},
}
"""Commands that are checked and not run here, by their beginning, with what each would need, or the test that
runs it.
"""
LIGHTER = {
    ("sim", "--chaos"): ["--runs", "1"],
    ("sim",): ["--set", "duration=500ms", "--set", "warm_up=250ms"],
    ("plan",): ["--formula"],
}
"""Options that shorten a command to the time that a test has."""


def to_be_run() -> Iterator[Printed]:
    for each in ALL:
        elsewhere = each.page in WALKED or each.page.startswith("terraform/") or each.text.startswith("make ")
        if each.is_block and not elsewhere and not each.text.startswith(tuple(NEEDS.get(each.page, ()))):
            yield each


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reader's folder: the checkout's files, and those that the pages show or assume."""
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    shutil.copytree(ROOT / "policies", tmp_path / "policies")
    shutil.copy(ROOT / "docs/examples/prices.yaml", tmp_path)
    (tmp_path / "controller.yaml").write_text(
        "controller: controller-1\nstore: {path: controller.db}\nregions: {us-east-1: US}\n"
    )
    (profiles,) = re.findall(
        r"^```yaml\n(profiles:.*?)^```$", (ROOT / "docs/how_to/pools.md").read_text(), re.MULTILINE | re.DOTALL
    )
    (tmp_path / "profiles.yaml").write_text(profiles)
    write_calibration(tmp_path / "chat.calibration.jsonl", calibration(96, 16, experts=64))
    (tmp_path / "rates.csv").write_text("hour,rate\n" + "".join(f"{hour},{hour % 12 + 1}\n" for hour in range(24)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.nightly
@pytest.mark.parametrize("page", sorted({each.page for each in to_be_run()}))
def test_what_a_page_prints_runs_in_its_order(page: str, folder: Path) -> None:
    for each in (each for each in to_be_run() if each.page == page):
        if not each.words:
            subprocess.run(["sh", "-c", each.text], cwd=folder, check=True, capture_output=True)
            continue
        more = next((more for first, more in LIGHTER.items() if set(first) <= set(each.words)), [])
        done = CliRunner().invoke(nightside.main, [*each.words, *more])
        assert done.exit_code == 0, f"{each.text}\n{done.output}"


def test_what_is_not_run_is_still_printed() -> None:
    stale = [
        (page, beginning)
        for page, needs in NEEDS.items()
        for beginning in needs
        if not any(each.page == page and each.text.startswith(beginning) for each in ALL)
    ]
    assert stale == []
