"""SkyWalker's evaluation (§5) as experiments, and additions: recorded traces, sensitivity, and Nightside's own rule.

The workloads in the scenarios `paper_*` were fitted by hand to the paper's description of its own; the page says how.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loadgen.studies.data import read_data
from loadgen.studies.experiments import SCENARIOS, Changes, Experiment, Point
from loadgen.studies.recordings import MOONCAKE, first_file
from mesh.yaml_file import read_yaml

SKYWALKER = "SkyWalker"
SKYWALKER_CH = "SkyWalker-CH"
REGION_LOCAL = "region-local"
GKE = "GKE-style"
SGLANG = "SGLang"
SGLANG_04 = "SGLang v0.4"
LEAST_LOAD = "least load"
ROUND_ROBIN = "round robin"
CONSISTENT_HASH = "consistent hash"

BASELINES = (GKE, ROUND_ROBIN, LEAST_LOAD, CONSISTENT_HASH, SGLANG, SGLANG_04)
"""Baselines of the paper; SGLang's router has both its current defaults and those of the paper's time."""

SGLANG_04_PLACEMENT = {"cache_aware_match_share": 0.5, "cache_aware_spread_max": 32, "cache_aware_spread_ratio": 1.0001}
PAPER_PLACEMENT: Changes = {
    "policy": "prefix",
    "explore_rule": "share",
    "explore_below_share": 0.5,
    "peer_queue_length_max": 10,
    "peer_availability": "free_replica",
    "remote_choice": "prefix",
    "remote_prefix_min_share": 0.0,
}
PAPER_PUSHING: Changes = {"mode": "pending", "in_band_credit": None}
"""Settings of the paper's algorithm, all written out because the defaults differ from them and may change."""
WORTH_PLACEMENT: Changes = {"explore_rule": "worth", "explore_load": "128B"}
CREDIT: Changes = {"in_band_credit": 4}
"""Settings in place of the paper's: the defaults of the policy `prefix` in a region file that sets nothing else. The
default policy is another one, which is measured elsewhere."""


def _run(name: str, system: str, **sections: Mapping[str, object]) -> Changes:
    return {"name": name, "system": system, **sections}


def _skywalker(name: str, placement: Changes | None = None, pushing: Changes | None = None) -> Changes:
    """The paper's algorithm with the given changes."""
    return _run(name, "skywalker", placement={**PAPER_PLACEMENT, **(placement or {})},
                pushing={**PAPER_PUSHING, **(pushing or {})})  # fmt: skip


_ALONE = _run(REGION_LOCAL, "region_local", placement=PAPER_PLACEMENT, pushing=PAPER_PUSHING)

SYSTEMS = (
    _skywalker(SKYWALKER),
    _run(SKYWALKER_CH, "skywalker_ch", pushing=PAPER_PUSHING),
    _ALONE,
    _run(GKE, "gke"),
    _run(ROUND_ROBIN, "global_round_robin"),
    _run(LEAST_LOAD, "global_least_load"),
    _run(CONSISTENT_HASH, "global_consistent_hash"),
    _run(SGLANG, "global_sglang"),
    _run(SGLANG_04, "global_sglang", placement=SGLANG_04_PLACEMENT),
)

WORTH = "worth"
FIRST_TOKEN = "first token"  # noqa: S105
MIN_SHARE = "share ≥ ½ abroad"
ALL_OF_THEM = "worth + first token"
CREDIT_ALONE = "credit"
WORTH_AND_CREDIT = "worth + credit"
VARIANTS = (
    _skywalker(SKYWALKER),
    _skywalker(WORTH, WORTH_PLACEMENT),
    _skywalker(CREDIT_ALONE, pushing=CREDIT),
    _skywalker(WORTH_AND_CREDIT, WORTH_PLACEMENT, CREDIT),
    _skywalker(FIRST_TOKEN, {"remote_choice": "first_token"}),
    _skywalker(MIN_SHARE, {"remote_prefix_min_share": 0.5}),
    _skywalker(ALL_OF_THEM, {**WORTH_PLACEMENT, "remote_choice": "first_token"}),
)
"""Nightside's own rules, each by itself, and two of them together; `first token` knows no minimum share."""


def worth_trials(workloads: str) -> str:
    """Origin of the one constant of `worth`, where `workloads` is the page's name for them."""
    return f"trials on three of {workloads}, not recorded which"


