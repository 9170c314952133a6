from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.placement_plug_ins import find_plug_in, find_policy, placement_faults, with_version
from gateway.config.plug_ins import PlugInUnusable
from gateway.core.kernel.config import PlacementConfig, PlacementPolicy
from mesh.faults import ConfigError
from tests.support.plug_ins import SOURCE, put
from tests.support.region_files import load_config


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder in which packages are found. Imported packages stay loaded, so that every test names its own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def faults(policy: str, version: str | None = None, **options: int) -> list[str]:
    return [f"{key}: {what}" for key, what in placement_faults(PlacementConfig(policy, version, dict(options)))]


def test_a_policy_is_found_by_name_and_has_its_packages_version(site: Path) -> None:
    put(site, "found_by_name", name="by_name", version="2.5")
    assert (find_policy("by_name").__name__, find_plug_in("by_name").version) == ("First", "2.5")
    assert with_version(PlacementConfig("by_name")).policy_version == "2.5"
    assert faults("by_name") == faults("by_name", "2.5") == []


def test_an_unknown_name_is_told_with_those_that_there_are(site: Path) -> None:
    put(site, "one_of_those", name="one_of_those")
    (fault,) = faults("magic")
    assert fault.startswith("policy: 'magic' is none of cost, prefix, consistent_hash, ")
    assert "one_of_those" in fault


def test_what_comes_with_the_gateway_has_neither_version_nor_options() -> None:
    for policy in PlacementPolicy:
        assert faults(policy) == []
        assert [fault.partition(":")[0] for fault in faults(policy, "1", a=1)] == ["policy_version", "policy_options"]
    assert with_version(PlacementConfig()) == PlacementConfig()


def test_only_the_version_that_was_asked_for_will_do(site: Path) -> None:
    put(site, "of_a_version", name="of_a_version", version="1.1")
    assert faults("of_a_version", "1.0") == ["policy_version: of of_a_version, 1.1 is installed and not 1.0"]


def test_options_are_the_policys_to_judge(site: Path) -> None:
    put(site, "without_options", name="without_options")
    assert faults("without_options", limit=1) == ["policy_options: limit: this policy has no options"]


def test_two_packages_cannot_bring_the_same_policy(site: Path) -> None:
    put(site, "twin_a", name="twin")
    put(site, "twin_b", name="twin")
    (fault,) = faults("twin")
    assert "is brought by twin_" in fault
    assert "twin_a 1.0" in fault and "twin_b 1.0" in fault  # noqa: PT018 - in either order


@pytest.mark.parametrize(
    ("name", "source", "said"),
    [
        ("broken", "import nothing_of_that_name", "cannot be loaded from broken 1.0: ModuleNotFoundError"),
        ("explodes", "raise RuntimeError('no')", "cannot be loaded from explodes 1.0: RuntimeError: no"),
        ("empty", "First = 3", "is no gateway.core.placement.policy.Policy"),
        ("mute", SOURCE.replace("def choose_peer", "def choose_nobody"), "does not say how to choose_peer"),
    ],
)
def test_what_is_no_policy_is_refused_in_words(site: Path, name: str, source: str, said: str) -> None:
    put(site, name, name=name, source=source)
    (fault,) = faults(name)
    assert said in fault
    with pytest.raises(PlugInUnusable):
        find_policy(name)


def test_a_region_file_names_it_and_its_core_is_told_the_version(site: Path) -> None:
    put(site, "in_a_file", name="in_a_file", version="3.0")
    file = site / "us.yaml"
    smallest = "gateway: us-1\nregion: us\njurisdiction: US\nplacement: "
    file.write_text(smallest + "{policy: in_a_file}\n")
    assert load_config(file, environ={}).core.placement.policy_version == "3.0"
    file.write_text(smallest + "{policy: in_a_file, policy_version: '2.0', policy_options: {a: 1}}\n")
    with pytest.raises(ConfigError) as failed:
        load_config(file, environ={})
    assert str(failed.value).splitlines() == [
        "us.yaml: line 4: placement.policy_version: of in_a_file, 3.0 is installed and not 2.0",
        "us.yaml: line 4: placement.policy_options: a: this policy has no options",
    ]
