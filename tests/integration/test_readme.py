"""README: its commands, followed to the letter on a machine without a GPU, its length, its links and its figures, which
are those of the overview of results."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.walk import ROOT, Block, blocks_of, is_as_shown, run

PAGE = (ROOT / "README.md").read_text()
CONTROLLER = (ROOT / "docs/concepts/controller.md").read_text()
RESULTS = ROOT / "docs/results"
ASK = """curl --silent --fail-with-body --header 'content-type: application/json' \\
  --data '{"model": "Qwen/Qwen3-8B", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}' \\
  %s/v1/chat/completions | grep -o '"finish_reason":"length"'
"""
TARGETS = dict(re.findall(r"^\[(\w+)\]: (\S+)$", PAGE, flags=re.MULTILINE))
"""Addresses of the links that rows of the table name by a word."""
MEASURED = re.findall(r"^\| (.+) \| (.+) \|(.*)\| \[(\w+)\](?:\((\S+)\))? \|$", PAGE, flags=re.MULTILINE)
"""Rows of measured results: the subject, Nightside's figures, those beside them, and the page that has both."""

OVERVIEW = re.findall(
    r"^\| (.+) \| (.+) \|(.*)\| \[\w+\]\((\S+)\) \| `.+` \|$", (RESULTS / "README.md").read_text(), flags=re.MULTILINE
)
"""Rows of the overview of results, likewise, with the page's address."""


@pytest.mark.slow
async def test_every_command_runs_as_it_is_printed(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> None:
    """Commands of the controller's page come first: without a gateway its mesh is well."""
    (file,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    engine, http, peers, admin, grpc, orders = (str(unused_tcp_port_factory()) for _ in range(6))
    listen = f"listen: {{http: '127.0.0.1:{http}', peers: '127.0.0.1:{peers}', admin: '127.0.0.1:{admin}'}}\n"
    (tmp_path / "us.yaml").write_text(file.replace(":8000", f":{engine}") + listen)
    elsewhere = {  # times become shorter, and the page's ports may be taken on this machine
        "sim skewed_day": "sim skewed_day --set duration=20s --set warm_up=5s",
        "--duration 10s": "--duration 2s --set warm_up=500ms",
        "8000": engine,
        "127.0.0.1:8080": f"127.0.0.1:{http}",
        "gateway status": f"gateway status --admin http://127.0.0.1:{admin}",
        "ctl status": f"ctl status --admin http://127.0.0.1:{orders}",
        "controller.db}": f"controller.db}}\\nlisten: {{grpc: 127.0.0.1:{grpc}, admin: 127.0.0.1:{orders}}}",
    }
    blocks = [Block(moved(block.commands, elsewhere), None) for block in [*blocks_of(CONTROLLER)[:1], *blocks_of(PAGE)]]
    assert len(blocks) == 3
    *_, tried, asked = await run([*blocks, Block(ASK % f"http://127.0.0.1:{http}", None)], tmp_path)
    assert "Lowest TTFT, p90: nightside" in tried
    assert (tmp_path / "out/sim/report.html").exists()
    assert (tmp_path / "out/load/report.html").exists()
    assert is_as_shown(asked, '…\n"finish_reason":"length"\n…\n')


def moved(commands: str, elsewhere: dict[str, str]) -> str:
    for printed, here in elsewhere.items():
        commands = commands.replace(printed, here)
    return commands


def test_it_is_short() -> None:
    lines = PAGE.splitlines()
    assert len(lines) <= 120
    assert [line for line in lines if len(line) > 120] == []
    assert len(PAGE.split()) <= 900


def test_links_by_name_lead_to_pages() -> None:
    assert len(TARGETS) >= 4, "nothing is looked at"
    assert [target for target in TARGETS.values() if not (ROOT / target.partition("#")[0]).is_file()] == []
    assert set(re.findall(r"\[(\w+)\](?![(:])", PAGE)) == set(TARGETS)


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: row[0])
def test_measured_figures_stand_on_the_page_that_their_row_names(row: tuple[str, str, str, str, str]) -> None:
    _, ours, others, name, target = row
    assert missing_figures(f"{ours} {others}", ROOT / (target or TARGETS[name]).partition("#")[0]) == []


@pytest.mark.parametrize("row", OVERVIEW, ids=lambda row: row[0])
def test_figures_of_the_overview_stand_on_their_pages(row: tuple[str, str, str, str]) -> None:
    _, ours, others, target = row
    assert missing_figures(f"{ours} {others}", RESULTS / target.partition("#")[0]) == []


def missing_figures(text: str, file: Path) -> list[str]:
    """Figures of the text that the page does not have."""
    figures, page = figures_in(text), file.read_text()
    assert figures
    return [figure for figure in figures if not re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d]|\.\d)", page)]


def figures_in(text: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?", text)


def test_the_overview_of_results_has_the_same_figures_page_by_page() -> None:
    here, there = defaultdict[Path, set[str]](set), defaultdict[Path, set[str]](set)
    for _, ours, others, name, target in MEASURED:
        here[(ROOT / (target or TARGETS[name]).partition("#")[0]).resolve()].update(figures_in(f"{ours} {others}"))
    for _, ours, others, target in OVERVIEW:
        there[(RESULTS / target.partition("#")[0]).resolve()].update(figures_in(f"{ours} {others}"))
    assert len(OVERVIEW) == 10
    assert here == there


def test_the_table_has_hits_and_misses() -> None:
    rows = [" ".join(row) for row in MEASURED]
    assert len(rows) > 10
    assert 4 < sum("**missed**" in row for row in rows) < len(rows)
