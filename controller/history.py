"""Operator audit log, one JSON object a line. Lines are only added; a file that has grown large is renamed once."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import msgspec

from mesh.private_files import make_private_folder, private_opener
from mesh.threads import finish_in_thread

SHOWN_MAX = 1000
_LINE_BYTES_MAX = 64 * 1024


class AuditEntry(msgspec.Struct, frozen=True):
    time: str
    by: str
    """Name that the operator gave, unproven."""
    address: str
    """Address of the client."""
    order: dict[str, object]
    result: str
    """`applied`, or the reason why not."""
    term: int = 0
    version: int = 0
    """Version of the first snapshot with the change."""
    operator: str = ""
    """Name that the operator had to prove, if any."""
    role: str = ""


class OperatorAuditLog:
    """Operator audit log. All calls come from one event loop's thread; the writing is done in another."""

    def __init__(self, path: Path, file_bytes_max: int) -> None:
        """Open the log. Raises OSError when it cannot be written: that is better known at the start."""
        self.path = path
        self.fault = ""
        """Reason why the last line is not in the file; empty when it is."""
        self._file_bytes_max = file_bytes_max
        make_private_folder(path.parent)
        with open(path, "ab", opener=private_opener):
            pass
        self._last: deque[AuditEntry] = deque(_last_entries([self._aside, path]), maxlen=SHOWN_MAX)

    @property
    def _aside(self) -> Path:
        return self.path.with_name(f"{self.path.name}.1")

    def last(self, count: int) -> list[AuditEntry]:
        """Return the last entries, oldest first."""
        return list(self._last)[-count:] if count > 0 else []

    async def add(self, entry: AuditEntry) -> None:
        """Add an entry. Where the disk refuses it, `fault` says so and the entry is still shown. A very long order is
        reduced to its name, here and in the file: any operator with the role `look` can have a refused order noted."""
        line = msgspec.json.encode(entry)
        if len(line) > _LINE_BYTES_MAX:
            entry = msgspec.structs.replace(entry, order={"order": entry.order.get("order", "")})
            line = msgspec.json.encode(entry)
        self._last.append(entry)
        try:
            await finish_in_thread(self._write, line + b"\n")
            self.fault = ""
        except OSError as error:
            self.fault = f"{self.path} cannot be written: {error.strerror or error}"

    def _write(self, line: bytes) -> None:
        if self.path.exists() and self.path.stat().st_size + len(line) > self._file_bytes_max:
            self.path.replace(self._aside)
        with open(self.path, "ab", opener=private_opener) as file:
            file.write(line)


def _last_entries(paths: list[Path]) -> list[AuditEntry]:
    """Read the last entries; a line that was cut off, or cannot be parsed, is left out."""
    found: deque[AuditEntry] = deque(maxlen=SHOWN_MAX)
    for path in paths:
        if not path.exists():
            continue
        with path.open("rb") as file:
            for line in file:
                try:
                    found.append(msgspec.json.decode(line, type=AuditEntry))
                except (msgspec.DecodeError, msgspec.ValidationError):
                    continue
    return list(found)
