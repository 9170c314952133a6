"""BIND and Knot DNS as a team may run them: one zone each, which holders of the key may change."""

from __future__ import annotations

import asyncio
import base64
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

import dns.exception
import dns.message
import dns.query
import dns.tsig
import dns.update

from controller.dns.config import Rfc2136Config
from mesh.values import SECOND_NS, Address
from tests.cloud.programs import Program, found, free_port

ZONE = "mesh.example."
KEY_NAME = "mesh"
SECRET = base64.b64encode(b"a key that is 32 bytes long, yes").decode()
OTHER_SECRET = base64.b64encode(b"another key, which nobody takes.").decode()
_ZONE_FILE = """$TTL 60
@ IN SOA ns1.elsewhere.example. hostmaster.mesh.example. 1 60 30 86400 5
@ IN NS ns1.elsewhere.example.
www IN A 192.0.2.80
"""


class NameServer(ABC):
    """Name server as one process with the zone; its configuration lies in its folder."""

    program: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = Address("127.0.0.1", free_port())
        (folder / "mesh.zone").write_text(_ZONE_FILE)
        path = found(self.program)
        assert path is not None, "whoever needs it says so"
        self._process = Program(self.command(path), folder / f"{self.program}.log", {})

    @abstractmethod
    def command(self, program: Path) -> list[str | Path]: ...

    @property
    def config(self) -> Rfc2136Config:
        return Rfc2136Config(server=self.address, key_name=KEY_NAME, timeout_ns=60 * SECOND_NS)

    def start(self) -> None:
        self._process.start(self._answers)

    def stop(self) -> None:
        self._process.stop()

    def kill(self) -> None:
        self._process.kill()

    def change(self, *lines: tuple[str | int, ...]) -> None:
        """Change records as an operator with the key does by hand: `("replace", name, ttl, kind, text)`."""
        update = dns.update.UpdateMessage(ZONE, keyring=dns.tsig.Key(KEY_NAME, SECRET))
        for verb, *rest in lines:
            getattr(update, str(verb))(*rest)
        answer = dns.query.tcp(update, self.address.host, 30, self.address.port)
        assert answer.rcode() == 0, answer

    def _answers(self) -> bool:
        try:
            answer = dns.query.tcp(dns.message.make_query(ZONE, "SOA"), self.address.host, 5, self.address.port)
        except (OSError, EOFError, dns.exception.DNSException):
            return False
        return bool(answer.answer)

    async def until_gone(self) -> None:
        await asyncio.to_thread(self.stop)


class Bind(NameServer):
    program = "named"

    def command(self, program: Path) -> list[str | Path]:
        folder, port = self.folder, self.address.port
        (folder / "named.conf").write_text(
            f"""options {{
  directory "{folder}"; listen-on port {port} {{ 127.0.0.1; }}; listen-on-v6 {{ none; }};
  pid-file "{folder}/named.pid"; session-keyfile "{folder}/session.key"; managed-keys-directory "{folder}";
  recursion no; dnssec-validation no; notify no; allow-transfer {{ none; }};
}};
controls {{ }};
key "{KEY_NAME}" {{ algorithm hmac-sha256; secret "{SECRET}"; }};
zone "{ZONE.rstrip(".")}" {{
  type primary; file "mesh.zone"; journal "mesh.jnl"; update-policy {{ grant {KEY_NAME} zonesub ANY; }};
}};
"""
        )
        return [program, "-g", "-n", "1", "-X", "none", "-c", folder / "named.conf"]


class Knot(NameServer):
    program = "knotd"

    def command(self, program: Path) -> list[str | Path]:
        folder = self.folder
        (folder / "db").mkdir()
        (folder / "knot.conf").write_text(
            f"""server:
    rundir: "{folder}"
    listen: 127.0.0.1@{self.address.port}
    udp-workers: 1
    tcp-workers: 1
    background-workers: 1
database:
    storage: "{folder}/db"
log:
  - target: stderr
    any: info
key:
  - id: {KEY_NAME}
    algorithm: hmac-sha256
    secret: {SECRET}
acl:
  - id: changes
    key: {KEY_NAME}
    action: update
zone:
  - domain: {ZONE}
    storage: "{folder}"
    file: mesh.zone
    acl: changes
    zonefile-sync: 0
    zonefile-load: whole
    journal-content: changes
"""
        )
        return [program, "-c", folder / "knot.conf"]
