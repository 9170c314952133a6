"""Third-party programs and emulators as processes: found, or reported missing with a reason; started on loopback. None
outlives the tests.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from loadgen.demo.processes import log_tail

ROOT: Final = Path(__file__).parents[2]
EMULATORS: Final = ROOT / ".venv-cloud"
_SEARCHED: Final = os.pathsep.join([os.defpath, "/usr/local/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"])
_START_S = 120.0
_END_S = 30.0
_POLL_S = 0.05


def found(program: str) -> Path | None:
    """Path of a program; also searched where Debian keeps daemons, outside the PATH of ordinary users."""
    path = shutil.which(program, path=_SEARCHED)
    return None if path is None else Path(path)


def why_missing(what: str) -> str:
    """Reason why this program, or these `emulators`, cannot be started here; empty if they can."""
    if what == "rotel" and EMULATORS.is_dir():
        return _why_rotel_does_not_run()
    if what not in ("emulators", "rotel"):
        return "" if found(what) else f"there is no {what} here: make setup-tests installs it where it may"
    if (EMULATORS / "ready").is_file():
        return ""
    with suppress(FileNotFoundError):
        return (EMULATORS / "unavailable").read_text().strip()
    return f"there is no {EMULATORS.name}: make setup-tests makes it"


def free_port() -> int:
    """Port that is free for both TCP and UDP."""
    while True:
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            tcp.bind(("127.0.0.1", 0))
            port = int(tcp.getsockname()[1])
            with suppress(OSError):
                udp.bind(("127.0.0.1", port))
                return port


class Program:
    """One process that can be stopped in every way, and started again."""

    def __init__(self, command: Sequence[str | Path], log: Path, environment: Mapping[str, str]) -> None:
        self._command = [str(each) for each in command]
        self._log = log
        self._environment = {"PATH": _SEARCHED, "HOME": str(log.parent), **environment}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, is_ready: Callable[[], bool]) -> None:
        assert self._process is None or self._process.poll() is not None
        tether = [sys.executable, "-m", "loadgen.demo.bound_to_parent", str(os.getpid())]
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [*tether, *self._command],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        process = self._process
        for _ in range(int(_START_S / _POLL_S)):
            if is_ready():
                return
            assert process.poll() is None, f"it ended while it started\n{log_tail(self._log)}"
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
        raise AssertionError(f"not ready after {_START_S:g} s\n{log_tail(self._log)}")

    def stop(self) -> None:
        """Terminate the process in order and wait for its end."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(_END_S)

    def kill(self) -> None:
        """Kill the process and all its children."""
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(_END_S)


class Emulator(Program):
    """Emulator of AWS, over HTTP. Its state is lost when it ends."""

    def __init__(self, command: Sequence[str | Path], port: int, log: Path, environment: Mapping[str, str]) -> None:
        super().__init__(command, log, environment)
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def begin(self) -> None:
        self.start(lambda: answers(self.url))


def answers(url: str) -> bool:
    """Return whether any HTTP answer comes, errors included."""
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def ministack(folder: Path) -> Emulator:
    """Ministack: an emulator of Route53, DynamoDB, EC2 and others."""
    port = free_port()
    environment = {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port)}
    return Emulator([EMULATORS / "bin/ministack"], port, folder / f"ministack-{port}.log", environment)


def moto(folder: Path, **environment: str) -> Emulator:
    """Moto: an independent emulator, used as a second opinion."""
    port = free_port()
    command: list[str | Path] = [EMULATORS / "bin/moto_server", "-H", "127.0.0.1", "-p", str(port)]
    return Emulator(command, port, folder / f"moto-{port}.log", environment)


def rotel(folder: Path, sink_url: str) -> tuple[Program, dict[str, int]]:
    """Rotel, a collector of traces, and its ports by protocol.

    Traces that it takes are sent on to the sink at once, over gRPC.
    """
    ports = {"grpc": free_port(), "http": free_port()}
    options = {
        "pid-file": str(folder / "rotel.pid"),
        "log-file": str(folder / "rotel.log"),
        "otlp-grpc-endpoint": f"127.0.0.1:{ports['grpc']}",
        "otlp-http-endpoint": f"127.0.0.1:{ports['http']}",
        "exporter": "otlp",
        "otlp-exporter-protocol": "grpc",
        "otlp-exporter-endpoint": sink_url,
        "batch-timeout": "50ms",
    }
    arguments = [f"--{name}={text}" for name, text in options.items()]
    return Program([_rotel_agent(), "start", *arguments], folder / "rotel-output.log", {}), ports


def _rotel_agent() -> Path:
    """Rotel's program out of its package; it is linked to a C library that not every system has."""
    return next(EMULATORS.glob("lib/python*/site-packages/rotel/rotel-agent"), EMULATORS / "rotel-agent")


def _why_rotel_does_not_run() -> str:
    if not _rotel_agent().is_file():
        return "rotel is not to be had for this system: make setup-tests says why"
    try:
        done = subprocess.run([_rotel_agent(), "--version"], capture_output=True, text=True, timeout=_START_S)
    except OSError as error:
        return f"rotel does not run here: {error}"
    return f"rotel does not run here: {done.stderr.strip()}" if done.returncode else ""
