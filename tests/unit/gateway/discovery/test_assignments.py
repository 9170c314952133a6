from __future__ import annotations

import sys
from types import FrameType

import pytest
from msgspec.structs import replace

from gateway.config.targets import Dialect, ReplicaConfig
from gateway.core.kernel.events import AssignmentApplied
from gateway.core.vocabulary import ControlVersion, ModelName, ReplicaId
from gateway.discovery.assignments import Assignments
from tests.support.core import EU, peer_spec, replica_spec

LLAMA, OTHER = ModelName("llama"), ModelName("other")


def config(name: str, *, url: str = "http://x", lists_models: bool = False) -> ReplicaConfig:
    spec = replica_spec(name, models=() if lists_models else ("llama",))  # type: ignore[arg-type]
    return ReplicaConfig(spec, url, Dialect.VLLM, lists_models=lists_models)


class Told:
    def __init__(self) -> None:
        self.order: list[str] = []
        self.events: list[AssignmentApplied] = []
        self.followed: list[tuple[ReplicaConfig, ...]] = []
        self.assignments = Assignments(self._submit, self._follow)

    def _submit(self, event: AssignmentApplied) -> None:
        self.order.append("core")
        self.events.append(event)

    def _follow(self, replicas: tuple[ReplicaConfig, ...]) -> None:
        self.order.append("edges")
        self.followed.append(replicas)

    def ids(self) -> list[str]:
        return [spec.replica_id for spec in self.events[-1].replicas]

    def versions(self) -> list[int]:
        return [event.version for event in self.events]


def started(*configs: ReplicaConfig) -> Told:
    told = Told()
    told.assignments.configure(configs, [], ["dns:a"])
    told.assignments.start()
    return told


def test_nothing_is_told_before_the_start_and_then_all_at_once() -> None:
    told = Told()
    told.assignments.configure([config("a")], [peer_spec("eu-1", EU)], ["dns:a"])
    told.assignments.found("dns:a", (config("b"),))
    assert told.order == []
    told.assignments.start()
    assert told.ids() == ["a", "b"]
    assert told.events[0].peers == (peer_spec("eu-1", EU),)
    assert told.versions() == [1]


def test_edges_know_a_replica_before_the_core_does() -> None:
    assert started(config("a")).order == ["edges", "core"]


def test_each_change_is_a_new_version_and_nothing_else_is() -> None:
    told = started(config("a"))
    told.assignments.found("dns:a", (config("b"),))
    told.assignments.found("dns:a", (config("b"),))
    told.assignments.configure([config("a")], [], ["dns:a"])
    assert told.versions() == [1, 2]
    told.assignments.configure([config("a")], [peer_spec("eu-1", EU)], ["dns:a"])
    assert told.versions() == [1, 2, 3]


def test_what_only_edges_need_makes_no_version() -> None:
    told = started(config("a"))
    told.assignments.configure([config("a", url="http://y")], [], [])
    assert told.versions() == [1]
    assert told.followed[-1][0].url == "http://y"


def test_edges_are_told_of_every_new_config_since_a_certificate_may_have_changed() -> None:
    told = started(config("a"))
    told.assignments.configure([config("a")], [], [])
    assert len(told.followed) == 2


def test_the_region_file_counts_before_what_was_found() -> None:
    told = started(config("a"))
    told.assignments.found("dns:a", (config("a", url="http://elsewhere"), config("b")))
    assert told.ids() == ["a", "b"]
    assert told.followed[-1][0].url == "http://x"


def test_what_a_source_found_goes_with_the_source() -> None:
    told = started(config("a"))
    told.assignments.found("dns:a", (config("b"),))
    told.assignments.configure([config("a")], [], ["dns:other"])
    assert told.ids() == ["a"]


def test_models_are_what_the_engine_says_where_that_is_left_to_it() -> None:
    told = started(config("a", lists_models=True), config("b"))
    assert told.events[-1].replicas[0].models == ()
    told.assignments.listed([ReplicaId("a"), ReplicaId("b")], (OTHER,))
    assert [spec.models for spec in told.events[-1].replicas] == [(OTHER,), ("llama",)]
    told.assignments.listed([ReplicaId("a")], (OTHER,))
    assert told.versions() == [1, 2]


def test_what_an_engine_said_is_kept_over_a_reload_and_forgotten_when_it_leaves() -> None:
    told = started(config("a", lists_models=True))
    told.assignments.listed([ReplicaId("a")], (OTHER,))
    told.assignments.configure([replace(config("a", lists_models=True), url="http://y")], [], [])
    assert told.events[-1].replicas[0].models == (OTHER,)
    told.assignments.configure([], [], [])
    told.assignments.configure([config("a", lists_models=True)], [], [])
    assert not told.events[-1].replicas[0].models


CONTROL = ControlVersion(1, 5)


def test_what_a_controller_says_of_a_replica_counts_before_the_region_file_and_that_before_what_was_found() -> None:
    told = started(config("a", url="http://file"), config("b", url="http://file"))
    told.assignments.found("dns:a", (config("a", url="http://found"), config("c", url="http://found")))
    told.assignments.order([config("a", url="http://ordered"), config("d", url="http://ordered")], [], CONTROL)
    assert {each.spec.replica_id: each.url for each in told.followed[-1]} == {
        "a": "http://ordered",
        "b": "http://file",
        "c": "http://found",
        "d": "http://ordered",
    }
    assert told.events[-1].control == CONTROL


