"""A mesh with a controller, all of it processes: killed, cut off, without a disk, flapping, with an old snapshot.

Throughout, clients send requests and names are resolved: no request to a living gateway fails, no request is served
where its policy forbids it, and every name has an answer while a gateway lives that it may lead to.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.core.vocabulary import RegionName
from loadgen.round_trips import parse_round_trips
from loadgen.wan import Wan
from tests.support.certificates import Files, controller_leaf, mesh_leaf, new_ca, roots_of
from tests.support.controlled import ADDRESSES, NAMED, OPEN, PLACES, Controlled, controlled, watched
from tests.support.controllers import QUICK
from tests.support.core import US
from tests.support.gateways import until, write_policy
from tests.support.programs import nightside, started

CAP_DAC_OVERRIDE, PR_CAPBSET_DROP = 1, 24


@pytest.fixture
async def mesh(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int], session: aiohttp.ClientSession
) -> AsyncIterator[Controlled]:
    async with controlled(tmp_path, unused_tcp_port_factory, session) as made:
        yield made


def owner_of(replica: str) -> Callable[[dict[str, Any]], str]:
    return lambda state: next(str(each["owner"]) for each in state["replicas"] if each["id"] == replica)


# Killed


async def test_a_killed_gateway_is_stood_in_for_where_policies_allow_and_gets_everything_back(mesh: Controlled) -> None:
    await mesh.start("us-1", "ap-1", "eu-1")
    async with watched(mesh) as seen:
        await seen.until_answered("us-1", "ap-1", "eu-1")
        await mesh.kill("us-1")
        await mesh.until_served("ap-1", "ap-1-r0", "us-1-r0")
        await mesh.until_told("us-1", ADDRESSES["ap-1"])
        await mesh.kill("eu-1")
        state = await mesh.until_state(lambda state: bool(state["orphans"]))
        assert [each["home"] for each in state["orphans"]] == ["eu-1"]
        await mesh.until_told("eu-1")
        assert await mesh.served("ap-1") == {"ap-1-r0", "us-1-r0"}, "nobody may have what is the third one's"
        await seen.until_answered("ap-1")
        for name in ("us-1", "eu-1"):
            await mesh.start_gateway(name)
        await mesh.settled()
        for name, named in NAMED.items():
            await mesh.until_told(name, *(ADDRESSES[each] for each in named))
        await seen.until_answered("us-1", "eu-1")
    seen.check(died=("us-1", "eu-1"))


async def test_with_the_controller_killed_everything_goes_on_and_its_return_moves_nothing(mesh: Controlled) -> None:
    await mesh.start("us-1", "ap-1")
    async with watched(mesh) as seen:
        await mesh.kill("controller")
        await seen.until_answered("us-1", "ap-1")
        await mesh.until_told("us-1", ADDRESSES["us-1"], ADDRESSES["ap-1"])
        assert (await mesh.start_controller()).term == 2
        await mesh.settled()
        await seen.until_answered("us-1", "ap-1")
    seen.check()


@pytest.mark.nightly
async def test_one_that_died_beside_the_controller_is_stood_in_for_by_the_next_and_its_old_snapshot_does_no_harm(
    mesh: Controlled,
) -> None:
    """The gateway returns with an old snapshot and no controller: its peer has a newer one."""
    mesh.control = {"silence_max": "2s"}
    await mesh.start("us-1", "ap-1")
    async with watched(mesh) as seen:
        await seen.until_answered("us-1", "ap-1")
        await mesh.kill("controller", "us-1")
        await seen.until_answered("ap-1")
        assert await mesh.served("ap-1") == {"ap-1-r0"}, "nobody is there to say otherwise"
        await mesh.start_controller()
        await mesh.until_served("ap-1", "ap-1-r0", "us-1-r0")
        await mesh.kill("controller")
        await mesh.start_gateway("us-1")
        await mesh.until_served("us-1")
        assert await mesh.served("ap-1") == {"ap-1-r0", "us-1-r0"}
        await seen.until_answered("us-1")
        await mesh.start_controller()
        await mesh.settled()
    assert not seen.silent
    assert not seen.breaches
    assert seen.ends["ap-1"].keys() == {"answered"}, seen.ends
    assert seen.ends["us-1"].keys() <= {"answered", "cut", "not connected"}, seen.ends


@pytest.mark.nightly
async def test_one_that_flaps_moves_nobody_elses_replicas_and_ends_where_it_began(mesh: Controlled) -> None:
    await mesh.start("us-1", "ap-1")
    async with watched(mesh) as seen:
        for _ in range(3):
            await mesh.kill("us-1")
            await mesh.until_gateway("us-1", lambda each: each["condition"] == "down")
            await mesh.start_gateway("us-1")
            await mesh.until_gateway("us-1", lambda each: bool(each["attached"]))
            assert "ap-1-r0" in await mesh.served("ap-1")
        await mesh.settled()
    seen.check(died=("us-1",))


# Cut off


@pytest.mark.nightly
async def test_a_controller_that_is_cut_off_from_one_takes_nothing_and_from_all_freezes(mesh: Controlled) -> None:
    names, there = ("us-1", "ap-1", "eu-1"), RegionName("control")
    mesh.settings = {
        "probes": {"interval": "50ms", "timeout": "100ms"},
        "link": {"alive_interval": "100ms", "silence_max": "1s"},
    }
    mesh.control = {"silence_max": "3s"}
    await mesh.prepare(*names)
    table = parse_round_trips("\n".join(f"{PLACES[name].region},{there},1" for name in names))
    wan = await mesh.stack.enter_async_context(Wan(table))
    for name in names:
        region = PLACES[name].region
        mesh.ways[name] = await wan.route(region, there, mesh.control_port)
        if name != "eu-1":  # the host itself refuses connections once it is killed
            mesh.health[name] = await wan.route(there, region, int(mesh.listen[name]["http"].rpartition(":")[2]))
    await mesh.start_controller()
    for name in names:
        await mesh.start_gateway(name)
    await mesh.settled()
    async with watched(mesh) as seen:
        wan.cut(US.region, there)
        await mesh.until_gateway("us-1", lambda each: not each["attached"])
        await mesh.kill("eu-1")
        await mesh.until_gateway("eu-1", lambda each: each["condition"] == "down")
        state = await mesh.state()
        assert (await mesh.gateway("us-1"))["condition"] == "up", "its peer hears it"
        assert (owner_of("us-1-r0")(state), state["frozen"]) == ("us-1", "")
        await mesh.start_gateway("eu-1")
        await mesh.until_gateway("eu-1", lambda each: each["condition"] == "up")
        for name in ("ap-1", "eu-1"):
            wan.cut(PLACES[name].region, there)
        state = await mesh.until_state(lambda state: bool(state["frozen"]))
        assert [each["owner"] for each in state["replicas"]] == [each["home"] for each in state["replicas"]]
        await seen.until_answered(*names)
        for name in names:
            wan.heal(PLACES[name].region, there)
        await mesh.settled()
        assert not (await mesh.state())["frozen"]
        await seen.until_answered(*names)
    seen.check(died=("eu-1",))


# The controller's store


async def test_on_a_full_disk_it_says_so_and_nobody_is_told_anything_until_it_is_written(mesh: Controlled) -> None:
    await mesh.start("us-1", "ap-1")
    controller = mesh.controller
    assert controller is not None
    async with watched(mesh) as seen:
        _, hard = resource.prlimit(controller.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(controller.process.pid, resource.RLIMIT_FSIZE, (0, hard))
        await mesh.kill("us-1")
        await mesh.until_state(lambda state: bool(state["store_fault"]))
        await mesh.until_state(lambda state: owner_of("us-1-r0")(state) == "ap-1")
        assert await mesh.served("ap-1") == {"ap-1-r0"}, "it is not written down"
        await seen.until_answered("ap-1")
        resource.prlimit(controller.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        await mesh.until_served("ap-1", "ap-1-r0", "us-1-r0")
        assert not (await mesh.state())["store_fault"]
        await mesh.start_gateway("us-1")
        await mesh.settled()
    seen.check(died=("us-1",))


@pytest.mark.nightly
async def test_with_a_store_that_is_damaged_read_only_or_lost_gateways_go_on_by_what_they_have(
    mesh: Controlled,
) -> None:
    await mesh.start("us-1", "ap-1")
    store = mesh.folder / "state" / "controller.db"
    async with watched(mesh) as seen:
        await mesh.kill("controller")
        for beside in store.parent.glob("controller.db-*"):
            beside.unlink()
        kept = store.read_bytes()
        store.write_bytes(b"no database" * 1000)
        assert "controller.db: file is not a database" in await refused(mesh)
        store.write_bytes(kept)
        store.chmod(0o400)
        store.parent.chmod(0o500)
        assert "controller.db" in await refused(mesh, AS_ANYBODY)
        store.parent.chmod(0o700)
        store.unlink()
        await seen.until_answered("us-1", "ap-1")
        for beside in store.parent.glob("controller.db-*"):
            beside.unlink()
        await mesh.start_controller()  # an empty store: versions continue above the gateways'
        await mesh.settled()
        await mesh.kill("controller")
        for beside in store.parent.glob("controller.db-*"):
            beside.unlink()
        store.write_bytes(kept)  # an old copy
        await mesh.start_controller()
        await mesh.settled()
        assert (await mesh.state())["term"] > 2
        await mesh.until_told("us-1", ADDRESSES["us-1"], ADDRESSES["ap-1"])
        await seen.until_answered("us-1", "ap-1")
    seen.check()


AS_ANYBODY = (
    sys.executable,
    "-c",
    f"import ctypes, os, sys; ctypes.CDLL(None).prctl({PR_CAPBSET_DROP}, {CAP_DAC_OVERRIDE});"
    " os.execvp(sys.argv[1], sys.argv[1:])",
)
"""Command that drops the right to bypass file permissions, so that they hold also where tests run as root.

