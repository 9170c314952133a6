"""Turns the region file's TLS settings for engines into contexts for connections.

It must never fall back to a connection without checks: a file that cannot be used is an error.
"""

from __future__ import annotations

import ssl
from hashlib import blake2b
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gateway.config.targets import EngineTlsConfig
from mesh.faults import ConfigError
from mesh.whole_files import read_whole


class EngineTls(Struct, frozen=True):
    """TLS context and server name of connections to an engine."""

    context: ssl.SSLContext
    server_name: str | None


class TlsContexts:
    """TLS contexts, one for all engines with the same settings. Files are read when a context is made, and not again.

    To read them anew, create new TlsContexts from the old ones: where no file has changed, the old context stays, and
    with it the connections.
    """

    def __init__(self, older: TlsContexts | None = None) -> None:
        self.made: dict[EngineTlsConfig, tuple[bytes, ssl.SSLContext]] = {}
        """Context by settings, each with the digest of its files."""
        self._older = dict(older.made) if older is not None else {}

    def get(self, config: EngineTlsConfig) -> EngineTls:
        """Context for these settings. Raises ConfigError."""
        settings = replace(config, server_name=None)
        if settings not in self.made:
            try:
                self.made[settings] = self._make(settings)
            except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
                raise ConfigError(f"tls: {_files(settings)} cannot be used: {error}") from error
        return EngineTls(self.made[settings][1], config.server_name)

    def _make(self, settings: EngineTlsConfig) -> tuple[bytes, ssl.SSLContext]:
        digest = _digest(settings)
        older = self._older.get(settings)
        if older is not None and older[0] == digest:
            return older
        return digest, _new_context(settings)


def _new_context(config: EngineTlsConfig) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=config.ca_file)
    if config.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if config.client_certificate is not None:
        context.load_cert_chain(config.client_certificate, config.client_key, password=_no_password)
    return context


def _no_password() -> str:
    """Fail for a key with a password: without this function, OpenSSL asks for the password on the terminal."""
    raise ValueError("the key is locked with a password")


def _paths(config: EngineTlsConfig) -> list[Path]:
    return [path for path in (config.ca_file, config.client_certificate, config.client_key) if path is not None]


def _digest(config: EngineTlsConfig) -> bytes:
    digest = blake2b(digest_size=16)
    for path in _paths(config):
        digest.update(blake2b(read_whole(path)).digest())
    return digest.digest()


def _files(config: EngineTlsConfig) -> str:
    return ", ".join(map(str, _paths(config))) or "these settings"