def test_one_that_is_closed_here_is_not_served_whoever_describes_it() -> None:
    told = started(config("a"), config("b"))
    told.assignments.found("dns:a", (config("c"),))
    told.assignments.order([config("d"), config("e")], ["a", "c", "d"], CONTROL)
    assert told.ids() == ["e", "b"]


def test_what_those_serve_that_are_left_to_others_is_known_to_the_core() -> None:
    told = started(config("a"), config("b"))
    assert not told.events[-1].away
    other = replace(config("d"), spec=replica_spec("d", models=(OTHER,)))
    told.assignments.order([other], ["a", "d"], CONTROL)
    assert list(told.events[-1].away) == ["llama"], "what others describe is theirs to know"
    told.assignments.order([], [], CONTROL)
    assert not told.events[-1].away


def test_all_ranks_of_a_replica_go_together() -> None:
    ranked = replace(config("a"), ranks=2).by_rank()
    told = started(*ranked, config("b"))
    assert told.ids() == ["a@0", "a@1", "b"]
    told.assignments.order([], ["a"], CONTROL)
    assert told.ids() == ["b"]
    told.assignments.order([], ["a@1"], CONTROL)
    assert told.ids() == ["a@0", "b"]
    told.assignments.order([config("a")], [], CONTROL)
    assert told.ids() == ["a", "b"], "no rank that the region file describes stays beside it"


def test_a_reload_undoes_no_order_and_an_order_no_reload() -> None:
    told = started(config("a"), config("b"))
    told.assignments.order([config("c")], ["a"], CONTROL)
    told.assignments.configure([config("a"), config("b", url="http://y")], [], [])
    assert told.ids() == ["c", "b"]
    assert told.events[-1].control == CONTROL
    told.assignments.order([], [], ControlVersion(1, 6))
    assert {each.spec.replica_id: each.url for each in told.followed[-1]} == {"a": "http://x", "b": "http://y"}


def test_a_newer_word_that_changes_nothing_is_told_to_the_core_which_tells_peers() -> None:
    told = started(config("a"))
    told.assignments.order([], [], CONTROL)
    told.assignments.order([], [], CONTROL)
    assert [event.control for event in told.events] == [ControlVersion(), CONTROL]


def test_identities_that_an_engine_tells_are_taken_for_its_models_alone() -> None:
    told = started(config("a"), config("b"))
    told.assignments.identified([ReplicaId("a")], {LLAMA: "llama@1", OTHER: "other@1"})
    first, second = told.events[-1].replicas
    assert first.roots == {LLAMA: "llama@1"}
    assert (first.identity_of(ModelName("llama")), second.identity_of(ModelName("llama"))) == ("llama@1", "")


def test_a_declared_identity_wins() -> None:
    declared = config("a")
    declared = replace(declared, spec=replace(declared.spec, identity="declared"))
    told = started(declared)
    told.assignments.identified([ReplicaId("a")], {LLAMA: "llama@1"})
    assert told.events[-1].replicas[0].identity_of(ModelName("llama")) == "declared"
    assert told.versions() == [1]


def test_identities_of_replicas_that_have_gone_are_forgotten() -> None:
    told = started(config("a"))
    told.assignments.identified([ReplicaId("a")], {LLAMA: "llama@1"})
    told.assignments.configure([], [], [])
    told.assignments.configure([config("a")], [], [])
    told.assignments.configure([config("a"), config("b")], [], [])
    assert told.events[-1].replicas[0].roots == {}


class Counting(dict[ModelName, str]):
    """Identities that an engine tells, which count how often one is looked up."""

    lookups = 0

    def __contains__(self, model: object) -> bool:
        self.lookups += 1
        return super().__contains__(model)


def test_identities_are_looked_up_once_a_model_and_not_again_for_other_engines() -> None:
    models = tuple(ModelName(f"m{number}") for number in range(50))
    one = config("a")
    one = replace(one, spec=replace(one.spec, models=models))
    told = started(one, config("b"))
    roots = Counting({model: f"{model}@1" for model in models})
    told.assignments.identified([ReplicaId("a")], roots)
    assert told.events[-1].replicas[0].roots == roots
    told.assignments.identified([ReplicaId("b")], {LLAMA: "llama@1"})
    assert told.versions() == [1, 2, 3]
    assert roots.lookups == len(models)


@pytest.mark.parametrize("is_list", [True, False])
def test_what_an_engine_tells_again_costs_the_same_beside_any_number_of_others(is_list: bool) -> None:
    def calls(replicas: int) -> int:
        """Calls that the second telling makes."""
        told = started(*(config(f"r{number}", lists_models=is_list) for number in range(replicas)))
        counted = 0

        def count(_: FrameType, event: str, __: object) -> None:
            nonlocal counted
            counted += event == "call"

        def tell() -> None:
            if is_list:
                told.assignments.listed([ReplicaId("r0")], (LLAMA,))
            else:
                told.assignments.identified([ReplicaId("r0")], {LLAMA: "llama@1"})

        tell()
        before = sys.getprofile()
        sys.setprofile(count)
        try:
            tell()
        finally:
            sys.setprofile(before)
        return counted

    assert calls(100) == calls(1)
