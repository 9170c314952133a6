"""Measures the cost of checking an issuer's token: one verified before, and a new one for each signature algorithm. An
API key is measured beside them. No network requests are made."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Mapping
from statistics import median
from time import thread_time_ns
from typing import Any

from joserfc import jws
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey

from gateway.security.keys import KeyEntry, KeyTable, mint
from mesh.clock import Clock
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from mesh.tokens.config import Algorithm, IssuerConfig
from mesh.tokens.counters import AT_START
from mesh.tokens.issuer import IssuerDependencies
from mesh.tokens.tokens import Tokens

_ROUNDS = 7
_REMEMBERED, _FRESH = 2000, 200
_URL = "https://login.example.net"
_CONFIG = IssuerConfig(name="corp", issuer=_URL, audiences=("nightside",), algorithms=tuple(Algorithm))
_KEYS: dict[str, RSAKey | ECKey | OKPKey] = {
    "RS256": RSAKey.generate_key(2048, {"kid": "RS256"}),
    "ES256": ECKey.generate_key("P-256", {"kid": "ES256"}),
    "Ed25519": OKPKey.generate_key("Ed25519", {"kid": "Ed25519"}),
}


def run() -> Mapping[str, object]:
    """Microseconds of CPU per check, the median of a few rounds."""
    figures: dict[str, object] = {"key_us": _us(_of_key(), _REMEMBERED)}
    for algorithm in _KEYS:
        texts = iter([_token(algorithm, number) for number in range(_FRESH * (_ROUNDS + 1))])
        tokens = _known_tokens()
        figures[f"fresh_{algorithm}_us"] = _us(lambda: tokens.check(next(texts)), _FRESH)  # noqa: B023 - used at once
    one, tokens = _token("RS256", 0), _known_tokens()
    figures["token_bytes"] = len(one)
    figures["remembered_us"] = _us(lambda: tokens.check(one), _REMEMBERED)
    return figures


def _us(work: Callable[[], object], times: int) -> float:
    def round_us() -> float:
        began_ns = thread_time_ns()
        for _ in range(times):
            work()
        return (thread_time_ns() - began_ns) / times / 1000

    round_us()
    return median(round_us() for _ in range(_ROUNDS))


def _of_key() -> Callable[[], object]:
    key, kept = mint("a")
    table, wall_ns = KeyTable([KeyEntry(id="a", hash=str(kept), tenant="acme")]), Clock().wall_ns()
    return lambda: table.find(key, wall_ns)


def _known_tokens() -> Tokens[str]:
    async def fetch(_: IssuerConfig) -> bytes:
        return json.dumps(KeySet(list(_KEYS.values())).as_dict(private=False)).encode()

    clock, log = Clock(), make_logger(LoggingConfig(LogFormat.JSON), "bench", io.StringIO())
    around = IssuerDependencies("bench", None, clock, log, fetch=fetch)
    (issuer,) = issuers = around.issuers("clients", [_CONFIG])
    asyncio.run(issuer.fetch(AT_START))
    return Tokens("clients", issuers, _subject_of, clock=clock, counters=around.counters)


def _subject_of(_: IssuerConfig, claims: Mapping[str, Any]) -> str:
    return str(claims["sub"])


def _token(algorithm: str, number: int) -> str:
    """Token about as large as those of the large providers."""
    now_s = Clock().wall_ns() // 1_000_000_000
    claims = {
        "iss": _URL,
        "sub": f"user-{number}",
        "aud": ["nightside", "other"],
        "iat": now_s,
        "exp": now_s + 600,
        "scope": "inference profile",
        "groups": [f"group-{each}" for each in range(20)],
        "org": {"id": "org-17", "name": "Acme, Incorporated"},
    }
    header: Any = {"alg": algorithm, "kid": algorithm, "typ": "at+jwt"}
    registry = jws.JWSRegistry(algorithms=[algorithm])
    return jws.serialize_compact(header, json.dumps(claims), _KEYS[algorithm], registry=registry)
