"""Dynamic updates against name servers that teams run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dns.asyncquery
import dns.message
import dns.opcode
import dns.rcode
import pytest
from msgspec.structs import replace

from controller.dns.config import Rfc2136Config
from controller.dns.provider import (
    DnsOutdated,
    DnsProvider,
    DnsRefused,
    DnsUnavailable,
    changes_between,
    published_as,
)
from controller.dns.rfc2136 import Rfc2136Dns
from controller.lease import Lease
from mesh.naming.tree import RecordTree
from mesh.values import Address
from tests.cloud.fronts import swallowing
from tests.cloud.leases import leading
from tests.cloud.name_servers import OTHER_SECRET, SECRET, ZONE, Bind, Knot, NameServer
from tests.support.dns_conformance import DnsConformance
from tests.support.naming import EU, EU_ADDRESSES, US_ADDRESS, tree, with_further

KINDS: dict[str, type[NameServer]] = {"named": Bind, "knotd": Knot}


@pytest.fixture(params=[pytest.param(each, marks=pytest.mark.needs(each)) for each in KINDS])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NameServer]:
    running = KINDS[request.param](tmp_path)
    running.start()
    yield running
    running.kill()


class TestConformance(DnsConformance):
    @pytest.fixture(autouse=True)
    def _serve(self, server: NameServer) -> None:
        self.running = server

    async def open(self) -> DnsProvider:
        return Rfc2136Dns(self.running.config, SECRET, ZONE, "nightside", leading())

    @property
    def server(self) -> Address:
        return self.running.address


def provider_of(server: NameServer, lease: Lease | None = None, *, secret: str = SECRET, **more: Any) -> Rfc2136Dns:
    config = replace(server.config, **more)
    return Rfc2136Dns(config, secret, ZONE, "nightside", lease or leading())


async def publish(provider: DnsProvider, given: RecordTree, before: RecordTree | None = None) -> int:
    return await provider.publish(given, changes_between(before, given))


async def told(server: NameServer, name: str, kind: str = "A") -> set[str]:
    answer = await dns.asyncquery.tcp(dns.message.make_query(name, kind), server.address.host, 30, server.address.port)
    return {item.to_text() for each in answer.answer for item in each}


async def test_one_who_was_deposed_writes_nothing_and_hears_by_whom(server: NameServer) -> None:
    """The deposed leader's lease, which should have stopped it, is still valid: only the server can refuse the
    update.
    """
    deposed, leads = provider_of(server, leading(1)), provider_of(server, leading(2))
    await publish(deposed, tree(5))
    await publish(leads, tree(5, us=("192.0.2.9",)))
    with pytest.raises(DnsOutdated, match="term 2 has written there, and ours is 1"):
        await publish(deposed, tree(6, us=("192.0.2.66",)), tree(5))
    assert await leads.read() == published_as(tree(5, us=("192.0.2.9",)))
    assert await told(server, "us-east-1.mesh.example.") == {"192.0.2.9"}


async def test_a_new_leader_writes_even_where_nothing_has_changed(server: NameServer) -> None:
    """A takeover writes its claim in any case, so that the former leader cannot write any more."""
    await publish(provider_of(server, leading(1)), tree())
    assert await publish(provider_of(server, leading(2)), tree()) == 1
    assert await publish(provider_of(server, leading(2)), tree()) == 0


async def test_a_record_changed_by_hand_is_not_overwritten_unseen_but_put_right(server: NameServer) -> None:
    provider = provider_of(server)
    await publish(provider, tree())
    server.change(("replace", "us-east-1", 5, "A", "192.0.2.77"), ("delete", "eu-west-1", "AAAA"))
    assert await publish(provider, tree()) == 3
    assert await provider.read() == published_as(tree())
    server.change(("replace", "us-east-1", 5, "A", "192.0.2.78"))
    second = tree(2, us=("192.0.2.9",))
    await publish(provider, second, tree())
    assert await told(server, "us-east-1.mesh.example.") == {"192.0.2.9"}


async def test_an_update_takes_place_whole_or_not_at_all(server: NameServer) -> None:
    """One value changed by hand fails the whole update: records of other names are not changed either."""
    provider = provider_of(server)
    await publish(provider, tree())
    found = dict(await provider._known(tree()))
    server.change(("replace", "us-east-1", 5, "A", "192.0.2.77"))
    update = provider._update(tree(2, us=("192.0.2.9",), eu=("192.0.2.10",)), found, 1)
    assert await provider._exchange(update.message) == dns.rcode.NXRRSET
    assert await told(server, "eu-west-1.mesh.example.") == {"192.0.2.2"}
    assert await told(server, "us-east-1.mesh.example.") == {"192.0.2.77"}


@pytest.mark.parametrize("more", [{"secret": OTHER_SECRET}, {"key_name": "nobody"}], ids=["secret", "name"])
async def test_a_wrong_key_is_refused_in_words(server: NameServer, more: dict[str, Any]) -> None:
    provider = provider_of(server, **more)
    with pytest.raises(DnsUnavailable, match=r"do not agree on the key (mesh|nobody)"):
        await publish(provider, tree())
    assert await told(server, "us-east-1.mesh.example.") == set()


def test_a_secret_that_is_none_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ValueError, match="the secret of the key is not base64"):
        Rfc2136Dns(Rfc2136Config(Address("127.0.0.1", 1), key_name="k"), "ä", ZONE, "nightside", leading())


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_what_was_published_survives_a_restart_of_the_server(server: NameServer, end: str) -> None:
    provider = provider_of(server)
    await publish(provider, tree())
    await publish(provider, tree(2, us=("192.0.2.9",)), tree())
    getattr(server, end)()
    with pytest.raises(DnsUnavailable):
        await publish(provider, tree(3), tree(2))
    server.start()
    assert await provider.read() == published_as(tree(2, us=("192.0.2.9",)))
    assert await publish(provider, tree(2, us=("192.0.2.9",))) == 0


async def test_records_of_others_are_in_the_way_and_never_touched(server: NameServer) -> None:
    server.change(("add", "us-east-1", 60, "A", "192.0.2.200"))
    with pytest.raises(DnsRefused, match=r"in the way: us-east-1.mesh.example. A;"):
        await publish(provider_of(server), tree())
    assert await told(server, "us-east-1.mesh.example.") == {"192.0.2.200"}
    server.change(("delete", "us-east-1"))
    provider = provider_of(server)
    without_us = replace(tree(), areas=tree().areas[:2])
    await publish(provider, without_us)
    server.change(("add", "us-east-1", 60, "A", "192.0.2.200"))
    with pytest.raises(DnsRefused, match=r"in the way: us-east-1.mesh.example. A;"):
        await publish(provider, tree(2), without_us)
    assert await told(server, "www.mesh.example.") == {"192.0.2.80"}


async def test_names_of_another_mesh_are_left_to_it(server: NameServer) -> None:
    other = Rfc2136Dns(server.config, SECRET, ZONE, "another", leading())
    await publish(other, tree())
    with pytest.raises(DnsRefused, match="belong to 'another', and we are 'nightside'"):
        await publish(provider_of(server, leading(9)), tree(9))
    assert await provider_of(server).read() is None


async def test_with_too_little_left_of_the_lease_nothing_is_written(server: NameServer) -> None:
    await publish(provider_of(server), tree())
    with pytest.raises(DnsUnavailable, match=r"nothing was written: the lease lasts .* and this may take 60.0 s"):
        await publish(provider_of(server, leading(for_s=60.0)), tree(2, us=("192.0.2.9",)))
    assert await told(server, "us-east-1.mesh.example.") == {US_ADDRESS}


async def test_an_answer_that_is_lost_on_its_way_changes_nothing(server: NameServer) -> None:
    """The update was carried out and its answer lost: the next publishing finds that nothing is left to do."""
    async with swallowing(server.address, answers_to=dns.opcode.UPDATE) as front:
        provider = Rfc2136Dns(replace(server.config, server=front), SECRET, ZONE, "nightside", leading())
        with pytest.raises(DnsUnavailable, match=str(front)):
            await publish(provider, tree())
        assert await publish(provider, tree()) == 0
        assert await provider.read() == published_as(tree())


async def test_a_plan_says_what_would_change_and_changes_nothing(server: NameServer) -> None:
    provider = provider_of(server)
    assert "+ us-east-1.mesh.example. 5 IN A 192.0.2.1" in await provider.plan(tree())
    assert await provider.read() is None
    await publish(provider, tree())
    planned = await provider.plan(tree(2, us=("192.0.2.9",)))
    assert [each for each in planned if "us-east-1.mesh.example. 5 IN A " in each] == [
        "- us-east-1.mesh.example. 5 IN A 192.0.2.1",
        "+ us-east-1.mesh.example. 5 IN A 192.0.2.9",
    ]
    assert await provider.plan(tree()) == ()


async def test_services_move_with_the_port(server: NameServer) -> None:
    provider = provider_of(server)
    odd = replace(tree(), port=8443)
    await publish(provider, odd)
    assert await told(server, "_https._tcp.mesh.example.", "SRV") == {"0 0 8443 mesh.example."}
    assert await told(server, "mesh.example.", "HTTPS") == {'1 . alpn="http/1.1" port="8443"'}
    plain = replace(tree(2), tls=False, port=80)
    await publish(provider, plain, odd)
    assert await told(server, "_http._tcp.mesh.example.", "SRV") == {"0 0 80 mesh.example."}
    for name, kind in (("_https._tcp", "SRV"), ("_8443._https", "HTTPS"), ("us-east-1", "HTTPS")):
        assert await told(server, f"{name}.mesh.example.", kind) == set()


FURTHER = ("192.0.2.31", "2001:db8::31")
ORDERED = with_further(tree(), EU, *FURTHER)


async def order(server: NameServer, name: str = "eu-west-1.mesh.example.") -> list[tuple[str, set[str]]]:
    """Targets of a name's HTTPS records, first those that clients try first, each with its addresses."""
    found = []
    for each in sorted(await told(server, name, "HTTPS")):
        target = name if each.split()[1] == "." else each.split()[1]
        found.append((target, await told(server, target, "A") | await told(server, target, "AAAA")))
    return found