_EIGHT = {"regions.us-east-1.replicas": 3, "regions.eu-west-1.replicas": 2, "regions.ap-northeast-1.replicas": 3}
_TWELVE = {"regions.us-east-1.replicas": 4, "regions.eu-west-1.replicas": 4, "regions.ap-northeast-1.replicas": 4}
_SIX = {"regions.us-east-1.replicas": 2, "regions.eu-west-1.replicas": 2, "regions.ap-northeast-1.replicas": 2}

ARENA, WILDCHAT, TREES, MIXED = "Arena-like", "WildChat-like", "ToT", "mixed tree"
PAPER_FLEETS = (f"{ARENA}, 4/4/4", f"{WILDCHAT}, 3/3/2", f"{TREES}, 4/4/4", f"{MIXED}, 4/4/4")
"""Fleets that fit the paper's clients. The paper names both fleets but not always which it used where: 240 clients fit
the larger one, 100 the smaller."""


@dataclass(frozen=True, slots=True)
class Traces:
    """The recorded files that were found, by their use."""

    mooncake: Path | None = None
    sessions: Path | None = None
    gsm8k: Path | None = None


def find_traces(folder: Path | None) -> Traces:
    """Files found in a folder, under the names that they are published with."""
    patterns = (MOONCAKE, "claude_code_sessions/requests.jsonl*", "gsm8k/train.jsonl*")
    return Traces(*(first_file(folder, pattern) for pattern in patterns))


def workloads(traces: Traces) -> tuple[Point, ...]:
    """Workloads of the evaluation: the paper's four on both of its fleets, then the recorded ones."""
    asked: Changes = {} if traces.gsm8k is None else {"workloads.tree.questions": str(traces.gsm8k)}
    both = asked if not asked else dict(asked) | {"workloads.large_tree.questions": str(traces.gsm8k)}
    fleets = (("4/4/4", _TWELVE), ("3/3/2", _EIGHT))
    kinds: tuple[tuple[str, str, Changes], ...] = (
        (ARENA, "paper_conversations.yaml", {}),
        (WILDCHAT, "paper_wildchat.yaml", {}),
        (TREES, "paper_trees.yaml", asked),
        (MIXED, "paper_mixed_trees.yaml", both),
    )
    points = [
        Point(f"{kind}, {fleet}", scenario, {**changes, **replicas})
        for kind, scenario, changes in kinds
        for fleet, replicas in fleets
    ]
    if traces.mooncake is not None:
        points.append(_replayed("Mooncake conversation, 2/2/2", traces.mooncake, "60s", "15s"))
    if traces.sessions is not None:
        for name, scale in (("agentic sessions, 2/2/2", 0.1), ("agentic sessions twice as long, 2/2/2", 0.2)):
            points.append(_replayed(name, traces.sessions, "45s", "15s", scale_tokens=scale, pause_max="2s"))
    return tuple(points)


def _replayed(name: str, file: Path, duration: str, warm_up: str, **trace: object) -> Point:
    """Recorded workload on engines with memory for such prompts; a third of the clients and half of the replicas of the
    paper's fleet."""
    regions = ("us-east-1", "eu-west-1", "ap-northeast-1")
    changes: dict[str, object] = {
        "preset": "llama-3.1-8b-h100",
        "duration": duration,
        "warm_up": warm_up,
        "workloads": {"chat": {"trace": {"file": str(file), "input_tokens_max": 100_000, **trace}}},
        "clients": [{"region": region, "workload": "chat", "clients": 40} for region in regions],
    }
    return Point(name, "paper_conversations.yaml", changes | _SIX)


# Fig. 9

SELECTIONS: tuple[tuple[str, Changes], ...] = (
    ("SGLang's selection", {"policy": "cache_aware"}),
    ("SGLang v0.4's selection", {"policy": "cache_aware", **SGLANG_04_PLACEMENT}),
    (f"{SKYWALKER}'s selection", {}),
    (f"{WORTH}'s selection", WORTH_PLACEMENT),
)
OUTSTANDING_LIMITS = (20, 30, 40, 50)
BLIND, PENDING, WITH_CREDIT = "BP", "SP-P", "SP-P with credit"


def outstanding(limit: int) -> str:
    return f"SP-O {limit}"


PUSHING: tuple[tuple[str, Changes], ...] = (
    (BLIND, {"mode": "blind"}),
    *((outstanding(limit), {"mode": "outstanding", "outstanding_max": limit}) for limit in OUTSTANDING_LIMITS),
    (PENDING, {}),
    (WITH_CREDIT, CREDIT),
)

PUSHING_POINT = "4 replicas"

# Fig. 10 and Fig. 3

REGIONS = ("us-east-1", "eu-west-1", "ap-northeast-1")


