"""Defines the demo's scenario: three regions, their engines, and a load that falls mostly on one region."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gateway.core.vocabulary import Connector, Jurisdiction, ModelName, Place, RegionName
from loadgen.workload import WorkloadConfig

FOLDER = Path(__file__).parent
TABLE = "regions.yaml"
"""File of the region table, beside the policies."""
MODEL = ModelName("llama-3.1-8b-instruct")
CONNECTOR = Connector.NIXL
"""Connector by which prefill workers hand the KV cache to decode workers."""
ROUND_TRIPS_FILE = FOLDER / "round_trips.csv"
LLAMACPP_SERVER = FOLDER / "llamacpp_server.py"


@dataclass(frozen=True, slots=True)
class RegionScenario:
    place: Place
    clients: int
    engines: int = 4
    slots: int = 12
    """Requests that each engine runs at once: fewer than its memory would allow, so that some dozens of clients fill a
    region and one small machine can carry them all."""
    policies: Path = FOLDER / "policies"
    prefill_engines: int = 0
    """Engines that are prefill workers, the others being decode workers; 0 makes every engine do both."""
    decode_group: str = ""
    """Group of the decode workers that step together; empty: each is by itself."""
    pool: Mapping[str, object] = field(default_factory=dict)
    """Keys of the disaggregated pool's description beyond the demo's own."""
    sections: Mapping[str, object] = field(default_factory=dict)
    """Sections of its gateway's configuration beyond the demo's own."""
    gateways: int = 1
    """Gateways of the region, which share its engines."""
    location: tuple[float, float] = (0.0, 0.0)
    """Latitude and longitude, in degrees."""

    @property
    def name(self) -> RegionName:
        return self.place.region

    @property
    def policy_file(self) -> Path:
        return self.policies / f"{self.name}.yaml"

    @property
    def table_file(self) -> Path:
        """File of the region table."""
        return self.policies / TABLE


def _region(name: str, jurisdiction: str, clients: int, location: tuple[float, float]) -> RegionScenario:
    return RegionScenario(Place(RegionName(name), Jurisdiction(jurisdiction)), clients, location=location)


@dataclass(frozen=True, slots=True)
class DemoScenario:
    """Day in the US, evening in the EU, night in Japan (SkyWalker §5.2 has 120, 40 and 40 clients)."""

    regions: tuple[RegionScenario, ...] = (
        _region("us-east-1", "US", 96, (39.0, -77.5)),
        _region("eu-west-1", "EU", 24, (53.3, -6.3)),
        _region("ap-northeast-1", "JP", 12, (35.7, 139.7)),
    )
    model: ModelName = MODEL
    preset: str = "llama-3.1-8b-l4"
    load_s: float = 28.0
    drain_s: float = 16.0
    seed: int = 1
    llamacpp: Path | None = None
    """Python of an environment with llama.cpp and a small model, whose real servers replace the emulated engines."""
    round_trips_file: Path = ROUND_TRIPS_FILE
    experts: str = ""
    """Emulated mixture of experts that prefill workers report the use of, as layers x experts x picks; empty: none."""
    artifacts: Path | None = None
    """Folder of files that gateways may read for pools that they adopt."""
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    sections: Mapping[str, object] = field(default_factory=dict)
    """Further keys of every gateway's file."""
    has_controller: bool = True
    """Gateways attach to a controller, and clients know the one name alone."""
    killed: str = "ap-northeast-1"
    """Region whose gateway is killed in the last run: its replicas may be served from the United States, and its
    clients' requests anywhere."""


def disaggregated_scenario() -> DemoScenario:
    """Scenario in which Europe has one prefill worker and three decode workers, and the engines of the other regions do
    both. Overflow from the United States lands on either kind."""
    base = DemoScenario()
    us, eu, jp = base.regions
    return replace(base, regions=(us, replace(eu, prefill_engines=1), jp))


def large_scenario() -> DemoScenario:
    """Scenario with one engine in each region, of as many slots as the four of the default scenario together."""
    base = DemoScenario()
    return replace(base, regions=tuple(replace(each, engines=1, slots=4 * each.slots) for each in base.regions))


def real_scenario(python: Path) -> DemoScenario:
    """Scenario with two regions of one small real engine each, which runs one request at a time."""
    us, eu, _ = (replace(region, engines=1, slots=1) for region in DemoScenario().regions)
    return replace(DemoScenario(), regions=(us, eu), model=ModelName("smollm2-135m-instruct"), llamacpp=python)
