"""Fetches an issuer's keys: its discovery document if needed, then its key set. It accepts only a trusted certificate,
follows no redirect, and reads a bounded answer.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import aiohttp
import msgspec

from mesh.tokens.config import IssuerConfig, why_not_led_to
from mesh.tokens.key_set import KEY_SET_BYTES_MAX

DISCOVERY_PATH = "/.well-known/openid-configuration"
_SECOND_NS = 1_000_000_000
_ASKED = {"accept": "application/json", "accept-encoding": "identity"}


class FetchFailed(Exception):
    """The keys could not be fetched; the message says why, for operators."""


class _Discovered(msgspec.Struct):
    """Members of the discovery document that are needed (OpenID Connect Discovery 1.0, section 3)."""

    issuer: str
    jwks_uri: str


async def fetch_key_set(config: IssuerConfig) -> bytes:
    """Fetch the key set as it is published. Raises FetchFailed, within the issuer's `timeout`."""
    try:
        async with asyncio.timeout(config.timeout_ns / _SECOND_NS):
            tls = await asyncio.to_thread(_trusting, config.ca_file)
            async with aiohttp.ClientSession(headers=_ASKED, auto_decompress=False) as session:
                url = config.jwks_url or await _discover(session, config, tls)
                return await _get(session, url, tls)
    except TimeoutError as error:
        raise FetchFailed(f"no answer within {config.timeout_ns / _SECOND_NS:g} s") from error


async def _discover(session: aiohttp.ClientSession, config: IssuerConfig, tls: ssl.SSLContext) -> str:
    url = config.issuer.rstrip("/") + DISCOVERY_PATH
    try:
        found = msgspec.json.decode(await _get(session, url, tls), type=_Discovered)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FetchFailed(f"{url} is no discovery document") from error
    if found.issuer != config.issuer:
        raise FetchFailed(f"{url} is of another issuer")
    if why := why_not_led_to(config.issuer, found.jwks_uri):
        raise FetchFailed(f"{url} names a place for keys that is {why}")
    return found.jwks_uri


async def _get(session: aiohttp.ClientSession, url: str, tls: ssl.SSLContext) -> bytes:
    try:
        async with session.get(url, ssl=tls, allow_redirects=False) as response:
            if response.status != 200:
                raise FetchFailed(f"{url} answers with status {response.status}")
            if response.headers.get("content-encoding", "").strip().lower() not in ("", "identity"):
                raise FetchFailed(f"{url} is compressed, although no encoding was requested")
            return await _read(response, url)
    except (aiohttp.ClientError, ValueError, OSError) as error:
        raise FetchFailed(f"{url}: {_in_words(error)}") from error


def _in_words(error: Exception) -> str:
    """Reason for a failure, in equal words for equal failures; aiohttp's own messages hold memory addresses of
    objects."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not trusted: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"the name {error.host} cannot be resolved"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


async def _read(response: aiohttp.ClientResponse, url: str) -> bytes:
    """Read the body up to a bound, whatever length its header gives."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > KEY_SET_BYTES_MAX:
            raise FetchFailed(f"{url} is larger than {KEY_SET_BYTES_MAX >> 10} KiB")
    return bytes(body)


def _trusting(ca_file: Path | None) -> ssl.SSLContext:
    """TLS context, read from the file each time so that authorities may change."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise FetchFailed(f"{ca_file} holds no authorities that could be read") from error
