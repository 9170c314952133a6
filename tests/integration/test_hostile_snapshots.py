"""A controller's snapshot in which one replica is described as no region file could, sent to a whole gateway.

The cases are data: `tests/hostile/replica_descriptions.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml

from gateway.app.gateway import GatewayHandle
from gateway.core.vocabulary import ControlVersion, GatewayId, PlaceRule
from mesh.control.vocabulary import ControlSnapshot, ReplicaGrant, SnapshotTaken
from tests.fakes.controller import FakeController, serve_fake_controller
from tests.fakes.engine import FakeEngine
from tests.hostile.replica_descriptions import DESCRIPTION_CASES, DescriptionCase, described
from tests.support.core import EU, MODEL, US
from tests.support.gateways import counted, region_document, serving_file, until

US_1, EU_1 = GatewayId("us-1"), GatewayId("eu-1")
RULE = PlaceRule(regions=frozenset({US.region, EU.region}))


@dataclass
class Attached:
    gateway: GatewayHandle
    controller: FakeController
    good: ReplicaGrant
    version: int = 0

    async def takes(self, *replicas: ReplicaGrant) -> None:
        self.version += 1
        stream = await self.controller.stream(0)
        answer = await stream.answer(ControlSnapshot(ControlVersion(1, self.version), US_1, replicas=replicas))
        assert isinstance(answer, SnapshotTaken), answer

    def served(self) -> list[str]:
        return sorted(state.spec.replica_id for state in self.gateway.core.replicas)

    async def left_out(self) -> dict[str, str]:
        async with aiohttp.ClientSession() as session, session.get(f"{self.gateway.admin_url}/admin/state") as answer:
            state: dict[str, Any] = await answer.json()
        told: dict[str, str] = state["control"]["left_out"]
        return told


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def attached(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Attached]:
    folder: Path = tmp_path_factory.mktemp("snapshots")
    async with serve_fake_controller() as controller, FakeEngine().serving() as own, FakeEngine().serving() as lent:
        document = region_document(
            folder,
            "us-1",
            US,
            replicas=[{"id": "us-1-r0", "url": own.url, "models": [MODEL]}],
            control={"controllers": [controller.address], "silence_max": "1m", "report_interval": "50ms"},
            state={"folder": str(folder / "state")},
            probes={"interval": "20ms"},
        )
        path = folder / "us.yaml"
        path.write_text(yaml.safe_dump(document))
        async with serving_file(path) as gateway:
            good = ReplicaGrant(described(id="good", url=lent.url), EU_1, EU, RULE)
            yield Attached(gateway, controller, good)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", DESCRIPTION_CASES, ids=lambda case: case.name)
async def test_one_replica_is_left_out_and_all_else_is_taken_in(attached: Attached, case: DescriptionCase) -> None:
    odd = ReplicaGrant(case.text, EU_1, EU, RULE if case.accepts else None)
    await attached.takes(*[odd] * case.times, attached.good)
    expected = ["good", "us-1-r0"] if case.why else ["good", "lent", "us-1-r0"]
    await until(lambda: attached.served() == expected)
    left_out = await attached.left_out()
    assert list(left_out) == ([case.label] if case.why else [])
    assert case.why in left_out.get(case.label, "")
    assert len(left_out.get(case.label, "")) < 500
    assert counted(attached.gateway, "control_replicas_left_out") == len(left_out)
    await attached.takes()
    await until(lambda: attached.served() == ["us-1-r0"])
