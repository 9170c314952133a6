"""Sends each change of the wanted replicas to an operator's webhook. It delays no caller: messages are queued here, and
of each pool only the newest is kept.

Messages follow the Standard Webhooks specification (https://www.standardwebhooks.com): `webhook-id` stays the same over
all tries, so that a receiver can recognise a message that it has had; `webhook-signature` is `v1,` and the base64 of
HMAC-SHA256 over `ID.TIMESTAMP.BODY`. Libraries that check it exist for most languages.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Never

import aiohttp
import msgspec
from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from gateway.core.features.scaling.vocabulary import PoolKey, Want
from gateway.features.scaling.config import WebhookConfig
from mesh.clock import Clock
from mesh.faults import KeyFaults
from mesh.supervisor import Backoff
from mesh.values import read_secret

_SECOND_NS = 1_000_000_000
_SECRET_PREFIX = "whsec_"  # noqa: S105 - what the specification begins secrets with
_TRIED_AGAIN = frozenset({408, 425, 429})
"""Status codes below 500 after which a message is tried again; so it is after each from 500 on."""


class Result(StrEnum):
    """Result of sending a message."""

    DELIVERED = "delivered"
    SUPERSEDED = "superseded"
    """A newer message took its place before it was delivered."""
    REFUSED = "refused"
    """The receiver rejected it, or redirected it: redirects are not followed."""
    GIVEN_UP = "given_up"
    """All tries failed."""


class _Message(Struct, frozen=True):
    number: str
    key: PoolKey
    body: bytes


class _Refused(Exception):
    """Receiver rejected a message, and would reject it again."""


class _NotTaken(Exception):
    """One try failed, and another may succeed."""


class Webhook:
    """Client of one receiver. `run` runs for as long as the gateway does."""

    def __init__(
        self,
        config: WebhookConfig,
        gateway_id: str,
        *,
        clock: Clock,
        count: Callable[[str], None],
        log: FilteringBoundLogger,
    ) -> None:
        """`count` is called with the result of each message."""
        self._config = config
        self._gateway_id = gateway_id
        self._clock = clock
        self._count = count
        self._log = log
        self._backoff = Backoff(config.retry_min_ns, config.retry_max_ns)
        self._began = format(clock.wall_ns(), "x")
        self._said = 0
        self._pending: dict[PoolKey, _Message] = {}
        self._news = asyncio.Event()
        self.fault = ""
        """Reason why the last message was not delivered; empty once one is."""

    def tell(self, want: Want, before: int) -> None:
        """Queue a message, without waiting for its delivery."""
        self._said += 1
        number = f"{self._gateway_id}-{self._began}-{self._said}"
        body = msgspec.json.encode(
            {
                "type": "replicas_wanted",
                "gateway": self._gateway_id,
                "region": want.region,
                "model": want.key.model,
                "pool": want.key.pool,
                "wanted": want.wanted,
                "before": before,
                "ready": want.ready,
                "least": want.least,
                "most": want.most,
                "reason": want.reason,
                "timestamp": self._clock.wall_time(),
            }
        )
        if self._pending.pop(want.key, None) is not None:
            self._count(Result.SUPERSEDED)
        self._pending[want.key] = _Message(number, want.key, body)
        self._news.set()

    async def run(self) -> Never:
        while True:
            await self._news.wait()
            while self._pending:
                message = next(iter(self._pending.values()))
                result = await self._deliver(message)
                self._count(result)
            self._news.clear()

    async def _deliver(self, message: _Message) -> Result:
        """Try until the message is delivered, refused, given up or superseded."""
        for failures in range(1, self._config.tries_max + 1):
            try:
                await self._send(message)
            except _Refused as refused:
                self._failed(message, str(refused))
                self._drop(message)
                return Result.REFUSED
            except _NotTaken as not_taken:
                self._failed(message, str(not_taken))
            else:
                self.fault = ""
                self._drop(message)
                return Result.DELIVERED
            if failures < self._config.tries_max:
                await self._pause(message, self._backoff.pause_s(failures))
            if self._pending.get(message.key) is not message:
                return Result.SUPERSEDED
        self._drop(message)
        return Result.GIVEN_UP

    async def _pause(self, message: _Message, pause_s: float) -> None:
        """Pause before the next try; a newer message for the pool ends the pause."""
        try:
            async with asyncio.timeout(pause_s):
                while self._pending.get(message.key) is message:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            pass

    async def _send(self, message: _Message) -> None:
        """Send a message once. Raises _Refused and _NotTaken."""
        headers = {"content-type": "application/json", **self._signed(message)}
        timeout = aiohttp.ClientTimeout(total=self._config.timeout_ns / _SECOND_NS)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.post(self._config.url, data=message.body, headers=headers, allow_redirects=False) as answer,
            ):
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise _NotTaken(str(error) or type(error).__name__) from error
        if 200 <= status < 300:
            return
        if status >= 500 or status in _TRIED_AGAIN:
            raise _NotTaken(f"it answered {status}")
        raise _Refused(
            f"it answered {status}, and redirects are not followed" if status < 400 else f"it answered {status}"
        )

    def _signed(self, message: _Message) -> dict[str, str]:
        """Headers with the signature. The secret is read for each try, so that it can be replaced while the gateway
        runs."""
        timestamp = str(self._clock.wall_ns() // _SECOND_NS)
        signature = sign(secret_in(self._config.secret_file), message.number, timestamp, message.body)
        return {"webhook-id": message.number, "webhook-timestamp": timestamp, "webhook-signature": signature}

    def _drop(self, message: _Message) -> None:
        if self._pending.get(message.key) is message:
            del self._pending[message.key]

    def _failed(self, message: _Message, why: str) -> None:
        self.fault = why
        self._log.warning("scaling_webhook_failed", id=message.number, url=self._config.url, reason=why)


def secret_in(file: Path) -> bytes:
    """Key that messages are signed with. Raises _NotTaken where it cannot be read."""
    try:
        text = read_secret(file, "scaling.webhook.secret_file")
    except KeyFaults as faults:
        raise _NotTaken(str(faults)) from faults
    if not text.startswith(_SECRET_PREFIX):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(_SECRET_PREFIX), validate=True)
    except binascii.Error as error:
        raise _NotTaken(f"{file} holds no base64 behind {_SECRET_PREFIX}") from error


def sign(secret: bytes, number: str, timestamp: str, body: bytes) -> str:
    """Return `v1,` and the signature in base64."""
    signed = b".".join((number.encode(), timestamp.encode(), body))
    return "v1," + base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
