"""A small issuer of tokens: it publishes keys over HTTP, signs claims that a test chooses, rotates its keys, and can be
dead, slow or dishonest.

It has no users and no log-in.
"""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from joserfc import jws
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey

from mesh.clock import Clock
from mesh.tokens.fetching import DISCOVERY_PATH

KEYS_PATH = "/keys"
NOTHING: Mapping[str, object] = {}
AUDIENCE = "nightside"
LIFE_S = 600
SigningKey = ECKey | RSAKey | OKPKey
RSA_KEY = RSAKey.generate_key(2048, {"kid": "rsa-1", "use": "sig"})
"""One key for all tests, since generating one takes a while."""


def ec_key(kid: str) -> ECKey:
    return ECKey.generate_key("P-256", {"kid": kid, "use": "sig"})


class FakeIssuer:
    """Issuer whose attributes a test may change at any time."""

    def __init__(
        self, url: str = "http://127.0.0.1:1", keys: list[SigningKey] | None = None, now_s: int | None = None
    ) -> None:
        """`now_s` is its current time in seconds, where that differs from the clock's."""
        self.url = url
        self.now_s = now_s
        self.keys: list[SigningKey] = keys if keys is not None else [ec_key("key-1")]
        self.status = 200
        self.body: bytes | None = None
        """Body to send in place of the key set."""
        self.encoding: str | None = None
        """Value of the content-encoding header of its answers."""
        self.discovery: dict[str, object] = {}
        """Members that replace those of the discovery document."""
        self.gate: asyncio.Event | None = None
        """Event to wait for before answering."""
        self.asked: list[str] = []

    def key_set(self) -> bytes:
        return json.dumps(KeySet(list(self.keys)).as_dict(private=False)).encode()

    def claims(self, **changes: object) -> dict[str, Any]:
        """Claims of a valid token; a change to None removes a claim."""
        now_s = Clock().wall_ns() // 1_000_000_000 if self.now_s is None else self.now_s
        claims = {"iss": self.url, "sub": "alice", "aud": AUDIENCE, "iat": now_s, "exp": now_s + LIFE_S, **changes}
        return {name: said for name, said in claims.items() if said is not None}

    def token(self, *, key: SigningKey | None = None, header: Mapping[str, object] = NOTHING, **changes: Any) -> str:
        return sign(self.claims(**changes), key or self.keys[0], **header)

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if self.gate is not None:
            await self.gate.wait()
        if self.status != 200:
            return web.Response(status=self.status, headers={"location": self.url + KEYS_PATH})
        if request.path == DISCOVERY_PATH:
            return web.json_response({"issuer": self.url, "jwks_uri": self.url + KEYS_PATH, **self.discovery})
        headers = {} if self.encoding is None else {"content-encoding": self.encoding}
        return web.Response(body=self.key_set() if self.body is None else self.body, headers=headers)


class _Registry(jws.JWSRegistry):
    max_header_length = 1 << 20


def sign(claims: dict[str, Any], key: SigningKey, **header: object) -> str:
    algorithm = {"EC": "ES256", "RSA": "RS256", "OKP": "Ed25519"}[key.key_type]
    protected: Any = {"alg": algorithm, "kid": key.kid, "typ": "JWT", **header}
    protected = {name: said for name, said in protected.items() if said is not None}
    registry = _Registry(algorithms=[str(protected["alg"])], strict_check_header=False)
    return jws.serialize_compact(protected, json.dumps(claims), key, registry=registry)


def unsigned(header: object, claims: object, signature: bytes = b"") -> str:
    """Token without a valid signature, of any header and any claims."""
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(urlsafe_b64encode(each).rstrip(b"=").decode() for each in parts)


@asynccontextmanager
async def issuing(*, port: int = 0) -> AsyncIterator[FakeIssuer]:
    """Run an issuer; with a port that the test chooses it can return at the same address."""
    issuer = FakeIssuer()
    app = web.Application()
    app.router.add_get("/{path:.*}", issuer.answer)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        issuer.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield issuer
    finally:
        await runner.cleanup()
