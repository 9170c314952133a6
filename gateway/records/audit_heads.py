"""Heads of audit chains, signed by a key that only the gateway has, or noted where audit files cannot be changed.
Checking files against either shows whether a chain was forged whole or cut at its end, and where.

A head is the hash of a chain's last line. Lines written after the last signed or noted head are only chained.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Self

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from msgspec import Struct

from mesh.faults import ConfigError
from mesh.whole_files import read_whole

FIRST_SIGNED_LINE = 2
"""Line that is signed first: a file's header is signed at once, so that no file can be made without the key."""
LATE_AFTER = 2
"""Multiple of the signing interval after which further unsigned lines are suspicious."""
_DOMAIN = "nightside-audit-head-1"
_KIND = b'{"kind":"head"'
_FINGERPRINT_DIGITS = 16


class Head(msgspec.Struct, frozen=True):
    """Hash of one line of one of a gateway's files. A line of a file of noted heads is one, and so is a gateway's log
    event `audit_head_sealed`."""

    gateway: str
    file: int
    line: int
    head: str


class SignedHead(msgspec.Struct, frozen=True, tag="head", tag_field="kind", omit_defaults=True):
    """Line of the chain that vouches for the lines before it in its file."""

    time: str
    gateway: str
    file: int
    line: int
    """Number of the last line that it vouches for."""
    within_s: float
    """Seconds until the next signed head follows, if there are more lines."""
    ends: bool
    """True if no line follows in this file."""
    key: str
    """Fingerprint of the key."""
    signature: str
    prev: str = ""
    """Hash of the line that it vouches for; filled in when the line is chained."""

    def statement(self) -> bytes:
        """Bytes that are signed."""
        said = (_DOMAIN, self.time, self.gateway, self.file, self.line, self.within_s, self.ends, self.prev)
        return msgspec.json.encode(said)


