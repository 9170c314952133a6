"""Mistakes of operators on the command line, and the messages they get: ports in use, addresses where no process
listens.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.fakes.engine import FakeEngine
from tests.support.controllers import controller_file
from tests.support.core import MODEL, US
from tests.support.gateways import region_document, serving_file
from tests.support.processes import gateway_process, region_file
from tests.support.programs import nightside


class TestPorts:
    @pytest.mark.parametrize("name", ["http", "admin", "peers"])
    async def test_one_that_is_taken_is_told_by_its_key(self, tmp_path: Path, name: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            listen = {**dict.fromkeys(("http", "peers", "admin"), "127.0.0.1:0"), name: address}
            path = tmp_path / "us.yaml"
            path.write_text(yaml.safe_dump({**region_document(tmp_path, "us-1", US), "listen": listen}))
            status, _, said = await nightside("gateway", "run", path)
        assert status == 1
        assert "Traceback" not in said
        told = said.splitlines()[-1]
        port = address.rpartition(":")[2]
        assert told.startswith(
            f"Error: listen.{name}: cannot listen on {address}: port {port} is in use by another program"
        )

    @pytest.mark.parametrize("name", ["grpc", "admin"])
    async def test_a_controller_s_too(self, tmp_path: Path, name: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            listen = {"grpc": "127.0.0.1:0", "admin": "127.0.0.1:0", name: address}
            status, _, said = await nightside("controller", "run", controller_file(tmp_path, listen=listen), fresh=True)
        assert status == 1
        assert f"Error: listen.{name}: cannot listen on {address}: port " in said

    async def test_an_address_of_another_machine_too(self, tmp_path: Path) -> None:
        listen = {**dict.fromkeys(("http", "peers", "admin"), "127.0.0.1:0"), "admin": "127.0.0.1:0"}
        path = tmp_path / "us.yaml"
        document = {**region_document(tmp_path, "us-1", US), "insecure": True}
        path.write_text(yaml.safe_dump({**document, "listen": {**listen, "http": "192.0.2.1:8080"}}))
        status, _, said = await nightside("gateway", "run", path)
        assert status == 1
        assert "listen.http: cannot listen on 192.0.2.1:8080: this machine has no such address" in said


class TestAskingNobody:
    @pytest.mark.parametrize("command", [("explain", "r1"), ("gateway", "usage"), ("gateway", "status")])
    async def test_it_is_said_in_plain_words(
        self, command: tuple[str, ...], unused_tcp_port_factory: Callable[[], int]
    ) -> None:
        url = f"http://127.0.0.1:{unused_tcp_port_factory()}"
        status, _, said = await nightside(*command, "--admin", url, fresh=True)
        assert status != 0
        assert said == (
            f"Error: {url} cannot be reached: nothing listens there. Does it run, and is this its admin address?"
            " Its log says so as it starts (--admin)\n"
        )

    async def test_what_is_no_address_is_told_apart(self) -> None:
        _, _, said = await nightside("explain", "r1", "--admin", "127.0.0.1:9900")
        assert "it is not an address such as http://127.0.0.1:9900" in said

    async def test_a_gateway_s_own_clients_are_no_admin_address(self, tmp_path: Path, engine: FakeEngine) -> None:
        path = region_file(tmp_path, "us-1", US, engine)
        async with serving_file(path) as gateway:
            status, _, said = await nightside("explain", "r1", "--admin", gateway.http_url)
        assert (status, said.startswith("Error: ")) == (1, True)


class TestFormats:
    async def test_both_streams_of_a_gateway_speak_alike(self, tmp_path: Path, engine: FakeEngine) -> None:
        """The first line on standard output gives the addresses, in JSON like the log. The end of the process checks
        that the log holds nothing but JSON.
        """
        async with gateway_process(region_file(tmp_path, "us-1", US, engine)) as process:
            assert process.admin_url.startswith("http://127.0.0.1:")

    async def test_on_a_level_that_would_leave_it_out_too(self, tmp_path: Path, engine: FakeEngine) -> None:
        quiet = region_file(tmp_path, "us-1", US, engine, logging={"level": "error", "format": "json"})
        async with gateway_process(quiet) as process:
            assert process.http_url


class TestFolders:
    async def test_a_record_and_a_journal_are_checked_by_their_folders(
        self, tmp_path: Path, engine: FakeEngine
    ) -> None:
        path = region_file(
            tmp_path, "us-1", US, engine,
            audit={"folder": str(tmp_path / "audit")}, journal={"folder": str(tmp_path / "journal")},
        )  # fmt: skip
        for _ in range(2):
            async with serving_file(path):
                pass
        status, told, _ = await nightside("audit", "verify", tmp_path / "audit")
        assert (status, told.splitlines()[0]) == (0, "whole: 2 lines in 2 files")
        status, told, beside = await nightside("replay", tmp_path / "journal")
        assert (status, told.startswith("equal: ")) == (0, True)
        assert beside.startswith("2 runs in ")
        (tmp_path / "nothing").mkdir()
        status, _, said = await nightside("audit", "verify", tmp_path / "nothing")
        assert (status, "holds no file that ends in .audit" in said) == (2, True)


async def test_load_needs_nothing_of_a_simulator(tmp_path: Path, engine: FakeEngine) -> None:
    scenario = tmp_path / "mine.yaml"
    scenario.write_text(
        yaml.safe_dump(
            {
                "duration": "2s",
                "workloads": {"chat": {"conversations": {}}},
                "clients": [{"workload": "chat", "arrivals": {"rate": 10, "variation": 0}}],
            }
        )
    )
    status, told, said = await nightside("load", scenario, "--url", engine.url, "--model", MODEL, "--json")
    assert status == 0, said
    assert json.loads(told)["scenario"] == "mine"
