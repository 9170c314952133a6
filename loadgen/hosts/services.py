"""Runs programs of others on hosts: a PostgreSQL server, and a BIND name server for each region. It finds the library
that gives a host's programs a clock of their own.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from loadgen.demo.processes import Child, DemoFailure, log_tail, running_child
from loadgen.hosts.namespaces import HostsUnavailable

_VERSIONS = Path("/usr/lib/postgresql")
_CLOCKS = Path("/usr/lib")
_CLOCK = "*/faketime/libfaketime.so.1"
_POSTGRES = "postgres"
_DATABASE_PORT = 5432
_NAMES_PORT = 53
_START_S = 30.0
_POLL_S = 0.1
_TTL_S = 5
_DATABASE_SETTINGS = """
max_connections = 40
shared_buffers = 16MB
fsync = off
"""
"""Settings without fsync: only a crash of the machine would lose data, and no host here is one."""


def check_programs() -> None:
    """Raises HostsUnavailable unless this machine has the programs of hosts."""
    wanted = {"named": "bind9", "setpriv": "util-linux", "initdb": "postgresql", "libfaketime": "faketime"}
    found = {
        "named": _named() is not None,
        "setpriv": shutil.which("setpriv") is not None,
        "initdb": any(_VERSIONS.glob("*/bin/initdb")),
        "libfaketime": any(_CLOCKS.glob(_CLOCK)),
    }
    missing = [f"`{name}` (Debian package {package})" for name, package in wanted.items() if not found[name]]
    if missing:
        raise HostsUnavailable(f"hosts of their own need {', '.join(missing)}")


def clock_environment(file: Path) -> tuple[str, ...]:
    """Begin of a command line whose program adds to its wall clock what `file` says, such as `+600`. The file is read
    again once a second; monotonic clocks stay as they are."""
    library = next(_CLOCKS.glob(_CLOCK))
    return (
        str(shutil.which("env")), f"LD_PRELOAD={library}", f"FAKETIME_TIMESTAMP_FILE={file}",
        "FAKETIME_CACHE_DURATION=1", "FAKETIME_DONT_FAKE_MONOTONIC=1",
    )  # fmt: skip


@asynccontextmanager
async def running_database(
    runner: Sequence[str], address: str, network: str, log: Path, tasks: asyncio.TaskGroup
) -> AsyncIterator[Mapping[str, object]]:
    """Run an empty PostgreSQL server on a host, for clients in `network`; yields the section `store` of controllers.
    Raises DemoFailure."""
    with _folder_of_postgres() as folder:
        data = folder / "data"
        await _done(*_as_postgres("initdb"), "-D", str(data), "-U", _POSTGRES, "-A", "trust", "-E", "UTF8", "--no-sync")
        with (data / "postgresql.conf").open("a") as settings:
            settings.write(f"listen_addresses = '{address}'\n{_DATABASE_SETTINGS}")
        with (data / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {network} trust\n")
        arguments = ["-D", str(data), "-p", str(_DATABASE_PORT), "-k", str(folder)]
        server = (*runner, *_as_postgres("postgres"))
        async with running_child("PostgreSQL", arguments, log, tasks, runner=server) as child:
            at = ("-h", address, "-p", str(_DATABASE_PORT), "-U", _POSTGRES)
            await _until_ready(child, (*runner, *_as_postgres("pg_isready"), "-q", *at))
            await _done(*runner, *_as_postgres("createdb"), *at, "nightside")
            where = {
                "hosts": [f"{address}:{_DATABASE_PORT}"], "database": "nightside", "user": _POSTGRES, "tls": False,
            }  # fmt: skip
            try:
                yield {"kind": "postgresql", "postgresql": where}
            finally:
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGINT)  # SIGTERM would wait for its sessions


@dataclass(slots=True)
class RegionNames:
    """BIND name server of one region: it knows the hosts, and asks the mesh's own name servers for the mesh's name."""

    folder: Path
    address: str
    hosts: dict[str, str]
    """Address of each host, by its DNS name in the zone `hosts_zone`."""
    hosts_zone: str
    zone: str
    """The mesh's one DNS name."""
    servers: Sequence[tuple[str, int]] = ()
    """Name servers of the mesh; none: the name does not exist."""
    lies: dict[str, str] = field(default_factory=dict)
    """Addresses told instead of the true ones, by name."""
    _serial: int = 0
    _child: Child | None = None

    @asynccontextmanager
    async def running(self, runner: Sequence[str], log: Path, tasks: asyncio.TaskGroup) -> AsyncIterator[None]:
        self.folder.mkdir()
        self._write()
        arguments = ["-g", "-c", str(self.folder / "named.conf")]
        async with running_child("BIND", arguments, log, tasks, runner=(*runner, str(_named()))) as self._child:
            yield

    def change(
        self, *, hosts: Mapping[str, str] | None = None, servers: Sequence[tuple[str, int]] | None = None,
        lies: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Change what it answers; answers that clients keep are good for their TTL."""
        self.hosts |= hosts or {}
        self.servers = self.servers if servers is None else servers
        self.lies = self.lies if lies is None else dict(lies)
        self._write()
        assert self._child is not None, "it runs"
        os.kill(self._child.pid, signal.SIGHUP)

    def fall_silent(self) -> None:
        assert self._child is not None, "it runs"
        self._child.halt()

    def speak(self) -> None:
        assert self._child is not None, "it runs"
        self._child.go_on()

    def _write(self) -> None:
        self._serial += 1
        told = {**self.hosts, **{name: to for name, to in self.lies.items() if name != self.zone}}
        self._write_zone("hosts", {name.removesuffix(f".{self.hosts_zone}"): to for name, to in told.items()})
        mesh = f'zone "{self.zone}" {{ {self._way_to_mesh()} }};'
        (self.folder / "named.conf").write_text(
            f"""options {{
  directory "{self.folder}"; pid-file none; session-keyfile none; listen-on port {_NAMES_PORT} {{ {self.address}; }};
  listen-on-v6 {{ none; }}; recursion yes; allow-query {{ any; }}; dnssec-validation no; empty-zones-enable no;
}};
controls {{ }};
zone "{self.hosts_zone}" {{ type primary; file "hosts.zone"; }};
{mesh}
"""
        )

    def _way_to_mesh(self) -> str:
        if self.zone in self.lies:
            self._write_zone("mesh", {"@": self.lies[self.zone]})
            return 'type primary; file "mesh.zone";'
        if not self.servers:
            self._write_zone("mesh", {})
            return 'type primary; file "mesh.zone";'
        forwarders = " ".join(f"{host} port {port};" for host, port in self.servers)
        return f"type forward; forward only; forwarders {{ {forwarders} }};"

    def _write_zone(self, name: str, addresses: Mapping[str, str]) -> None:
        records = [f"{name} A {address}" for name, address in addresses.items()]
        head = [f"$TTL {_TTL_S}", f"@ SOA ns.test. root.test. {self._serial} 60 60 60 {_TTL_S}", "@ NS ns.test."]
        (self.folder / f"{name}.zone").write_text("\n".join([*head, *records, ""]))


def _named() -> str | None:
    return shutil.which("named", path=os.pathsep.join([os.defpath, "/usr/sbin", "/usr/local/sbin"]))


def _as_postgres(program: str) -> tuple[str, ...]:
    """Command that runs a program of PostgreSQL as its user: it refuses to run as root."""
    newest = max((each.parents[1] for each in _VERSIONS.glob("*/bin/initdb")), key=lambda each: float(each.name))
    user = ("--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig", "TERM")
    return (str(shutil.which("setpriv")), *user, str(newest / "bin" / program))


@contextmanager
def _folder_of_postgres() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nightside-wan-pg-") as folder:
        shutil.chown(folder, _POSTGRES, _POSTGRES)
        yield Path(folder)


async def _until_ready(child: Child, question: Sequence[str]) -> None:
    try:
        async with asyncio.timeout(_START_S):
            while await _status(*question):  # noqa: ASYNC110 - another process, which sends no event
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise DemoFailure(f"{child.name} was not ready after {_START_S:.0f} s\n{log_tail(child.log)}") from None


async def _status(*command: str) -> int:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, cwd="/"
    )
    try:
        return await process.wait()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise


async def _done(*command: str) -> None:
    """Run a command to its end. Raises DemoFailure."""
    try:
        async with asyncio.timeout(_START_S):
            status = await _status(*command)
    except TimeoutError:
        raise DemoFailure(f"{' '.join(command)} did not end within {_START_S:.0f} s") from None
    if status:
        raise DemoFailure(f"{' '.join(command)} ended with status {status}")
