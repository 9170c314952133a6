"""Real engines as processes: started, asked how they do, stopped in every way. None outlives the tests."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from loadgen.demo.processes import log_tail
from tests.support.core import MODEL
from tests.support.metrics_pages import sums_by_name

ROOT: Final = Path(__file__).parents[2]
VLLM_FOLDER: Final = ROOT / ".venv-engines"
ORACLE_FOLDER: Final = ROOT / ".venv-engines-oracle"
"""An older vLLM, which tells of every token which experts it picked."""
LLAMACPP_FOLDER: Final = ROOT / ".venv-llamacpp"
START_S = 600.0
END_S = 30.0
_POLL_S = 0.1

RUNNING_MAX = 4
"""Requests that one vLLM here runs at once; the others wait in it."""
HELD_MAX = 8
"""Requests that may run or wait in it; more are refused."""
CONTEXT_TOKENS = 2048
KV_BLOCKS = 129
KV_BLOCK_TOKENS = 32
"""KV cache for twice the longest context (one block is vLLM's own): it fills, and forgets, within a test."""
_BEHIND = (shutil.which("nice") or "nice", "-n", "10")
LEASE_S = 20
"""How long a prefill worker here keeps what nobody fetches; vLLM's default is 30."""
PIECE_TOKENS = 96
"""Tokens a step of an engine that reads prompts in pieces."""


@dataclass(frozen=True, slots=True)
class Model:
    """What is served, by which vLLM, with which folders of packages for it to find plug-ins in."""

    name: str
    folder: Path = VLLM_FOLDER
    plugins: tuple[Path, ...] = ()


DENSE: Final = Model("tiny")


def why_missing(folder: Path) -> str:
    """Why the engine of this environment cannot be started, in words; empty when it can."""
    if (folder / "ready").is_file():
        return ""
    with suppress(FileNotFoundError):
        return (folder / "unavailable").read_text().strip()
    return f"there is no {folder.name}: make test-engines sets it up"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def reports_error(said: bytes) -> bool:
    """Does a stream say that it failed? The words alone prove nothing: random weights say `error` now and then."""
    return any(mark in said for mark in (b'data: {"error"', b"event: error\n", b"event: response.failed\n"))


class Engine:
    """One engine, whose process may come and go at the same address."""

    def __init__(self, command: Sequence[str | Path], port: int, log: Path, environment: dict[str, str]) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._command = [str(each) for each in command]
        self.log = log
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ending = False

    def start(self, *more: str) -> None:
        """With further options for this one life."""
        assert not self.is_running
        self._is_ending = False
        tether = [sys.executable, "-m", "loadgen.demo.tether", str(os.getpid())]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [*tether, *self._command, *more],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def be_up(self) -> None:
        """Start it again if it has ended, or is about to."""
        if self._is_ending:
            await self.until_gone()
        if not self.is_running:
            self.start()
        await self.until_ready()

    async def until_ready(self) -> None:
        async with asyncio.timeout(START_S):
            while not await self.is_healthy():
                assert self.is_running, f"the engine ended while it started\n{log_tail(self.log)}"
                await asyncio.sleep(_POLL_S)

    async def is_healthy(self) -> bool:
        with suppress(aiohttp.ClientError, TimeoutError):
            timeout = aiohttp.ClientTimeout(total=2)
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{self.url}/health") as answer:
                return answer.status == 200
        return False

    def terminate(self) -> None:
        """Ask its first process to end, as whoever runs containers does."""
        assert self._process is not None
        self._is_ending = True
        self._process.terminate()

    def kill(self) -> None:
        """The whole family at once: what vLLM's first process leaves behind would go on computing."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(END_S)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It takes requests and gets nowhere with them: only its first process, which speaks HTTP, goes on."""
        computing = self._computing()
        for pid in computing:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in computing:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _computing(self) -> list[int]:
        """VLLM's processes behind the first: they name themselves."""
        assert self._process is not None
        found = []
        for each in Path("/proc").iterdir():
            with suppress(OSError):  # it has ended meanwhile
                if each.name.isdecimal() and (each / "comm").read_text().startswith("VLLM::"):
                    found.append(int(each.name))
        return [pid for pid in found if _group_of(pid) == self._process.pid]

    async def until_gone(self) -> None:
        assert self._process is not None
        try:
            await asyncio.to_thread(self._process.wait, 2 * END_S)
        finally:
            self.kill()

    async def counters(self) -> dict[str, float]:
        """What its metrics page counts, by name, series added up."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as answer:
            return sums_by_name(await answer.text())

    async def until_holding(self, requests: int) -> None:
        """Until so many run or wait in it: whoever runs may be put back for a while when the KV cache is full."""
        async with asyncio.timeout(END_S):
            while await self.held() != requests:  # noqa: ASYNC110 - another process, which tells us nothing
                await asyncio.sleep(_POLL_S)

    async def until_empty(self, within_s: float = END_S) -> None:
        """Until its KV cache holds nothing for anybody, neither for who runs nor for who might fetch it. What may be
        forgotten at any time does not count."""
        async with asyncio.timeout(within_s):
            while (await self.counters())["vllm:kv_cache_usage_perc"] > 0:  # noqa: ASYNC110 - see above
                await asyncio.sleep(_POLL_S)

    async def held(self) -> float:
        counters = await self.counters()
        return counters["vllm:num_requests_running"] + counters["vllm:num_requests_waiting"]


def vllm(log: Path) -> Engine:
    """A vLLM with the tiny random model, which refuses what would wait too long."""
    return _vllm(log, {"max-num-queued-reqs": HELD_MAX}, {})


def prefill_worker(log: Path, model: Model = DENSE) -> Engine:
    """Keeps what it has read for whoever fetches it, `LEASE_S` at most. As long as it keeps anything it steps without a
    pause: on cores that it shares it would starve the very one that fetches, so it goes behind."""
    role: dict[str, object] = {"kv_role": "kv_producer", "kv_connector_extra_config": {"kv_lease_duration": LEASE_S}}
    return _nixl(log, role, model, _BEHIND)


def decode_worker(log: Path, model: Model = DENSE, role: str = "kv_consumer") -> Engine:
    """Fetches what another one has read. What it cannot fetch is a failure, as by default."""
    return _nixl(log, {"kv_role": role}, model)


def experts(log: Path, model: Model, more: Mapping[str, object], *flags: str) -> Engine:
    """A vLLM that reads prompts in pieces, and lets tests empty its prefix cache."""
    options = {"max-num-batched-tokens": PIECE_TOKENS, **more}
    return _vllm(log, options, {"VLLM_SERVER_DEV_MODE": "1"}, model=model, flags=flags)


def _nixl(log: Path, role: dict[str, object], model: Model, run: Sequence[str] = ()) -> Engine:
    """NIXL over loopback, from memory to memory."""
    config = {"kv_connector": "NixlConnector", "kv_buffer_device": "cpu", **role}
    environment = {
        "UCX_TLS": "tcp,sm,self",
        "UCX_NET_DEVICES": "lo",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
    }
    return _vllm(log, {"kv-transfer-config": json.dumps(config)}, environment, run, model=model)


def _vllm(
    log: Path,
    more: dict[str, object],
    more_environment: dict[str, str],
    run: Sequence[str] = (),
    *,
    model: Model = DENSE,
    flags: Sequence[str] = (),
) -> Engine:
    """`run`: the command that runs it."""
    port = free_port()
    options: dict[str, object] = {
        "host": "127.0.0.1",
        "port": port,
        "served-model-name": MODEL,
        "dtype": "float32",
        "max-model-len": CONTEXT_TOKENS,
        "max-num-seqs": RUNNING_MAX,
        "block-size": KV_BLOCK_TOKENS,
        "num-gpu-blocks-override": KV_BLOCKS,
        **more,
    }
    switches = ["--enforce-eager", "--enable-prefix-caching", "--enable-prompt-tokens-details", *flags]
    named = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    serve: list[str | Path] = [model.folder / "bin/vllm", "serve", VLLM_FOLDER / "models" / model.name]
    environment = {
        "PATH": f"{model.folder / 'bin'}:{os.defpath}",
        "PYTHONPATH": os.pathsep.join(str(each) for each in model.plugins),
        "HOME": str(log.parent),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        **more_environment,
    }
    return Engine([*run, *serve, *named, *switches], port, log, environment)


def _group_of(pid: int) -> int:
    with suppress(ProcessLookupError):
        return os.getpgid(pid)
    return 0


async def all_up(engines: Iterable[Engine]) -> None:
    """They start side by side."""
    async with asyncio.TaskGroup() as tasks:
        for engine in engines:
            tasks.create_task(engine.be_up())
