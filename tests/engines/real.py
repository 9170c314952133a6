"""Real engines as processes: started, asked for their state, and stopped in every way. None outlives the tests."""

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
"""Environment of an older vLLM that reports the experts which each token picked."""
LLAMACPP_FOLDER: Final = ROOT / ".venv-llamacpp"
START_S = 600.0
END_S = 30.0
_POLL_S = 0.1

RUNNING_MAX = 4
"""Requests that one vLLM here runs at once; others wait in it."""
HELD_MAX = 8
"""Requests that may run or wait in one vLLM; more are refused."""
CONTEXT_TOKENS = 2048
KV_BLOCKS = 129
KV_BLOCK_TOKENS = 32
"""KV cache for twice the longest context, as one block is vLLM's own: it fills up and evicts within a test."""
_BEHIND = (shutil.which("nice") or "nice", "-n", "10")
LEASE_S = 20
"""Seconds for which a prefill worker here keeps blocks that are not fetched; vLLM's default is 30."""
PIECE_TOKENS = 96
"""Tokens per step of an engine that reads prompts in chunks."""


@dataclass(frozen=True, slots=True)
class Model:
    """Model to serve, the vLLM that serves it, and folders of packages in which that vLLM finds plug-ins."""

    name: str
    folder: Path = VLLM_FOLDER
    plugins: tuple[Path, ...] = ()


DENSE: Final = Model("tiny")


def why_missing(folder: Path) -> str:
    """Reason why the engine of this environment cannot be started; empty if it can."""
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
    """True if a stream reports a failure. The word alone proves nothing: random weights generate `error` now
    and then.
    """
    return any(mark in said for mark in (b'data: {"error"', b"event: error\n", b"event: response.failed\n"))


class Engine:
    """One engine, whose process may end and start again at the same address."""

    def __init__(self, command: Sequence[str | Path], port: int, log: Path, environment: dict[str, str]) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._command = [str(each) for each in command]
        self.log = log
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ending = False

    def start(self, *more: str) -> None:
        """Start the process, with further options for this run only."""
        assert not self.is_running
        self._is_ending = False
        tether = [sys.executable, "-m", "loadgen.demo.bound_to_parent", str(os.getpid())]
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
        """Start the engine again if it has ended or is about to."""
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
        """Ask the engine's first process to end, as a container runtime does."""
        assert self._process is not None
        self._is_ending = True
        self._process.terminate()

    def kill(self) -> None:
        """Kill the whole process group: processes that vLLM's first process leaves behind would go on computing."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(END_S)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all processes but the first, which serves HTTP: requests are accepted and make no progress."""
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
        """Process ids of vLLM's other processes, found by the names that they give themselves."""
        assert self._process is not None
        found = []
        for each in Path("/proc").iterdir():
            with suppress(OSError):  # the process may have ended
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
        """Values of the engine's metrics page by name, with series added up."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as answer:
            return sums_by_name(await answer.text())

    async def until_holding(self, requests: int) -> None:
        """Wait until exactly this many requests run or wait; running requests may be preempted while the KV cache is
        full.
        """
        async with asyncio.timeout(END_S):
            while await self.held() != requests:  # noqa: ASYNC110 - another process, which tells us nothing
                await asyncio.sleep(_POLL_S)

    async def until_empty(self, within_s: float = END_S) -> None:
        """Wait until the KV cache holds no block for a running request or for a fetch by another engine. Blocks that
        may be evicted at any time do not count.
        """
        async with asyncio.timeout(within_s):
            while (await self.counters())["vllm:kv_cache_usage_perc"] > 0:  # noqa: ASYNC110 - see above
                await asyncio.sleep(_POLL_S)

    async def held(self) -> float:
        counters = await self.counters()
        return counters["vllm:num_requests_running"] + counters["vllm:num_requests_waiting"]


def vllm(log: Path) -> Engine:
    """Real vLLM with the tiny random model, which refuses requests beyond `HELD_MAX`."""
    return _vllm(log, {"max-num-queued-reqs": HELD_MAX}, {})


def telling(log: Path, model: Model = DENSE) -> tuple[Engine, int, int]:
    """Real vLLM that publishes its KV events at the first port and repeats them at the second, and lets tests empty
    its prefix cache."""
    port, replay_port = free_port(), free_port()
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{port}",
        "replay_endpoint": f"tcp://*:{replay_port}",
        "topic": "kv@here@tiny",
    }
    more: dict[str, object] = {"kv-events-config": json.dumps(events)}
    return _vllm(log, more, {"VLLM_SERVER_DEV_MODE": "1"}, model=model), port, replay_port


def prefill_worker(log: Path, model: Model = DENSE) -> Engine:
    """Prefill worker; it keeps KV blocks for the engine that fetches them, for `LEASE_S` at most.

    While it keeps any it steps without a pause, and would starve the fetching engine on shared cores: it runs at a
    lower priority.
    """
    role: dict[str, object] = {"kv_role": "kv_producer", "kv_connector_extra_config": {"kv_lease_duration": LEASE_S}}
    return _nixl(log, role, model, _BEHIND)


def decode_worker(log: Path, model: Model = DENSE, role: str = "kv_consumer") -> Engine:
    """Decode worker; it fetches KV blocks of another engine. A failed fetch fails the request, as by default."""
    return _nixl(log, {"kv_role": role}, model)


def experts(log: Path, model: Model, more: Mapping[str, object], *flags: str) -> Engine:
    """Real vLLM that reads prompts in chunks, and lets tests empty its prefix cache."""
    options = {"max-num-batched-tokens": PIECE_TOKENS, **more}
    return _vllm(log, options, {"VLLM_SERVER_DEV_MODE": "1"}, model=model, flags=flags)


def _nixl(log: Path, role: dict[str, object], model: Model, run: Sequence[str] = ()) -> Engine:
    """Real vLLM with NIXL over loopback, from memory to memory."""
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
    """Real vLLM with these options; `run` is the command that runs it."""
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
    """Wait until all engines are up; they start side by side."""
    async with asyncio.TaskGroup() as tasks:
        for engine in engines:
            tasks.create_task(engine.be_up())
