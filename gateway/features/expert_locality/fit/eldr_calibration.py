"""Calibration of ELDR: for some hundreds of requests, how often each expert was picked for the prompt and for the
answer. The module checks all that it reads, since engines write the files, and holds no text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from gateway.core.features.expert_locality.artifact import MoeShape
from gateway.features.expert_locality.expert_counts import BadCounts, unpack_counts

REQUESTS_MAX = 20_000
BYTES_MAX = 1 << 30
"""Bytes of the counts of all requests together."""
_LINE_BYTES_MAX = 8 << 20
Floats = npt.NDArray[np.float32]


class UnusableCalibration(ValueError):
    """Calibration that cannot be fitted to; the message says why."""


class Calibration(Struct, frozen=True):
    """Calibration in columns, each with one entry per request."""

    shape: MoeShape
    ids: tuple[str, ...]
    documents: tuple[str, ...]
    """Document that each request came from: prompts of one document are alike, and never both fitted to and tested
    with."""
    domains: tuple[str, ...]
    """Domain of each request, for pictures only; empty where the file names none."""
    prefill: npt.NDArray[np.uint16]
    """Prompt tokens that each expert was picked for: [requests, layers, experts]."""
    decode: Floats
    """Answer tokens that each expert was picked for, as shares of the steps where their number is known."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def digest(self) -> str:
        hashed = hashlib.blake2b(repr((self.shape, self.ids)).encode(), digest_size=16)
        hashed.update(self.prefill.tobytes())
        hashed.update(self.decode.tobytes())
        return hashed.hexdigest()

    def only(self, chosen: Sequence[int]) -> Calibration:
        at = np.array(chosen, np.intp)
        return Calibration(
            self.shape,
            tuple(self.ids[index] for index in chosen),
            tuple(self.documents[index] for index in chosen),
            tuple(self.domains[index] for index in chosen),
            self.prefill[at],
            self.decode[at],
        )


class _Line(msgspec.Struct):
    v: int
    id: str
    document: str
    layers: int
    experts: int
    prefill: str
    decode: str
    model: str = ""
    domain: str = ""
    steps: int = 0


def read_calibration(path: Path) -> Calibration:
    """Read a calibration file. Raises UnusableCalibration, naming the line, and OSError."""
    rows: list[tuple[_Line, bytes, bytes]] = []
    for number, line in _lines(path):
        rows.append(_row(line, f"{path}:{number}", rows[0][0] if rows else None))
        if len(rows) > REQUESTS_MAX:
            raise UnusableCalibration(f"{path}: holds more than {REQUESTS_MAX:,} requests")
        if len(rows) * (len(rows[0][1]) + len(rows[0][2])) > BYTES_MAX:
            raise UnusableCalibration(f"{path}: holds more than {BYTES_MAX >> 30} GiB of counts")
    if not rows:
        raise UnusableCalibration(f"{path}: holds no request")
    first = rows[0][0]
    size = (len(rows), first.layers, first.experts)
    prefill = np.frombuffer(b"".join(each[1] for each in rows), "<u2").reshape(size)
    decode = np.frombuffer(b"".join(each[2] for each in rows), "<u4").reshape(size).astype(np.float32)
    steps = np.array([max(1, line.steps) for line, _, _ in rows], np.float32)
    return Calibration(
        MoeShape(first.layers, first.experts, first.model),
        tuple(line.id for line, _, _ in rows),
        tuple(line.document for line, _, _ in rows),
        tuple(line.domain for line, _, _ in rows),
        prefill,
        decode / steps[:, None, None],
    )


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_LINE_BYTES_MAX):
            number += 1
            if line.strip():
                yield number, line


def _row(line: bytes, where: str, first: _Line | None) -> tuple[_Line, bytes, bytes]:
    try:
        row = _LINE.decode(line)
        if row.v != 1:
            raise UnusableCalibration(f"{where}: is of version {row.v}, not 1")
        prefill = unpack_counts(row.prefill, row.layers, row.experts, 2)
        decode = unpack_counts(row.decode, row.layers, row.experts, 4)
    except (msgspec.DecodeError, UnicodeDecodeError, BadCounts) as error:
        raise UnusableCalibration(f"{where}: {error}") from None
    if first is not None and (row.layers, row.experts, row.model) != (first.layers, first.experts, first.model):
        raise UnusableCalibration(f"{where}: is of another model than the lines before it")
    return row, prefill, decode


_LINE = msgspec.json.Decoder(_Line)


def by_document(calibration: Calibration, held_out: float) -> tuple[Calibration, Calibration]:
    """Split into a part to fit to and a part to test with, by whole documents in the order of their names' hashes,
    until the share is reached. A single document leaves none to test with."""
    documents = sorted(set(calibration.documents), key=_shuffled)
    count = min(len(documents) - 1, round(held_out * len(documents)))
    tested = set(documents[:count])
    fitted_at = [index for index, document in enumerate(calibration.documents) if document not in tested]
    tested_at = [index for index, document in enumerate(calibration.documents) if document in tested]
    return calibration.only(fitted_at), calibration.only(tested_at)


def _shuffled(document: str) -> bytes:
    return hashlib.blake2b(document.encode(), digest_size=8).digest()