async def test_a_regions_name_leads_to_its_nearest_gateways_first_and_to_the_further_one_second(
    server: NameServer,
) -> None:
    provider = provider_of(server)
    await publish(provider, ORDERED)
    assert await order(server) == [
        ("nearest.eu-west-1.mesh.example.", set(EU_ADDRESSES)),
        ("further.eu-west-1.mesh.example.", set(FURTHER)),
    ]
    assert await told(server, "eu-west-1.mesh.example.", "HTTPS") == {
        '1 nearest.eu-west-1.mesh.example. alpn="http/1.1"',
        '2 further.eu-west-1.mesh.example. alpn="http/1.1"',
    }
    assert await told(server, "eu-west-1.mesh.example.") == {"192.0.2.2", "192.0.2.31"}
    for name in ("mesh.example.", "us-east-1.mesh.example."):
        assert await told(server, name, "HTTPS") == {'1 . alpn="http/1.1"'}
    assert await told(server, "ap-northeast-1.mesh.example.", "HTTPS") == set()
    assert await provider.read() == published_as(ORDERED)
    assert await publish(provider, ORDERED) == 0


async def test_the_order_follows_the_further_gateway_and_goes_with_it(server: NameServer) -> None:
    provider = provider_of(server)
    await publish(provider, tree())
    first, swapped = with_further(tree(2), EU, *FURTHER), with_further(tree(3, eu=FURTHER), EU, *EU_ADDRESSES)
    await publish(provider, first, tree())
    await publish(provider, swapped, first)
    assert await provider.read() == published_as(swapped)
    assert await order(server) == [
        ("nearest.eu-west-1.mesh.example.", set(FURTHER)),
        ("further.eu-west-1.mesh.example.", set(EU_ADDRESSES)),
    ]
    await publish(provider, tree(4, eu=EU_ADDRESSES), swapped)
    assert await order(server) == [("eu-west-1.mesh.example.", set(EU_ADDRESSES))]
    for label in ("nearest", "further"):
        assert await told(server, f"{label}.eu-west-1.mesh.example.") == set()
    assert await provider.read() == published_as(tree(4))


