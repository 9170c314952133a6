"""A tenant that may not enter a region is refused before its request's content is read, and no record holds
more of it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.config.sections import AuditConfig, JournalConfig
from gateway.core.kernel.events import RequestArrived
from gateway.records.journal import read_journal, replay
from gateway.security.keys import mint
from tests.fakes.engine import FakeEngine
from tests.support.core import EU, US
from tests.support.gateways import counted, free_replicas, region_config, until, write_policy
from tests.support.wire import CHAT_BODY, CHAT_PATH, Wire, posted, wire

OUT, OUT_HASH = mint("out")
NARROW, NARROW_HASH = mint("narrow")
IN, IN_HASH = mint("in")


def write_house(folder: Path) -> tuple[Path, Path]:
    """Write a policy that keeps tenant `clinic` out of this region, and three keys: of that tenant, of a tenant that
    may enter, and one whose own rule leaves the region out.
    """
    policy = write_policy(folder, US)
    document = yaml.safe_load(policy.read_text())
    document["tenants"] = {"clinic": {"process": {"regions": [EU.region]}}}
    policy.write_text(yaml.safe_dump(document))
    keys = folder / "keys.yaml"
    entries: list[dict[str, object]] = [
        {"id": "out", "hash": str(OUT_HASH), "tenant": "clinic"},
        {"id": "in", "hash": str(IN_HASH), "tenant": "acme"},
        {"id": "narrow", "hash": str(NARROW_HASH), "tenant": "acme", "process": {"regions": [EU.region]}},
    ]
    keys.write_text(yaml.safe_dump({"version": 1, "keys": entries}))
    return policy, keys


@asynccontextmanager
async def serving(folder: Path, engine: FakeEngine) -> AsyncIterator[GatewayHandle]:
    policy, keys = write_house(folder)
    config = replace(
        region_config("us-1", US, [engine.url], policy_file=policy),
        keys_file=keys,
        journal=JournalConfig(folder / "journal"),
        audit=AuditConfig(folder / "audit"),
    )
    async with serve_gateway(config) as gateway:
        await until(lambda: free_replicas(gateway) == 1)
        yield gateway


def head_only(key: str, *headers: str) -> bytes:
    """A request whose body never arrives."""
    return posted(f"authorization: Bearer {key}", *headers, body=b"x" * 1000).removesuffix(b"x" * 1000)


async def refused(line: Wire) -> None:
    assert await line.refusal() == (421, "residency_ingress")


class TestBeforeTheBody:
    @pytest.mark.parametrize("key", [OUT, NARROW], ids=["tenant", "key"])
    async def test_the_answer_does_not_wait_for_it(self, tmp_path: Path, engine: FakeEngine, key: str) -> None:
        async with serving(tmp_path, engine) as gateway, wire(gateway) as line:
            line.send(head_only(key))
            await refused(line)

    async def test_nor_for_one_of_unknown_length(self, tmp_path: Path, engine: FakeEngine) -> None:
        async with serving(tmp_path, engine) as gateway, wire(gateway) as line:
            head = (
                f"POST {CHAT_PATH} HTTP/1.1",
                "host: x",
                f"authorization: Bearer {OUT}",
                "transfer-encoding: chunked",
            )
            line.send("\r\n".join((*head, "", "")))
            await refused(line)

    async def test_it_is_not_asked_for(self, tmp_path: Path, engine: FakeEngine) -> None:
        """A client that waits for `100 Continue` sends no body at all."""
        async with serving(tmp_path, engine) as gateway, wire(gateway) as line:
            line.send(head_only(OUT, "expect: 100-continue"))
            await refused(line)

    async def test_nor_without_a_key(self, tmp_path: Path, engine: FakeEngine) -> None:
        async with serving(tmp_path, engine) as gateway, wire(gateway) as line:
            line.send(head_only("nobody", "expect: 100-continue"))
            assert await line.refusal() == (401, "invalid_api_key")

    async def test_who_may_enter_is_told_to_go_on(self, tmp_path: Path, engine: FakeEngine) -> None:
        async with serving(tmp_path, engine) as gateway, wire(gateway) as line:
            whole = posted(f"authorization: Bearer {IN}", "expect: 100-continue")
            line.send(whole.removesuffix(CHAT_BODY))
            assert await line.head() == (100, {})
            line.send(CHAT_BODY)
            assert (await line.head())[0] == 200

    async def test_any_other_expectation_is_not_met(self, tmp_path: Path, engine: FakeEngine) -> None:
        async with serving(tmp_path, engine) as gateway, wire(gateway) as line:
            line.send(posted(f"authorization: Bearer {IN}", "expect: a-miracle"))
            assert await line.refusal() == (417, "expectation_failed")


async def test_the_records_tell_that_it_was_refused_and_nothing_of_what_it_asked(
    tmp_path: Path, engine: FakeEngine
) -> None:
    secret = "the patient has " + "measles " * 200
    body = json.dumps({"model": "llama", "messages": [{"role": "user", "content": secret}]}).encode()
    async with serving(tmp_path, engine) as gateway:
        for key in (OUT, IN):
            async with wire(gateway) as line:
                line.send(posted(f"authorization: Bearer {key}", f"x-request-id: {key[3:6]}", body=body))
                await line.head()
        await until(lambda: not gateway.core.requests)
        assert counted(gateway, "requests_total", model="other", outcome="rejected_residency_ingress") == 1
    journal = sorted((tmp_path / "journal").iterdir())
    assert replay(journal).divergence is None
    arrived = [each.event.profile for each in read_journal(journal[0])[1] if isinstance(each.event, RequestArrived)]
    assert [(each.tenant, each.model, len(each.prefix) > 0) for each in arrived] == [
        ("clinic", "", False),
        ("acme", "llama", True),
    ]
    assert [each.prompt_bytes > 0 for each in arrived] == [False, True]
    audit = [json.loads(line) for path in (tmp_path / "audit").iterdir() for line in path.read_text().splitlines()]
    ended = [(each["outcome"], each["tenant"]) for each in audit if each["kind"] == "request"]
    assert ("rejected_residency_ingress", "clinic") in ended