def spread_out(replicas: int) -> Changes:
    """Replicas spread as evenly as possible, the remainder from the first region on."""
    share, rest = divmod(replicas, len(REGIONS))
    return {f"regions.{region}.replicas": share + (number < rest) for number, region in enumerate(REGIONS)}


SKEWED_FLEETS = tuple(range(6, 13))
DAY_FLEETS = tuple(range(3, 13))
DAY_ALONE_FLEETS = (3, 6, 9, 12, 15)
"""Fleets with equal regions: the replicas that one region needs on its own do not depend on the others."""
DAY_TTFT_P90_S = (1.0, 1.5, 3.0, 5.0)
"""SLOs of the simulated day: nine in ten first tokens of each region's day within so many seconds."""

# Sensitivity

Sections = Mapping[str, Changes]
"""Changes of a run, by section."""


@dataclass(frozen=True, slots=True)
class SettingAxis:
    """One setting, changed alone."""

    name: str
    paper: str
    """Value of the paper."""
    values: tuple[tuple[str, Changes, Sections], ...]
    """Values, each with its changes of the scenario and of the run's section."""
    base: str
    """Value that the others are compared with."""
    default: str | None
    """Default of a region file; None if there is none."""
    chosen: str = ""
    """Reason for the choice, where the figures alone do not give it."""
    key: str = ""
    """Key of the default in a region file."""


AXES = read_data("skywalker/axes.yaml", tuple[SettingAxis, ...])


@dataclass(frozen=True, slots=True)
class Variation:
    """One change of the experiments behind the paper's figures, which plays a supposed cause of a shortfall."""

    name: str
    supposes: str
    """Supposition that it plays, for the page."""
    scenario: Changes = field(default_factory=dict)
    clients: float = 1.0
    """Factor of the number of clients."""
    runs: Mapping[str, Sections] = field(default_factory=dict)
    """Changes of runs, by their name and section."""
    figures: tuple[str, ...] = ("fig8", "fig9", "fig10")
    """Experiments that it may change."""


VARIATIONS = read_data("skywalker/variations.yaml", tuple[Variation, ...])
FLEETS_OF_CLAIM = (6, 9, 12)
"""Numbers of replicas for which Fig. 10 reports a gain."""
SELECTIONS_OF_CLAIM = tuple(selection for selection, _ in SELECTIONS[:2])
"""SGLang's selection, which the paper changed for Fig. 9, with both its sets of thresholds."""
UNSEEN = (
    Point("conversations as by default, skewed, 4/4/4", "skewed_day.yaml"),
    Point("all with one prompt of 2,000 words, skewed, 4/4/4", "skewed_day.yaml",
          {"workloads": {"chat": {"conversations": {"applications": 1, "system_prompt_words": 2000}}}}),
    Point("bursts about one document, skewed, 4/4/4", "skewed_day.yaml", {"workloads": {"chat": {"bursts": {}}}}),
)  # fmt: skip
"""Workloads to which nothing was fitted; written down before they were played. The first is also a scenario of tests,
with other seeds."""
UNSEEN_SEEDS = (101, 102, 103)
SENSITIVITY_POINTS = (f"{ARENA}, 4/4/4", f"{MIXED}, 4/4/4")
SKEWED = "skewed, 9 replicas"


@dataclass(frozen=True, slots=True)
class SkyWalkerEvaluation:
    """All experiments of one evaluation."""

    traces: Traces
    full: bool
    seeds: tuple[int, ...]
    fig8: Experiment
    fig9: Experiment
    fig10: Experiment
    day_pooled: Experiment
    day_alone: Experiment
    sensitivity: Mapping[tuple[str, str], Experiment]
    """Experiments by axis and value."""
    improvement: Experiment
    unseen: Experiment
    varied: Mapping[str, Mapping[str, Experiment]]
    """Experiments that a variation changes, by its name and by their field here."""

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        figures = (self.fig8, self.fig9, self.fig10, self.day_pooled, self.day_alone)
        varied = (each for changed in self.varied.values() for each in changed.values())
        return (*figures, *self.sensitivity.values(), self.improvement, self.unseen, *varied)

    @property
    def fig6(self) -> tuple[Point, ...]:
        """Workloads of the paper on its fleets, and bursts, which nothing was fitted to."""
        return (*(each for each in self.fig8.points if each.name in PAPER_FLEETS), UNSEEN[-1])

    def under(self, variation: str) -> SkyWalkerEvaluation:
        """Evaluation whose figures are those of a variation, where it changes them."""
        changed = self.varied[variation]
        return replace(
            self,
            fig8=changed.get("fig8", self.fig8),
            fig9=changed.get("fig9", self.fig9),
            fig10=changed.get("fig10", self.fig10),
        )


