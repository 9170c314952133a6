"""Tools of other projects, and the runs for which each is started: commands, parsers of reports, and known differences.

Commands are templates: `{us}`, `{eu}` and `{ap}` are the gateways' URLs, `{model}` the model, `{tokenizer}`,
`{body}` and `{config}` files, and `{out}` the folder of the run.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from loadgen.studies.outside.readings import (
    Reading,
    read_folder_of_aiperf,
    read_folder_of_guidellm,
    read_folder_of_schemathesis,
    read_h2load,
    read_slowhttptest,
    read_wrk,
)

ENVIRONMENTS = Path(".venv-outside")
PLACES = ("us", "eu", "ap", "model", "tokenizer", "body", "config", "out")
LOG = "log.txt"
"""File in a run's folder with what the tool printed."""


@dataclass(frozen=True, slots=True)
class OutsideTool:
    """Tool of another project."""

    name: str
    package: str
    """Package by which it is installed."""
    shows_version: tuple[str, ...] = ("--version",)
    is_python: bool = True
    """Installed from PyPI into an environment of its own; else a program of the system."""

    def program(self, environments: Path) -> Path | None:
        """Path of the program; None where it is not installed."""
        if self.is_python:
            path = environments / self.name / "bin" / self.name
            return path.absolute() if path.exists() else None
        found = shutil.which(self.name)
        return None if found is None else Path(found)

    def version_in(self, text: str) -> str:
        """Version in what the tool prints; empty if there is none."""
        found = re.search(r"\d+(?:\.\d+)+", text)
        return "" if found is None else found[0]

    def why_absent(self, environments: Path) -> str:
        """Reason for which the tool is not installed."""
        noted = environments / f"unavailable-{self.name}"
        if self.is_python and noted.exists():
            return noted.read_text(encoding="utf-8").strip()
        return f"the package {self.package} is not installed; .ci/setup-outside installs it"


AIPERF = OutsideTool("aiperf", "aiperf")
GUIDELLM = OutsideTool("guidellm", "guidellm")
SCHEMATHESIS = OutsideTool("schemathesis", "schemathesis")
H2LOAD = OutsideTool("h2load", "nghttp2-client", is_python=False)
WRK = OutsideTool("wrk", "wrk", ("-v",), is_python=False)
SLOWHTTPTEST = OutsideTool("slowhttptest", "slowhttptest", ("-h",), is_python=False)
TOOLS = (AIPERF, GUIDELLM, SCHEMATHESIS, H2LOAD, WRK, SLOWHTTPTEST)


@dataclass(frozen=True, slots=True)
class ToolRun:
    """One start of a tool."""

    tool: OutsideTool
    name: str
    arguments: str
    read: Callable[[Path], Reading]
    """Reads the report in the run's folder."""
    deadline_s: float = 180.0
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Known reasons why a count differs from the gateways' own, by the count's name."""
    ends_badly: str = ""
    """Known reason why the tool's exit status is not 0."""

    def command(self, **places: object) -> list[str]:
        """Arguments with the places filled in."""
        return [each.format(**places) for each in self.arguments.split()]


def folder_of(folder: Path, run: ToolRun) -> Path:
    """Folder of the run beneath the folder of all."""
    return folder / f"{run.tool.name}-{run.name.replace(' ', '-')}"


def _printed(read: Callable[[str], Reading]) -> Callable[[Path], Reading]:
    return lambda folder: read((folder / LOG).read_text(encoding="utf-8", errors="replace"))


_AIPERF = (
    "profile --model {model} --url {us} --url {eu} --url {ap} --endpoint-type chat --streaming --tokenizer {tokenizer}"
    " --use-server-token-count --ui none --random-seed 1 --isl 1600 --osl 24 --artifact-dir {out}"
)
_GUIDELLM = (
    "run --backend kind=openai_http,target={us},model={model} --tokenizer kind=huggingface_auto,model={tokenizer}"
    " --data kind=synthetic_text,prompt_tokens=1600,output_tokens=16 --disable-progress"
    " --output kind=json,path={out}/benchmarks.json"
)
_SCHEMATHESIS = (
    "--config-file {config} run {us}/openapi.yaml --url {us} --max-examples 20 --seed 1 --continue-on-failure"
    " --generation-database none --report-json-path {out}/report.json"
)
_ASKS_FOR_METRICS = "AIPerf asks every URL for `/metrics`, which the clients' port answers with 404"
RUNS = (
    ToolRun(AIPERF, "concurrency sweep", f"{_AIPERF} --concurrency 8,48 --request-count 96", read_folder_of_aiperf,
            deadline_s=600.0, reasons={"failed": _ASKS_FOR_METRICS}),
    ToolRun(
        AIPERF, "request rate and goodput",
        f"{_AIPERF} --request-rate 6 --request-count 120 --goodput time_to_first_token:1000",
        read_folder_of_aiperf, deadline_s=300.0, reasons={"failed": _ASKS_FOR_METRICS},
    ),
    ToolRun(
        AIPERF, "cancellation",
        f"{_AIPERF} --concurrency 16 --request-count 120"
        " --request-cancellation-rate 30 --request-cancellation-delay 0.5",
        read_folder_of_aiperf, deadline_s=300.0,
        reasons={
            "failed": _ASKS_FOR_METRICS,
            "prompt_tokens": "AIPerf counts those of completed requests, the gateways every prompt that an engine had",
            "output_tokens": "AIPerf counts those of completed requests, the gateways all that were sent",
        },
    ),
    ToolRun(GUIDELLM, "sweep", f"{_GUIDELLM} --profile kind=sweep,sweep_size=3 --constraint kind=max_requests,count=24",
            read_folder_of_guidellm, deadline_s=600.0, reasons=dict.fromkeys(
                ("completed", "prompt_tokens", "output_tokens"),
                "guidellm may end a strategy while it still processes a request, which it then leaves out",
            )),
    ToolRun(H2LOAD, "whole answers",
            "--h1 -n 400 -c 16 -d {body} -H content-type:application/json {us}/v1/chat/completions",
            _printed(read_h2load)),
    ToolRun(WRK, "list of models", "-t 1 -c 16 -d 10s --latency {us}/v1/models", _printed(read_wrk),
            reasons={"completed": "the gateways count requests for engines, not those for pages of their own"}),
    ToolRun(SLOWHTTPTEST, "slow heads", "-H -c 300 -r 100 -i 5 -l 20 -p 2 -u {us}/v1/models",
            _printed(read_slowhttptest)),
    ToolRun(SLOWHTTPTEST, "slow bodies", "-B -c 300 -r 100 -i 5 -l 20 -p 2 -s 4096 -u {us}/v1/chat/completions",
            _printed(read_slowhttptest)),
    ToolRun(
        SCHEMATHESIS, "every operation", _SCHEMATHESIS, read_folder_of_schemathesis, deadline_s=900.0,
        ends_badly="it found the failures that follow; on 2026-11-29 all answers in them were the engine's, passed on"
        " as the description says, and network errors were answers that took longer than the 10 s that it waits",
    ),
)  # fmt: skip
