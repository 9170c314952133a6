from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web
from msgspec.structs import replace

from gateway.security.development_ca import DevelopmentCa, validity
from mesh.tokens.config import IssuerConfig, why_not_led_to
from mesh.tokens.fetching import FetchFailed, fetch_key_set
from mesh.tokens.key_set import KEY_SET_BYTES_MAX, read_key_set
from tests.fakes.issuer import KEYS_PATH, FakeIssuer, issuing


def config_of(issuer: FakeIssuer, **more: object) -> IssuerConfig:
    return replace(IssuerConfig(name="corp", issuer=issuer.url, audiences=("nightside",)), **more)


async def test_keys_are_found_by_discovery_or_where_the_file_says() -> None:
    async with issuing() as issuer:
        assert read_key_set(await fetch_key_set(config_of(issuer))).ids == ["key-1"]
        assert len(issuer.asked) == 2
        issuer.asked.clear()
        await fetch_key_set(config_of(issuer, jwks_url=issuer.url + KEYS_PATH))
        assert issuer.asked == [KEYS_PATH]
        slashed = replace(config_of(issuer), issuer=issuer.url + "/")
        issuer.discovery["issuer"] = issuer.url + "/"
        assert read_key_set(await fetch_key_set(slashed)).ids == ["key-1"]


@pytest.mark.parametrize(
    ("issuer", "url", "why"),
    [
        ("https://login.example.net", "https://keys.example.net/1", ""),
        ("https://login.example.net", "http://keys.example.net/1", "without TLS"),
        ("https://login.example.net", "http://127.0.0.1:9900/admin/state", "on this machine"),
        ("https://login.example.net", "https://localhost/1", "on this machine"),
        ("http://127.0.0.1:8080", "http://localhost:8080/1", ""),
        ("http://127.0.0.1:8080", "http://keys.example.net/1", "without TLS"),
        ("http://login.example.net", "http://keys.example.net/1", ""),
        ("http://login.example.net", "http://[::1]:9900/1", "on this machine"),
    ],
)
def test_an_issuer_leads_nobody_to_their_own_machine_nor_out_of_tls(issuer: str, url: str, why: str) -> None:
    told = why_not_led_to(issuer, url)
    assert why in told if why else not told


def dead(issuer: FakeIssuer) -> None:
    issuer.status = 503


def redirecting(issuer: FakeIssuer) -> None:
    issuer.status = 302


def another(issuer: FakeIssuer) -> None:
    issuer.discovery["issuer"] = "https://evil.example.net"


def nowhere(issuer: FakeIssuer) -> None:
    issuer.discovery["jwks_uri"] = "nowhere"


def no_text(issuer: FakeIssuer) -> None:
    issuer.discovery["jwks_uri"] = 5


def huge(issuer: FakeIssuer) -> None:
    issuer.body = b" " * (KEY_SET_BYTES_MAX + 1)


def compressed(issuer: FakeIssuer) -> None:
    issuer.body, issuer.encoding = gzip.compress(issuer.key_set()), "gzip"


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (dead, "status 503"),
        (redirecting, "status 302"),
        (another, "is of another issuer"),
        (nowhere, "without TLS"),
        (no_text, "is no discovery document"),
        (huge, "is larger than 256 KiB"),
        (compressed, "is compressed, although no encoding was requested"),
    ],
)
async def test_what_is_not_believed_is_told_in_words(spoil: Callable[[FakeIssuer], None], why: str) -> None:
    async with issuing() as issuer:
        spoil(issuer)
        with pytest.raises(FetchFailed, match=why):
            await fetch_key_set(config_of(issuer))


async def test_nobody_there_and_one_that_hangs() -> None:
    for url, why in (
        (
            "http://127.0.0.1:1",
            "http://127.0.0.1:1/.well-known/openid-configuration: Connect call failed ('127.0.0.1', 1)",
        ),
        (
            "http://nobody.invalid",
            "http://nobody.invalid/.well-known/openid-configuration: the name nobody.invalid cannot be resolved",
        ),
    ):
        with pytest.raises(FetchFailed) as failed:
            await fetch_key_set(config_of(FakeIssuer(url)))
        assert str(failed.value) == why
    async with issuing() as issuer:
        issuer.gate = asyncio.Event()
        with pytest.raises(FetchFailed, match="no answer within"):
            await fetch_key_set(config_of(issuer, timeout_ns=50_000_000))


async def test_whoever_is_not_vouched_for_is_not_believed(tmp_path: Path) -> None:
    ca = DevelopmentCa.create("mesh.test", now_ns=1_000_000_000_000_000_000, days=36500)
    begins, ends = validity(1_000_000_000_000_000_000, 36000)
    issued = ca.issue_for_clients("issuer", ["127.0.0.1"], begins=begins, ends=ends)
    for name, text in (("cert", issued.certificate_pem), ("key", issued.key_pem), ("ca", ca.pem().certificate_pem)):
        (tmp_path / name).write_bytes(text)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    issuer = FakeIssuer()
    app = web.Application()
    app.router.add_get("/{path:.*}", issuer.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        issuer.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
        assert read_key_set(await fetch_key_set(config_of(issuer, ca_file=tmp_path / "ca"))).ids == ["key-1"]
        with pytest.raises(FetchFailed, match="certificate"):
            await fetch_key_set(config_of(issuer))
        with pytest.raises(FetchFailed, match="holds no authorities"):
            await fetch_key_set(config_of(issuer, ca_file=tmp_path / "nothing"))
        issuer.discovery["jwks_uri"] = "http://login.example.net/keys"
        with pytest.raises(FetchFailed, match="without TLS"):
            await fetch_key_set(config_of(issuer, ca_file=tmp_path / "ca"))
    finally:
        await runner.cleanup()