def evaluation(traces: Traces, *, full: bool = False, seeds: Sequence[int] | None = None) -> SkyWalkerEvaluation:
    """All experiments. `full`: ten seeds instead of three, and the sensitivity on every workload."""
    chosen = tuple(seeds or range(1, 11 if full else 4))
    asked = workloads(traces)
    skewed = Point(SKEWED, "paper_skewed.yaml", spread_out(9))
    sensitive = (*(point for point in asked if full or point.name in SENSITIVITY_POINTS), skewed)
    mesh = (_skywalker(SKYWALKER), _skywalker(WORTH, WORTH_PLACEMENT))
    figures = {
        "fig8": Experiment("fig8", asked, SYSTEMS, chosen),
        "fig9": Experiment("fig9", (_pushing_point(traces),), _pushing_runs(), chosen),
        "fig10": Experiment("fig10", _fleets("paper_skewed.yaml", SKEWED_FLEETS), (*mesh, _ALONE), chosen),
    }
    return SkyWalkerEvaluation(
        traces,
        full,
        chosen,
        **figures,
        day_pooled=Experiment("day, pooled", _fleets("paper_day.yaml", DAY_FLEETS), mesh[:1], chosen),
        day_alone=Experiment("day, alone", _fleets("paper_day.yaml", DAY_ALONE_FLEETS), (_ALONE,), chosen),
        sensitivity={
            (axis.name, value): Experiment(
                f"sensitivity, {axis.name} {value}",
                tuple(Point(each.name, each.scenario, {**each.changes, **of_scenario}) for each in sensitive),
                (_changed(of_run),),
                chosen,
            )
            for axis in AXES
            for value, of_scenario, of_run in axis.values
        },
        improvement=Experiment("improvement", (*asked, skewed), VARIANTS, chosen),
        unseen=Experiment("unseen", UNSEEN, VARIANTS[:4], UNSEEN_SEEDS),
        varied={each.name: {name: _varied(figures[name], each) for name in each.figures} for each in VARIATIONS},
    )


def _varied(figure: Experiment, variation: Variation) -> Experiment:
    """The part of a figure's experiment that the paper's claims speak of, with the variation's changes."""
    spoken_of = (*PAPER_FLEETS, PUSHING_POINT, *map(str, FLEETS_OF_CLAIM))
    points = tuple(
        Point(each.name, each.scenario, {**each.changes, **variation.scenario, **_more_clients(each, variation)})
        for each in figure.points
        if each.name in spoken_of
    )
    left_out = tuple(pushing_name(selection, "") for selection, _ in SELECTIONS[len(SELECTIONS_OF_CLAIM) :])
    runs = (each for each in figure.runs if each["name"] != WORTH and not str(each["name"]).startswith(left_out))
    changed = tuple(_with_sections(each, variation.runs.get(str(each["name"]), {})) for each in runs)
    return Experiment(f"{variation.name}: {figure.name}", points, changed, figure.seeds)


def _more_clients(point: Point, variation: Variation) -> Changes:
    if variation.clients == 1:
        return {}
    clients = read_yaml(SCENARIOS / point.scenario).mapping()["clients"]
    return {"clients": [{**each, "clients": round(each["clients"] * variation.clients)} for each in clients]}


def _with_sections(run: Changes, sections: Sections) -> Changes:
    found: dict[str, Any] = dict(run)
    for section, changes in sections.items():
        found[section] = {**found.get(section, {}), **changes}
    return found


def _changed(sections: Sections) -> Changes:
    """The paper's algorithm with one setting changed."""
    return _skywalker(SKYWALKER, sections.get("placement"), sections.get("pushing"))


def _fleets(scenario: str, counts: Sequence[int]) -> tuple[Point, ...]:
    return tuple(Point(str(count), scenario, spread_out(count)) for count in counts)


def _pushing_point(traces: Traces) -> Point:
    asked: Changes = {} if traces.gsm8k is None else {"workloads.tree.questions": str(traces.gsm8k)}
    return Point(PUSHING_POINT, "paper_pushing.yaml", asked)


def pushing_name(selection: str, pushing: str) -> str:
    return f"{selection}, {pushing}"


def _pushing_runs() -> tuple[Changes, ...]:
    return tuple(
        _skywalker(pushing_name(selection, name), placement, pushing)
        for selection, placement in SELECTIONS
        for name, pushing in PUSHING
    )
