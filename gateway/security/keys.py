"""Client keys: how one is made, stored and recognised. Only salted hashes of secrets are kept, and no message contains
a secret.

A key is `ns-<id>-<secret>` with 256 random bits of secret. These cannot be guessed, so a fast hash protects them as
well as a slow one would, and a flood of wrong keys costs no more than one of right keys.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from msgspec import Struct
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictBool,
    model_validator,
)

from gateway.config.names import Model
from gateway.config.places import ProcessSection
from gateway.core.vocabulary import ModelName, ServiceClass, TenantName
from gateway.request.callers import NO_BUDGET, Budget, ClientKey, KeyId, KeyLimits
from mesh.faults import FileFault, KeyFaults
from mesh.settings import FileModel
from mesh.values import Id
from mesh.yaml_file import read_yaml

KEYS_MAX = 10_000
MODELS_MAX = 1000
PER_MINUTE_MAX = 10**12
_SECOND_NS = 1_000_000_000
_SECRET_BYTES = 32
_SALT_BYTES = 16
_PERSON = b"nightside-key"
_PREFIX = "ns-"
_HASH = re.compile(rf"blake2b:([0-9a-f]{{{2 * _SALT_BYTES}}}):([0-9a-f]{{{2 * _SECRET_BYTES}}})")


class SecretHash(Struct, frozen=True):
    """Salted hash of a secret."""

    salt: bytes
    digest: bytes

    @classmethod
    def of(cls, secret: str, salt: bytes) -> Self:
        return cls(salt, _digest(secret, salt))

    def matches(self, secret: str) -> bool:
        """Return whether the secret matches, in a time that does not depend on where they differ."""
        return hmac.compare_digest(_digest(secret, self.salt), self.digest)

    def __str__(self) -> str:
        return f"blake2b:{self.salt.hex()}:{self.digest.hex()}"


def _digest(secret: str, salt: bytes) -> bytes:
    return hashlib.blake2b(secret.encode(), digest_size=_SECRET_BYTES, salt=salt, person=_PERSON).digest()


def mint(key_id: str) -> tuple[str, SecretHash]:
    """Make a new key, which is shown once, and the hash of its secret to store."""
    secret = secrets.token_hex(_SECRET_BYTES)
    return f"{_PREFIX}{key_id}-{secret}", SecretHash.of(secret, secrets.token_bytes(_SALT_BYTES))


# Keys file


def _check_hash(text: str) -> str:
    if _HASH.fullmatch(text) is None:
        raise ValueError("is not what `nightside keys add` writes")
    return text


def parse_time(text: object) -> object:
    """Parse `2027-01-31` (its beginning, UTC) or `2027-01-31T12:00:00Z`. Raises ValueError with a message for the
    user."""
    if isinstance(text, datetime):
        return text
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        moment = None
    if moment is None:
        raise ValueError(f"{text!r} is not a time such as 2027-01-31 or 2027-01-31T12:00:00Z")
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


_Count = Annotated[int, Field(strict=True, ge=1, le=PER_MINUTE_MAX)]


class KeyEntry(FileModel):
    """Entry of one key in the file."""

    id: Id
    hash: Annotated[str, AfterValidator(_check_hash)]
    tenant: Id
    concurrency: _Count | None = None
    requests_per_minute: _Count | None = None
    tokens_per_minute: _Count | None = None
    models: Annotated[tuple[Model, ...], Field(min_length=1, max_length=MODELS_MAX)] | None = None
    process: ProcessSection | None = None
    may_name_tenant: StrictBool = False
    """The holder may name any tenant in x-nightside-tenant, where `trust_tenant_header` is on."""
    service_class: ServiceClass | None = None
    """Service class of requests that name none in x-nightside-class, and the best class that they may name."""
    expires: Annotated[datetime, BeforeValidator(parse_time)] | None = None
    disabled: StrictBool = False
    tokens_per_day: _Count | None = None
    tokens_per_month: _Count | None = None
    old_hash: Annotated[str, AfterValidator(_check_hash)] | None = None
    """Hash of the secret before the last rotation, which is accepted until `old_until`."""
    old_until: Annotated[datetime, BeforeValidator(parse_time)] | None = None

    @model_validator(mode="after")
    def _check_old(self) -> Self:
        if (self.old_hash is None) != (self.old_until is None):
            raise ValueError("old_hash and old_until are written together or not at all")
        return self

    def secret_hash(self) -> SecretHash:
        return _hash_in(self.hash)

    def old_secret_hash(self) -> SecretHash | None:
        return None if self.old_hash is None else _hash_in(self.old_hash)

    def old_until_ns(self) -> float:
        until_ns = 0 if self.old_until is None else round(self.old_until.timestamp() * _SECOND_NS)
        return min(until_ns, self.expires_ns())

    def expires_ns(self) -> float:
        if self.disabled:
            return 0
        return math.inf if self.expires is None else round(self.expires.timestamp() * _SECOND_NS)

    def client_key(self) -> ClientKey:
        return ClientKey(
            KeyId(self.id),
            TenantName(self.tenant),
            KeyLimits(self.concurrency, self.requests_per_minute, self.tokens_per_minute),
            process=self.process.rule() if self.process else None,
            models=frozenset(map(ModelName, self.models)) if self.models else None,
            budget=_budget(self),
            may_name_tenant=self.may_name_tenant,
            service_class=self.service_class,
        )


def _hash_in(text: str) -> SecretHash:
    match = _HASH.fullmatch(text)
    assert match is not None, "checked when it was read"
    return SecretHash(bytes.fromhex(match[1]), bytes.fromhex(match[2]))


class TenantEntry(FileModel):
    """Budget that all keys of a tenant share."""

    id: Id
    tokens_per_day: _Count | None = None
    tokens_per_month: _Count | None = None

    def budget(self) -> Budget:
        return _budget(self)


def _budget(entry: KeyEntry | TenantEntry) -> Budget:
    """Budget of an entry; the shared NO_BUDGET where it sets none, which callers recognise by identity."""
    found = Budget(entry.tokens_per_day, entry.tokens_per_month)
    return NO_BUDGET if found == NO_BUDGET else found


class KeysFile(FileModel):
    version: Literal[1] = 1
    keys: Annotated[tuple[KeyEntry, ...], Field(max_length=KEYS_MAX)] = ()
    tenants: Annotated[tuple[TenantEntry, ...], Field(max_length=KEYS_MAX)] = ()

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        for name, entries in self._entries():
            seen: set[str] = set()
            for index, entry in enumerate(entries):
                if entry.id in seen:
                    raise KeyFaults(FileFault(f"{name}[{index}].id", f"{entry.id!r} is used twice"))
                seen.add(entry.id)
        return self

    def _entries(self) -> Iterator[tuple[str, tuple[KeyEntry | TenantEntry, ...]]]:
        yield "keys", self.keys
        yield "tenants", self.tenants

    def as_document(self) -> dict[str, Any]:
        """Content as it is written to the file; options that are not set are left out."""
        document = {"version": 1, "keys": list(map(_written, self.keys))}
        return {**document, "tenants": list(map(_written, self.tenants))} if self.tenants else document

    def budget_faults(self) -> Iterator[FileFault]:
        """Yield a fault for each budget, for a gateway that keeps no usage over a restart."""
        for name, entries in self._entries():
            for index, entry in enumerate(entries):
                if entry.tokens_per_day is not None or entry.tokens_per_month is not None:
                    yield FileFault(
                        f"{name}[{index}]", "a budget has to survive restarts: the region file needs state.folder"
                    )


def _written(entry: KeyEntry | TenantEntry) -> dict[str, Any]:
    return entry.model_dump(mode="json", exclude_defaults=True)


def read_keys_file(path: Path) -> KeysFile:
    """Read a keys file. Raises ConfigError."""
    file = read_yaml(path)
    file.mapping()
    return file.read_as(KeysFile)


# Recognition of keys


class _Kept(Struct, frozen=True):
    key: ClientKey
    secret: SecretHash
    expires_ns: float
    """Nanoseconds since 1970; infinite for a key that does not expire, 0 for a disabled one."""
    old: SecretHash
    """Hash of the previous secret; for a key without one, the hash of a secret that was thrown away."""
    old_until_ns: float


class FoundKey(NamedTuple):
    key: ClientKey
    is_old: bool
    """The credential has the secret from before the last rotation."""


class KeyTable:
    """Keys of one file by id. A look-up computes one hash for a valid credential with the current secret, and two for
    any other, whatever the number of keys and whether or not the key exists."""

    def __init__(self, entries: Iterable[KeyEntry]) -> None:
        nothing = mint("unknown")[1]
        self._kept = {
            entry.id: _Kept(
                entry.client_key(),
                entry.secret_hash(),
                entry.expires_ns(),
                entry.old_secret_hash() or nothing,
                entry.old_until_ns(),
            )
            for entry in entries
        }
        self._unknown = _Kept(ClientKey(KeyId(""), TenantName("")), nothing, 0, nothing, 0)

    def __len__(self) -> int:
        return len(self._kept)

    def valid(self, key_id: KeyId, wall_ns: int) -> ClientKey | None:
        """Key of that id, if it is valid at `wall_ns`."""
        kept = self._kept.get(key_id)
        return kept.key if kept is not None and wall_ns < kept.expires_ns else None

    def find(self, credential: str, wall_ns: int) -> FoundKey | None:
        """Key that the credential proves and that is valid at `wall_ns`; else None."""
        key_id, secret = _parts(credential)
        kept = self._kept.get(key_id, self._unknown)
        if kept.secret.matches(secret) and wall_ns < kept.expires_ns:
            return FoundKey(kept.key, is_old=False)
        return FoundKey(kept.key, is_old=True) if kept.old.matches(secret) and wall_ns < kept.old_until_ns else None


_NO_SECRET = "0" * 2 * _SECRET_BYTES


def _parts(credential: str) -> tuple[str, str]:
    """Key id and secret of a credential; stand-ins for a malformed one, so that its look-up costs the same."""
    key_id, _, secret = credential[len(_PREFIX) :].rpartition("-")
    is_sound = credential.startswith(_PREFIX) and len(secret) == len(_NO_SECRET) and secret.isascii()
    return (key_id, secret) if is_sound else ("", _NO_SECRET)
