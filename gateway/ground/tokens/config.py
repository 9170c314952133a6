"""Who issues tokens that are believed, and what a token has to be like: the part of it that all programs of ours have
in their files. It reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, Strict

from gateway.ground.faults import Fault
from gateway.ground.values import SECOND_NS, Address, Id, WebUrl

ISSUERS_MAX = 16
_NAME_LENGTH_MAX = 24
"""It becomes part of ids, which are short."""
_TEXT_LENGTH_MAX = 256
_LEEWAY_MAX_NS = 600 * SECOND_NS


class Algorithm(StrEnum):
    """How a token may be signed. None of them shares a secret, so that nobody who can verify can sign."""

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
    """As RFC 9864 calls the same."""


def _check_text(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has a character that cannot be printed")
    return text


ClaimText = Annotated[str, Strict(), Field(min_length=1, max_length=_TEXT_LENGTH_MAX), AfterValidator(_check_text)]
"""What a claim may say, or be called."""
IssuerName = Annotated[Id, Field(max_length=_NAME_LENGTH_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerConfig:
    """One issuer of tokens (OpenID Connect, or OAuth 2 with keys that are published)."""

    name: IssuerName
    """Here, in logs, metrics and ids."""
    issuer: WebUrl
    """Exactly what tokens say in `iss`."""
    audiences: Annotated[tuple[ClaimText, ...], Field(min_length=1)]
    """Of which a token has to name one in `aud`: those meant for us."""
    jwks_url: WebUrl | None = None
    """Where its keys are; without it, its discovery document says so."""
    ca_file: Path | None = None
    """Who vouches for it; without it, those whom this machine trusts."""
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = (
        Algorithm.RS256,
        Algorithm.PS256,
        Algorithm.ES256,
        Algorithm.EDDSA,
    )
    scopes: tuple[ClaimText, ...] = ()
    """All of which a token needs."""
    access_tokens_only: bool = False
    """Take no token but those whose type is `at+jwt` (RFC 9068): an issuer's other tokens open nothing."""
    leeway_ns: int = 30 * SECOND_NS
    """For clocks that differ."""
    refresh_interval_ns: int = 600 * SECOND_NS
    """How often its keys are fetched, give or take a tenth."""
    refetch_interval_ns: int = 10 * SECOND_NS
    """A token by an unknown key has them fetched at once, but no sooner than this after the last time, whoever asks."""
    stale_after_ns: int = 24 * 3600 * SECOND_NS
    """For so long keys are believed of an issuer that cannot be reached."""
    timeout_ns: int = 5 * SECOND_NS


def issuer_faults(key: str, issuers: Iterable[IssuerConfig], *, insecure: bool) -> Iterator[Fault]:
    """Among keys each of which is well written. `key` is the section."""
    names: list[str] = []
    urls: list[str] = []
    for index, each in enumerate(issuers):
        path = f"{key}.issuers[{index}]"
        if index == ISSUERS_MAX:
            yield Fault(f"{key}.issuers", f"holds more than {ISSUERS_MAX}")
        if each.name in names:
            yield Fault(f"{path}.name", f"{each.name!r} is used twice")
        if each.issuer in urls:
            yield Fault(f"{path}.issuer", f"{each.issuer} is listed twice")
        names.append(each.name)
        urls.append(each.issuer)
        for name, url in (("issuer", each.issuer), ("jwks_url", each.jwks_url)):
            if url is not None and not (insecure or is_protected(url)):
                yield Fault(f"{path}.{name}", f"{url} is beyond this machine, without TLS")
        if each.leeway_ns > _LEEWAY_MAX_NS:
            yield Fault(f"{path}.leeway", "is over 10m, in which a token that has expired would be taken")
        if each.stale_after_ns < each.refresh_interval_ns:
            yield Fault(f"{path}.stale_after", f"is below {key}.issuers[{index}].refresh_interval")


def is_protected(url: str) -> bool:
    """Nobody in between can say something else in its place."""
    return urlsplit(url).scheme == "https" or is_here(url)


def is_here(url: str) -> bool:
    """It leads to this machine."""
    return Address(urlsplit(url).hostname or "", 0).is_loopback


def why_not_led_to(issuer: str, url: str) -> str:
    """Why an issuer may not have its keys fetched from there; empty where it may."""
    if is_here(url) and not is_here(issuer):
        return "on this machine, which is no place of an issuer beyond it"
    if is_protected(issuer) and not is_protected(url):
        return "beyond this machine, without TLS"
    return ""