@pytest.mark.parametrize("after", ["whole", "without-tls", "another-leader"])
async def test_targets_that_nothing_leads_to_are_removed_also_after_a_restart(server: NameServer, after: str) -> None:
    await publish(provider_of(server), ORDERED)
    plain = replace(ORDERED, version=2, tls=False) if after == "without-tls" else tree(2)
    heir = provider_of(server, leading(2)) if after == "another-leader" else provider_of(server)
    await publish(heir, plain)
    for label in ("nearest", "further"):
        for kind in ("A", "AAAA"):
            assert await told(server, f"{label}.eu-west-1.mesh.example.", kind) == set()
    assert await publish(heir, plain) == 0


async def test_with_the_region_its_targets_go(server: NameServer) -> None:
    provider = provider_of(server)
    await publish(provider, ORDERED)
    await publish(provider, replace(tree(2), areas=tuple(each for each in tree().areas if each.region != EU)), ORDERED)
    for name in ("eu-west-1", "nearest.eu-west-1", "further.eu-west-1"):
        for kind in ("A", "AAAA", "HTTPS", "TXT"):
            assert await told(server, f"{name}.mesh.example.", kind) == set()


async def test_a_record_of_others_at_a_target_is_in_the_way_only_of_an_order(server: NameServer) -> None:
    server.change(("add", "further.eu-west-1", 60, "A", "192.0.2.200"))
    provider = provider_of(server)
    await publish(provider, tree())
    with pytest.raises(DnsRefused, match=r"in the way: further.eu-west-1.mesh.example. A;"):
        await publish(provider, with_further(tree(2), EU, *FURTHER), tree())
    assert await told(server, "further.eu-west-1.mesh.example.") == {"192.0.2.200"}
    assert await order(server) == [("eu-west-1.mesh.example.", set(EU_ADDRESSES))]


async def test_a_zone_that_is_not_there_is_told(server: NameServer) -> None:
    provider = provider_of(server, zone="elsewhere.example.")
    with pytest.raises(DnsUnavailable, match=f"{server.address}: "):
        await publish(provider, tree())


async def test_more_addresses_than_one_name_may_have_are_refused(server: NameServer) -> None:
    many = tuple(f"192.0.2.{number}" for number in range(101))
    with pytest.raises(DnsRefused, match=r"us-east-1.mesh.example. has 101 addresses, and at most 100"):
        await publish(provider_of(server), tree(us=many))
