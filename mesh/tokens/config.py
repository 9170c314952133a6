"""Settings of token issuers that all of Nightside's programs have in their files: which issuers are trusted, and what
their tokens have to be like. It reads no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Struct
from pydantic import AfterValidator, Field, Strict

from mesh.faults import FileFault
from mesh.values import SECOND_NS, Address, Id, WebUrl

ISSUERS_MAX = 16
_NAME_LENGTH_MAX = 24
"""Most characters of an issuer's name, which becomes part of ids."""
_TEXT_LENGTH_MAX = 256
_LEEWAY_MAX_NS = 600 * SECOND_NS


class Algorithm(StrEnum):
    """Signature algorithms for tokens. None has a shared secret, so that a program which can verify cannot sign."""

    RS256 = "RS256"
    RS384 = "RS384"
    RS512 = "RS512"
    PS256 = "PS256"
    PS384 = "PS384"
    PS512 = "PS512"
    ES256 = "ES256"
    ES384 = "ES384"
    ES512 = "ES512"
    EDDSA = "EdDSA"
    ED25519 = "Ed25519"
    """Name of EdDSA in RFC 9864."""


def _check_text(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has a character that cannot be printed")
    return text


ClaimText = Annotated[str, Strict(), Field(min_length=1, max_length=_TEXT_LENGTH_MAX), AfterValidator(_check_text)]
"""Text of a claim, or its name."""
IssuerName = Annotated[Id, Field(max_length=_NAME_LENGTH_MAX)]


class IssuerConfig(Struct, frozen=True, kw_only=True):
    """Issuer of tokens (OpenID Connect, or OAuth 2 with published keys)."""

    name: IssuerName
    """Name of the issuer in this program's logs, metrics and ids."""
    issuer: WebUrl
    """Exact value of `iss` in the issuer's tokens."""
    audiences: Annotated[tuple[ClaimText, ...], Field(min_length=1)]
    """Audiences of this program; a token has to name one of them in `aud`."""
    jwks_url: WebUrl | None = None
    """URL of the issuer's public keys (JWKS). None: the URL in its discovery document."""
    ca_file: Path | None = None
    """CA bundle (PEM) that verifies the issuer's TLS certificate. None: the machine's trusted roots."""
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = (
        Algorithm.RS256,
        Algorithm.PS256,
        Algorithm.ES256,
        Algorithm.EDDSA,
    )
    """Signature algorithms that are accepted; algorithms with a shared secret are never accepted."""
    scopes: tuple[ClaimText, ...] = ()
    """Scopes that a token needs, all of them. Empty: no scope is required."""
    access_tokens_only: bool = False
    """Accept only tokens of type `at+jwt` (RFC 9068)."""
    leeway_ns: int = 30 * SECOND_NS
    """Tolerance for clock skew when the times in a token are checked."""
    refresh_interval_ns: int = 600 * SECOND_NS
    """Interval between two fetches of the issuer's keys, with a jitter of ±10 %."""
    refetch_interval_ns: int = 10 * SECOND_NS
    """Minimum time between a fetch and the next one that a token with an unknown key causes."""
    stale_after_ns: int = 24 * 3600 * SECOND_NS
    """Time for which keys stay trusted while the issuer cannot be reached."""
    timeout_ns: int = 5 * SECOND_NS
    """Time limit of one fetch of the issuer's keys."""


def issuer_faults(key: str, issuers: Iterable[IssuerConfig], *, insecure: bool) -> Iterator[FileFault]:
    """Yield faults between keys that are each well formed. `key` is the section."""
    names: list[str] = []
    urls: list[str] = []
    for index, each in enumerate(issuers):
        path = f"{key}.issuers[{index}]"
        if index == ISSUERS_MAX:
            yield FileFault(f"{key}.issuers", f"holds more than {ISSUERS_MAX}")
        if each.name in names:
            yield FileFault(f"{path}.name", f"{each.name!r} is used twice")
        if each.issuer in urls:
            yield FileFault(f"{path}.issuer", f"{each.issuer} is listed twice")
        names.append(each.name)
        urls.append(each.issuer)
        for name, url in (("issuer", each.issuer), ("jwks_url", each.jwks_url)):
            if url is not None and not (insecure or is_protected(url)):
                yield FileFault(f"{path}.{name}", f"{url} is beyond this machine, without TLS")
        if each.leeway_ns > _LEEWAY_MAX_NS:
            yield FileFault(f"{path}.leeway", "is over 10m, in which a token that has expired would be taken")
        if each.stale_after_ns < each.refresh_interval_ns:
            yield FileFault(f"{path}.stale_after", f"is below {key}.issuers[{index}].refresh_interval")


def is_protected(url: str) -> bool:
    """Return whether the answers from a URL cannot be forged on the way."""
    return urlsplit(url).scheme == "https" or is_here(url)


def is_here(url: str) -> bool:
    """Return whether the URL leads to this machine."""
    return Address(urlsplit(url).hostname or "", 0).is_loopback


def why_not_led_to(issuer: str, url: str) -> str:
    """Reason why an issuer's keys may not be fetched from this URL; empty where they may."""
    if is_here(url) and not is_here(issuer):
        return "on this machine, which is no place of an issuer beyond it"
    if is_protected(issuer) and not is_protected(url):
        return "beyond this machine, without TLS"
    return ""
