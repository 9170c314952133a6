"""Debian's PostgreSQL on loopback: one server, and on request a standby that can be promoted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from mesh.values import Address
from tests.cloud.programs import Program, found, free_port

USER: Final = "nightside"
DATABASE: Final = "nightside"
_VERSIONS: Final = Path("/usr/lib/postgresql")
_MEMORY: Final = Path("/dev/shm")
_RUN_S: Final = 60.0
_SETTINGS: Final = """
listen_addresses = '127.0.0.1'
shared_buffers = 16MB
max_connections = 40
wal_level = replica
hot_standby = on
fsync = off
"""
"""Server settings without fsync: only a crash of the machine would lose data, and tests kill processes alone."""


def _program(name: str) -> str:
    newest = max(_VERSIONS.iterdir(), key=lambda each: int(each.name))
    return str(newest / "bin" / name)


def _as_postgres(command: list[str]) -> list[str]:
    """Command run as an unprivileged user: PostgreSQL refuses to run as root."""
    if os.geteuid():
        return command
    setpriv = found("setpriv")
    return [str(setpriv), "--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig", "TERM", *command]


class Postgresql:
    """PostgreSQL server with a folder of its own, removed at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.address = Address("127.0.0.1", self.port)
        data = str(folder / "data")
        self.program = Program(
            _as_postgres([_program("postgres"), "-D", data, "-p", str(self.port), "-k", str(folder)]),
            folder / "log",
            {"LC_ALL": "C"},
        )

    @classmethod
    def made(cls) -> Self:
        """Start a server with an empty database."""
        server = cls(_new_folder())
        data = server.folder / "data"
        try:
            _run(_program("initdb"), "-D", str(data), "-U", USER, "--auth=trust", "-E", "UTF8", "--no-sync")
            with (data / "postgresql.conf").open("a") as settings:
                settings.write(_SETTINGS)
            server.start()
            server.sql(f"CREATE DATABASE {DATABASE}", database="postgres")
        except BaseException:
            server.end()
            raise
        return server

    def standby(self, *, is_waited_for: bool) -> Postgresql:
        """Start a standby that replicates this server.

        `is_waited_for`: this server answers a write only after the standby has it (synchronous replication).
        """
        other = Postgresql(_new_folder())
        source = f"host=127.0.0.1 port={self.port} user={USER} application_name=standby"
        _run(
            _program("pg_basebackup"),
            "-d",
            source,
            "-D",
            str(other.folder / "data"),
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
        )
        other.start()
        if is_waited_for:
            self.sql("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
            self.sql("SELECT pg_reload_conf()")
        return other

    def start(self) -> None:
        self.program.start(self._is_ready)

    def promote(self) -> None:
        """Promote this standby; it accepts writes when this returns."""
        _run(_program("pg_ctl"), "-D", str(self.folder / "data"), "-w", "promote")

    def freeze(self) -> None:
        """Stop all its processes, as on a machine that is out of memory: connections stay open."""
        for pid in self._pids():
            os.kill(pid, signal.SIGSTOP)

    def kill(self) -> None:
        """Kill all its processes at once, each by itself: backends have sessions of their own."""
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.program.kill()

    def thaw(self) -> None:
        for pid in self._pids():
            os.kill(pid, signal.SIGCONT)

    def _pids(self) -> list[int]:
        children = Path(f"/proc/{self.program.pid}/task/{self.program.pid}/children").read_text()
        return [self.program.pid, *map(int, children.split())]

    def fall_behind(self, primary: Postgresql) -> None:
        """Stop replication: later writes of the primary do not arrive here."""
        written = primary.sql("SELECT pg_current_wal_lsn()")
        while self.sql(f"SELECT pg_last_wal_replay_lsn() >= '{written}'") != "t":
            pass
        self.sql("ALTER SYSTEM SET primary_conninfo = ''")
        self.sql("SELECT pg_reload_conf()")
        while self.sql("SELECT count(*) FROM pg_stat_wal_receiver") != "0":
            pass

    def sql(self, statement: str, *, database: str = DATABASE) -> str:
        return _run(_program("psql"), "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, "-Atc", statement, database)

    def _is_ready(self) -> bool:
        ready = [_program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(ready, check=False).returncode == 0

    def end(self) -> None:
        self.program.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def _new_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="nightside-pg-", dir=_MEMORY if _MEMORY.is_dir() else None))
    if not os.geteuid():
        shutil.chown(folder, "postgres", "postgres")
    return folder


def _run(*command: str) -> str:
    done = subprocess.run(
        _as_postgres(list(command)),
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={"LC_ALL": "C"},
        timeout=_RUN_S,
    )
    assert done.returncode == 0, f"{command[0]}: {done.stdout}{done.stderr}"
    return done.stdout.strip()
