"""`nightside keys`: adds, lists, disables and removes clients' keys. A secret is shown once and kept nowhere."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import yaml
from pydantic import ValidationError

from gateway.ground.faults import ConfigError, FileError
from gateway.ground.yaml_file import faults_in
from gateway.security.keys import KeyEntry, KeysFile, mint, read_keys_file

_HEAD = "# Written by `nightside keys`: comments do not last. The hashes give no key away.\n"


@click.group()
def keys() -> None:
    """Say who may call a gateway. Gateways take in a changed FILE by themselves."""


_file = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@keys.command()
@_file
@click.option("--id", "key_id", required=True, help="Names the key; it is part of it.")
@click.option("--tenant", required=True, help="Whose requests it makes.")
@click.option("--concurrency", type=int, help="Requests that may run at once.")
@click.option("--requests-per-minute", type=int)
@click.option("--tokens-per-minute", type=int, help="Prompt and output together.")
@click.option("--model", "models", multiple=True, help="A model it may use; may be repeated. Default: every model.")
@click.option("--jurisdiction", "jurisdictions", multiple=True, help="Process only here; may be repeated.")
@click.option("--region", "regions", multiple=True, help="Process only here; may be repeated.")
@click.option("--deny-region", "denied_regions", multiple=True, help="Never process here; may be repeated.")
@click.option(
    "--may-name-tenant",
    is_flag=True,
    default=None,
    help="It may name another tenant in x-nightside-tenant, where trust_tenant_header is on.",
)
@click.option("--expires", help="2027-01-31, or 2027-01-31T12:00:00Z")
@_as_json
def add(file: Path, key_id: str, as_json: bool, **options: Any) -> None:
    """Make a key, put it into FILE and print it. It cannot be shown again."""
    key, kept = mint(key_id)
    with _editing(file, may_be_missing=True) as document:
        document["keys"].append({"id": key_id, "hash": str(kept), **_entry_options(**options)})
    click.echo(json.dumps({"id": key_id, "key": key}) if as_json else key)


@keys.command(name="list")
@_file
@_as_json
def list_keys(file: Path, as_json: bool) -> None:
    """Show the keys in FILE, without their hashes."""
    entries = [_shown(entry) for entry in _read(file).keys]
    if as_json:
        click.echo(json.dumps(entries, indent=2))
        return
    for entry in entries:
        rest = " ".join(f"{name}={_in_words(value)}" for name, value in entry.items() if name not in ("id", "tenant"))
        click.echo(f"{entry['id']}  tenant={entry['tenant']}  {rest}".rstrip())


@keys.command()
@_file
@click.argument("key_id")
def disable(file: Path, key_id: str) -> None:
    """Let the key KEY_ID in FILE open nothing any more, but keep its entry."""
    with _editing(file) as document:
        _find(document, key_id)["disabled"] = True


@keys.command()
@_file
@click.argument("key_id")
def remove(file: Path, key_id: str) -> None:
    """Take the key KEY_ID out of FILE."""
    with _editing(file) as document:
        document["keys"].remove(_find(document, key_id))


def _entry_options(**options: Any) -> dict[str, Any]:
    """Only what was given."""
    places = {name: list(options.pop(name)) for name in ("jurisdictions", "regions", "denied_regions")}
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
    if any(places.values()):
        given["process"] = {name: value for name, value in places.items() if value}
    return {name: value for name, value in given.items() if value not in (None, [])}


def _shown(entry: KeyEntry) -> dict[str, Any]:
    return entry.model_dump(mode="json", exclude={"hash"}, exclude_none=True, exclude_defaults=True)


def _in_words(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return ";".join(f"{name}:{_in_words(each)}" for name, each in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def _find(document: dict[str, Any], key_id: str) -> dict[str, Any]:
    for entry in document["keys"]:
        if entry["id"] == key_id:
            found: dict[str, Any] = entry
            return found
    raise click.ClickException(f"no key has the id {key_id!r}")


def _read(file: Path) -> KeysFile:
    try:
        return read_keys_file(file)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def _editing(file: Path, *, may_be_missing: bool = False) -> Iterator[dict[str, Any]]:
    """The file's content, to be changed and then written as a whole; one editor at a time."""
    file = file.resolve()
    with _alone_in(file.parent):
        known = KeysFile() if may_be_missing and not file.exists() else _read(file)
        document = known.as_document()
        yield document
        try:
            changed = KeysFile.model_validate(document)
        except ValidationError as error:
            raise click.ClickException(str(FileError(file, faults_in(error)))) from error
        _write(file, _HEAD + yaml.safe_dump(changed.as_document(), sort_keys=False))


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise click.ClickException(f"{folder}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(file: Path, text: str) -> None:
    """All of it or nothing, readable by its owner alone; a gateway never sees half of it."""
    try:
        with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=f".{file.name}.", delete=False) as fresh:
            try:
                fresh.write(text)
                fresh.flush()
                os.fsync(fresh.fileno())
                Path(fresh.name).replace(file)
            except BaseException:
                Path(fresh.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from error