It is a program, since gRPC's library does not support code between fork and exec.
"""


async def refused(mesh: Controlled, started_by: Sequence[str] = ()) -> str:
    """Log of a controller that refuses to start."""
    async with started("controller", "run", mesh.folder / "controller.yaml", started_by=started_by) as process:
        _, said = await process.communicate()
        assert process.returncode == 1, said
        return said.decode()


# Commands and certificates


async def test_a_policy_that_is_narrowed_while_requests_run_takes_back_what_it_no_longer_allows(
    mesh: Controlled,
) -> None:
    await mesh.start("us-1", "ap-1")
    controller = mesh.controller
    assert controller is not None
    async with watched(mesh) as seen:
        narrow = write_policy(mesh.folder / "state", US, process=OPEN, accept=())
        await mesh.kill("us-1")
        await mesh.until_served("ap-1", "ap-1-r0", "us-1-r0")
        code, out, err = await nightside("ctl", "policy", "set", narrow, "--admin", controller.admin_url)
        assert code == 0, out + err
        await mesh.until_served("ap-1", "ap-1-r0")
        state = await mesh.until_state(lambda state: bool(state["orphans"]))
        assert US.region in state["orphans"][0]["reason"]
        await mesh.start_gateway("us-1")
        await mesh.settled()
        await seen.until_answered("us-1", "ap-1")
    seen.check(died=("us-1",))


async def test_certificates_of_another_authority_take_the_place_of_the_old_ones_and_no_request_notices(
    mesh: Controlled,
) -> None:
    old, new = new_ca(), new_ca()
    files = {name: Files(mesh.folder / f"certificates-{name}") for name in ("us-1", "ctl-1")}
    leaves: dict[str, Callable[[Any], Any]] = {
        "us-1": lambda ca: mesh_leaf(ca, "us-1", US),
        "ctl-1": lambda ca: controller_leaf(ca, "ctl-1"),
    }
    for name, each in files.items():
        each.put(leaves[name](old), roots=roots_of(old))
    reload = {"reload": {"watch": "50ms"}}
    mesh.settings = {"link": {**QUICK["link"], "tls": tls_of(files["ctl-1"])}, **reload}
    mesh.more = {"peering": {"tls": tls_of(files["us-1"])}, **reload}
    await mesh.start("us-1")
    gateway, controller = mesh.gateways["us-1"], mesh.controller
    assert controller is not None

    def told(name: str, event: str) -> int:
        lines: list[Any] = gateway.log_lines if name == "us-1" else controller.log_lines
        return sum(1 for line in lines if line["event"] == event)

    async with watched(mesh, resolves=("us-1",)) as seen:
        for step in ("both roots", "new leaves", "new roots"):
            for name, each in files.items():
                before = told(name, "reload_applied")
                each.put(leaves[name](new) if step == "new leaves" else None,
                         roots=roots_of(new) if step == "new roots" else roots_of(old, new))  # fmt: skip
                await until(lambda name=name, before=before: told(name, "reload_applied") > before)  # type: ignore[misc]
        for _ in range(2):  # the first may be older than the change; the second is not
            made = told("us-1", "controller_attached")
            files["us-1"].put(leaves["us-1"](new))
            await until(lambda made=made: told("us-1", "controller_attached") > made)  # type: ignore[misc]
        await seen.until_answered("us-1")
    seen.check()


def tls_of(files: Files) -> dict[str, str]:
    return {"certificate": str(files.certificate), "key": str(files.key), "roots": str(files.roots)}
