"""Changes a keys file: one editor at a time, each change whole or not at all. The caller gives the time.

A secret is returned to the caller once, and stored nowhere.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from gateway.security.keys import KeyEntry, KeysFile, mint, parse_time, read_keys_file
from mesh.faults import ConfigError, FileError, FileFault
from mesh.yaml_file import faults_in

KEEP_MAX_NS = 366 * 86_400 * 1_000_000_000
_HEAD = "# Written by `nightside keys`: comments do not last. The hashes give no key away.\n"
_SECOND_NS = 1_000_000_000
_OURS = frozenset({"id", "hash", "old_hash", "old_until"})
"""Options that only these functions set."""


class KeyUnknown(ConfigError):
    """No key has this id."""


class Minted(NamedTuple):
    key: str
    """The whole key, to be shown once."""
    old_until: datetime | None = None
    """Time until which the previous secret is accepted; None where it is not."""


def add_key(
    path: Path, key_id: str, options: Mapping[str, Any], now_ns: int, *, may_be_missing: bool = False
) -> Minted:
    """Add a key with a new secret. Raises ConfigError."""
    _check_options(path, options, now_ns)
    key, kept = mint(key_id)
    with _editing(path, may_be_missing=may_be_missing) as document:
        document["keys"].append({"id": key_id, "hash": str(kept), **options})
    return Minted(key)


def change_key(path: Path, key_id: str, options: Mapping[str, Any], now_ns: int) -> None:
    """Set options of a key; None removes an option. Raises ConfigError."""
    _check_options(path, options, now_ns)
    with _editing(path) as document:
        entry = _entry_in(document, key_id)
        for name, value in options.items():
            if value is None:
                entry.pop(name, None)
            else:
                entry[name] = value


def rotate_key(path: Path, key_id: str, keep_ns: int, now_ns: int) -> Minted:
    """Give a key a new secret. The current one is accepted for `keep_ns` longer; one that was kept from an earlier
    rotation is not. Raises ConfigError."""
    if not 0 <= keep_ns <= KEEP_MAX_NS:
        raise FileError(
            path, [FileFault("old_until", f"a secret is kept for at most {KEEP_MAX_NS // 86_400 // _SECOND_NS} days")]
        )
    key, kept = mint(key_id)
    until = datetime.fromtimestamp((now_ns + keep_ns) // _SECOND_NS, UTC) if keep_ns else None
    with _editing(path) as document:
        entry = _entry_in(document, key_id)
        old = entry["hash"]
        entry["hash"] = str(kept)
        for name in ("old_hash", "old_until"):
            entry.pop(name, None)
        if until is not None:
            entry |= {"old_hash": old, "old_until": until.isoformat()}
    return Minted(key, until)


def remove_key(path: Path, key_id: str) -> None:
    """Remove a key. Raises ConfigError."""
    with _editing(path) as document:
        document["keys"].remove(_entry_in(document, key_id))


def set_tenant_budget(path: Path, tenant: str, budget: Mapping[str, int | None]) -> None:
    """Set the budget that a tenant's keys share; without a number in it, the tenant has none. Raises ConfigError."""
    given = {name: tokens for name, tokens in budget.items() if tokens is not None}
    with _editing(path) as document:
        others = [each for each in document.get("tenants", []) if each["id"] != tenant]
        document["tenants"] = [*others, {"id": tenant, **given}] if given else others


def shown(entry: KeyEntry) -> dict[str, Any]:
    """Entry of a key without its hashes, for operators."""
    return entry.model_dump(mode="json", exclude={"hash", "old_hash"}, exclude_none=True, exclude_defaults=True)


def _check_options(path: Path, options: Mapping[str, Any], now_ns: int) -> None:
    """Refuse options that only these functions set, and an expiry in the past, which would make a key that no request
    can use."""
    if ours := sorted(_OURS & options.keys()):
        raise FileError(path, [FileFault(ours[0], "cannot be set")])
    if options.get("expires") is None:
        return
    try:
        expires = parse_time(options["expires"])
    except ValueError as error:
        raise FileError(path, [FileFault("expires", str(error))]) from error
    assert isinstance(expires, datetime), "parsed"
    if expires.timestamp() * _SECOND_NS <= now_ns:
        raise FileError(
            path, [FileFault("expires", f"{options['expires']} is in the past: no request could ever use the key")]
        )


def _entry_in(document: dict[str, Any], key_id: str) -> dict[str, Any]:
    for entry in document["keys"]:
        if entry["id"] == key_id:
            found: dict[str, Any] = entry
            return found
    raise KeyUnknown(f"no key has the id {key_id!r}")


@contextmanager
def _editing(path: Path, *, may_be_missing: bool = False) -> Iterator[dict[str, Any]]:
    """Content of the file, which the caller changes and which is then written whole; one editor at a time."""
    path = path.resolve()
    with _alone_in(path.parent):
        known = KeysFile() if may_be_missing and not path.exists() else read_keys_file(path)
        document = known.as_document()
        yield document
        try:
            changed = KeysFile.model_validate(document)
        except ValidationError as error:
            raise FileError(path, faults_in(error)) from error
        _write(path, _HEAD + yaml.safe_dump(changed.as_document(), sort_keys=False))


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, text: str) -> None:
    """Write the file whole or not at all, readable by its owner alone; a gateway never sees a part of it."""
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as fresh:
            try:
                fresh.write(text)
                fresh.flush()
                os.fsync(fresh.fileno())
                Path(fresh.name).replace(path)
            except BaseException:
                Path(fresh.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
