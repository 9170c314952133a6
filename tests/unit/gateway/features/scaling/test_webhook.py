"""The webhook, against a small real server that answers, fails, stalls or redirects."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from gateway.core.features.scaling.vocabulary import PoolKey, ScalingReason, Want
from gateway.core.vocabulary import DEFAULT_POOL, ModelName, RegionName
from gateway.features.scaling.config import WebhookConfig
from gateway.features.scaling.webhook import Result, Webhook, sign
from mesh.clock import Clock
from mesh.config import LoggingConfig
from mesh.logs import make_logger

MS = 1_000_000
SECRET = b"a secret of some length"
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def wanting(wanted: int, model: str = "m") -> Want:
    key = PoolKey(ModelName(model), DEFAULT_POOL)
    return Want(RegionName("eu"), key, wanted, ScalingReason.LOAD, 1, wanted, 0, 0, 0, 0, 1, 8, 16)


@dataclass
class Receiver:
    """Server that keeps the requests it gets, and gives its answers in order, then the last one for ever."""

    answers: list[Answer]
    took: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    elsewhere: int = 0

    async def take(self, request: web.Request) -> web.StreamResponse:
        self.took.append(({name.lower(): text for name, text in request.headers.items()}, await request.read()))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await answer(request)

    async def take_elsewhere(self, _: web.Request) -> web.StreamResponse:
        self.elsewhere += 1
        return web.Response()

    @property
    def bodies(self) -> list[dict[str, object]]:
        return [json.loads(body) for _, body in self.took]


def status(code: int) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=code, headers={"location": "/elsewhere"})

    return answer


async def stall(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


@dataclass
class Told:
    webhook: Webhook
    results: Counter[str]

    async def until(self, result: Result, count: int = 1) -> None:
        async with asyncio.timeout(60):
            while self.results[result] < count:  # noqa: ASYNC110 - counted by a callback
                await asyncio.sleep(0.001)


@asynccontextmanager
async def telling(
    folder: Path, receiver: Receiver, *, secret: str = SECRET.decode(), tries: int = 4
) -> AsyncIterator[Told]:
    app = web.Application()
    app.router.add_post("/scaling", receiver.take)
    app.router.add_route("*", "/elsewhere", receiver.take_elsewhere)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    file = folder / "secret"
    file.write_text(secret)
    config = WebhookConfig(
        url=f"http://127.0.0.1:{port}/scaling",
        secret_file=file,
        timeout_ns=50 * MS,
        tries_max=tries,
        retry_min_ns=MS,
        retry_max_ns=2 * MS,
    )
    results: Counter[str] = Counter()
    clock = Clock()
    webhook = Webhook(
        config,
        "eu-1",
        clock=clock,
        count=lambda result: results.update([result]),
        log=make_logger(LoggingConfig(), "eu-1", clock=clock),
    )
    running = asyncio.create_task(webhook.run())  # noqa: TID251 - the test is its owner
    try:
        yield Told(webhook, results)
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await runner.cleanup()


async def test_each_change_is_told_signed_and_whole(tmp_path: Path) -> None:
    receiver = Receiver([status(204)])
    async with telling(tmp_path, receiver) as told:
        told.webhook.tell(wanting(3), 2)
        await told.until(Result.DELIVERED)
    ((headers, body),) = receiver.took
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = base64.b64encode(hmac.new(SECRET, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{digest}"
    assert headers["content-type"] == "application/json"
    said = json.loads(body)
    assert (said["region"], said["model"], said["pool"], said["wanted"], said["before"]) == ("eu", "m", "default", 3, 2)
    assert said["reason"] == "load"


async def test_a_server_that_fails_is_asked_again_under_the_same_id(tmp_path: Path) -> None:
    receiver = Receiver([status(500), status(429), status(200)])
    async with telling(tmp_path, receiver) as told:
        told.webhook.tell(wanting(3), 2)
        await told.until(Result.DELIVERED)
        assert told.webhook.fault == ""
    assert len({headers["webhook-id"] for headers, _ in receiver.took}) == 1
    assert len(receiver.took) == 3


async def test_one_that_stalls_is_left_and_given_up_after_so_many_tries(tmp_path: Path) -> None:
    receiver = Receiver([stall])
    async with telling(tmp_path, receiver, tries=2) as told:
        told.webhook.tell(wanting(3), 2)
        await told.until(Result.GIVEN_UP)
        assert told.webhook.fault
    assert len(receiver.took) == 2


async def test_redirects_are_not_followed_and_a_no_is_not_asked_again(tmp_path: Path) -> None:
    receiver = Receiver([status(302), status(404), status(200)])
    async with telling(tmp_path, receiver) as told:
        told.webhook.tell(wanting(3), 2)
        await told.until(Result.REFUSED)
        told.webhook.tell(wanting(4), 3)
        await told.until(Result.REFUSED, 2)
        told.webhook.tell(wanting(5), 4)
        await told.until(Result.DELIVERED)
    assert receiver.elsewhere == 0
    assert [said["wanted"] for said in receiver.bodies] == [3, 4, 5]


async def test_of_a_pool_only_the_newest_is_kept_and_telling_never_waits(tmp_path: Path) -> None:
    receiver = Receiver([stall, status(200)])
    async with telling(tmp_path, receiver) as told:
        for wanted in range(1, 1001):
            told.webhook.tell(wanting(wanted), wanted - 1)
        told.webhook.tell(wanting(7, "other"), 6)
        await told.until(Result.DELIVERED, 2)
        assert told.results[Result.SUPERSEDED] == 999
    assert {(said["model"], said["wanted"]) for said in receiver.bodies} == {("m", 1000), ("other", 7)}


async def test_a_newer_one_takes_the_place_of_one_that_is_being_tried(tmp_path: Path) -> None:
    receiver = Receiver([status(503)])
    async with telling(tmp_path, receiver, tries=1000) as told:
        told.webhook.tell(wanting(3), 2)
        async with asyncio.timeout(60):
            while not receiver.took:  # noqa: ASYNC110 - counted by a server
                await asyncio.sleep(0.001)
        told.webhook.tell(wanting(4), 3)
        receiver.answers = [status(200)]
        await told.until(Result.DELIVERED)
    assert receiver.bodies[-1]["wanted"] == 4


async def test_without_its_secret_nothing_goes_out(tmp_path: Path) -> None:
    receiver = Receiver([status(200)])
    async with telling(tmp_path, receiver, tries=2) as told:
        (tmp_path / "secret").unlink()
        told.webhook.tell(wanting(3), 2)
        await told.until(Result.GIVEN_UP)
        assert "cannot be read" in told.webhook.fault
    assert not receiver.took


async def test_a_secret_may_be_written_as_the_specification_has_it(tmp_path: Path) -> None:
    receiver = Receiver([status(200)])
    async with telling(tmp_path, receiver, secret=f"whsec_{base64.b64encode(SECRET).decode()}") as told:
        told.webhook.tell(wanting(3), 2)
        await told.until(Result.DELIVERED)
    ((headers, body),) = receiver.took
    assert headers["webhook-signature"] == sign(SECRET, headers["webhook-id"], headers["webhook-timestamp"], body)


def test_the_specifications_own_example() -> None:
    """The example is one of standard-webhooks' own test vectors."""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    told = sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", body)
    assert told == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