class HeadSigner:
    """Signer that holds the private key."""

    def __init__(self, key: Ed25519PrivateKey, within_s: float) -> None:
        self._key = key
        self._within_s = float(within_s)  # float, as it is when read back for verification
        self._fingerprint = fingerprint_of(key.public_key())

    @classmethod
    def read(cls, path: Path, within_s: float) -> Self:
        """Read an Ed25519 key in PEM, as `openssl genpkey -algorithm ed25519` writes it. Raises ConfigError."""
        try:
            key = load_pem_private_key(read_whole(path), password=None)
        except OSError as error:
            raise ConfigError(f"audit.signing_key: {path} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigError(f"audit.signing_key: {path} holds no Ed25519 key in PEM without a password")
        return cls(key, within_s)

    def sign(self, head: Head, time: str, *, ends: bool) -> bytes:
        """Signed line, to be chained after the line that it vouches for."""
        unsigned = SignedHead(
            time, head.gateway, head.file, head.line, self._within_s, ends, self._fingerprint, "", head.head
        )
        signature = b64encode(self._key.sign(unsigned.statement())).decode()
        return msgspec.json.encode(msgspec.structs.replace(unsigned, signature=signature, prev=""))


def fingerprint_of(key: Ed25519PublicKey) -> str:
    return hashlib.sha256(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()[:_FINGERPRINT_DIGITS]


def read_public_key(path: Path) -> Ed25519PublicKey:
    """Read a public key in PEM, as `openssl pkey -pubout` writes it. Raises ConfigError."""
    try:
        key = load_pem_public_key(read_whole(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{path}: holds no Ed25519 public key in PEM")
    return key


def read_noted(path: Path) -> list[Head]:
    """Read heads from a file with a JSON object per line, such as a gateway's log; other lines are ignored. Raises
    ConfigError, also if the file holds no head."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    found = [head for head in map(_noted_in, lines) if head is not None]
    if not found:
        raise ConfigError(f"{path}: holds no noted heads")
    return found


def _noted_in(line: bytes) -> Head | None:
    try:
        return msgspec.json.decode(line, type=Head)
    except msgspec.DecodeError:
        return None


class HeadFinding(Struct, frozen=True):
    line: int
    """Line number from 1; 0 for the file as a whole."""
    problem: str


class Witness:
    """Public keys and noted heads to check files against."""

    def __init__(self, keys: Sequence[Ed25519PublicKey] = (), noted: Iterable[Head] = ()) -> None:
        self._keys = {fingerprint_of(key): key for key in keys}
        self._noted: dict[tuple[str, int], dict[int, str]] = {}
        for head in noted:
            self._noted.setdefault((head.gateway, head.file), {})[head.line] = head.head

    def of(self, gateway: str, file: int) -> FileWitness:
        return FileWitness(gateway, file, self._keys, self._noted.get((gateway, file), {}))

    def knows(self, gateway: str, file: int, head: str) -> bool:
        """True if this head was noted for the file."""
        return head in self._noted.get((gateway, file), {}).values()

    def missing(self, given: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int, bool]]:
        """Files with noted heads that are not among those given: gateway, number, and whether the file should have been
        given. It should if it is newer than a given one, since a gateway deletes only its oldest files."""
        numbers: dict[str, list[int]] = {}
        for gateway, number in given:
            numbers.setdefault(gateway, []).append(number)
        for gateway, number in sorted(self._noted):
            known = numbers.get(gateway, [])
            if number not in known:
                yield gateway, number, bool(known) and number > min(known)


class FileWitness:
    """Check of one file against keys and noted heads. The hash chain itself is checked elsewhere."""

    def __init__(self, gateway: str, file: int, keys: dict[str, Ed25519PublicKey], noted: dict[int, str]) -> None:
        self._gateway = gateway
        self._file = file
        self._keys = keys
        self._noted = noted
        self._count = 0
        self._signed: SignedHead | None = None
        self._has_signed_header = False
        self._unsigned: list[bytes] = []
        """First and last line after the last signed head."""
        self._unsigned_count = 0

    def take(self, line: bytes, head_before: str, head: str) -> str | None:
        """Check one line. Returns the problem; None if there is none."""
        self._count += 1
        problem = self._signature_problem(line, head_before) if self._keys else None
        if problem is None and self._noted.get(self._count, head) != head:
            return "is not the line whose head was noted: it, or one before it, was written anew"
        return problem

    def findings(self) -> Iterator[HeadFinding]:
        """Problems of the file as a whole, once all lines are taken."""
        late = max((line for line in self._noted if line > self._count), default=0)
        if late:
            lines = f"line {late}" if late == self._count + 1 else f"lines {self._count + 1} to {late}"
            yield HeadFinding(self._count, f"cut off after this line: {lines} had been written when a head was noted")
        if not self._keys:
            return
        if not self._has_signed_header:
            yield HeadFinding(
                1, "no signature by the keys given stands behind the header: the file may be forged whole"
            )
        elif self._signed is not None and (problem := self._lateness(self._signed)) is not None:
            yield HeadFinding(self._signed.line + 2, problem)

    def notes(self) -> Iterator[str]:
        """Observations that are no proof of a fault and need a person's judgement."""
        if self._signed is None:
            return
        if self._unsigned_count:
            yield f"its last {self._unsigned_count} lines are not signed"
        if not self._signed.ends:
            yield "it was not closed: its gateway still writes to it or was killed, or its end was cut off"

    def _signature_problem(self, line: bytes, head_before: str) -> str | None:
        if not line.startswith(_KIND):
            if self._count > 1:
                self._unsigned = [*self._unsigned[:1], line]
                self._unsigned_count += 1
            return None if self._signed is None or not self._signed.ends else "stands behind the signed end of the file"
        try:
            signed = msgspec.json.decode(line, type=SignedHead)
            signature = b64decode(signed.signature, validate=True)
        except (msgspec.DecodeError, ValueError):
            return "is no signed head"
        if signed.key not in self._keys:
            return f"is signed by another key, {signed.key}"
        if (signed.gateway, signed.file, signed.line) != (self._gateway, self._file, self._count - 1):
            return "is a signed head of another place"
        try:
            vouched = msgspec.structs.replace(signed, prev=head_before)
            self._keys[signed.key].verify(signature, vouched.statement())
        except InvalidSignature:
            return "its signature is not of the lines before it: they were written anew"
        self._has_signed_header |= self._count == FIRST_SIGNED_LINE
        self._signed, self._unsigned, self._unsigned_count = signed, [], 0
        return None

    def _lateness(self, signed: SignedHead) -> str | None:
        if not self._unsigned:
            return None
        first, last = (_time_of(self._unsigned[at]) for at in (0, -1))
        if first is None or last is None:
            return "is not signed, and has no time"
        if (last - first).total_seconds() <= LATE_AFTER * signed.within_s:
            return None
        return f"from here on nothing is signed, and should be within {signed.within_s:g} s: lines may be forged"


class _Timed(msgspec.Struct, frozen=True):
    time: datetime


def _time_of(line: bytes) -> datetime | None:
    try:
        return msgspec.json.decode(line, type=_Timed).time
    except msgspec.DecodeError:
        return None
