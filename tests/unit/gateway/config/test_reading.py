from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gateway.config.reading import read_named_files, read_region_file
from gateway.policy.file import load_policy_or_closed
from mesh.config import LogFormat, LogLevel
from mesh.faults import ConfigError
from tests.support.region_files import SMALLEST, load_config, region_at, region_faults


def test_a_region_file_knows_where_it_came_from_and_reads_its_keys_anew(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("first")
    file = read_region_file(region_at(tmp_path, SMALLEST + "    api_key_file: key\n"), environ={})
    assert file.path == tmp_path / "us.yaml"
    key.write_text("second")
    again = read_named_files(file, environ={})
    assert (file.as_config().replicas[0].api_key, again.as_config().replicas[0].api_key) == ("first", "second")
    assert again.as_document() == file.as_document()
    assert again.path == file.path
    key.unlink()
    with pytest.raises(ConfigError, match=r"us\.yaml: line 8: replicas\[0\]\.api_key_file: .* cannot be read"):
        read_named_files(file, environ={})


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        load_config(tmp_path / "none.yaml", environ={})


def test_the_environment_says_how_to_log(tmp_path: Path) -> None:
    path = region_at(tmp_path, SMALLEST + "logging: {format: console}\n")
    assert load_config(path, environ={}).logging.format is LogFormat.CONSOLE
    logging = load_config(path, environ={"NIGHTSIDE_LOG_FORMAT": "json", "NIGHTSIDE_LOG_LEVEL": "debug"}).logging
    assert (logging.format, logging.level) == (LogFormat.JSON, LogLevel.DEBUG)
    with pytest.raises(ConfigError, match="environment: NIGHTSIDE_LOG_FORMAT: 'xml' is not one of auto, json, console"):
        load_config(path, environ={"NIGHTSIDE_LOG_FORMAT": "xml"})


EXAMPLES = Path(__file__).parents[4] / "docs/examples"
ENVIRON = {"ENGINE_API_KEY": "k"}


@pytest.mark.parametrize(
    "example",
    sorted({*EXAMPLES.glob("*.yaml")} - {*EXAMPLES.glob("*controller*"), EXAMPLES / "prices.yaml"}),
    ids=lambda path: path.name,
)
def test_the_examples_are_valid_and_so_are_their_policies(example: Path) -> None:
    config = load_config(example, ENVIRON)
    if config.policy_file is not None:
        assert load_policy_or_closed(config.policy_file, config.place)[1] is None


def test_the_examples_of_a_mesh_know_each_other() -> None:
    us, eu = (load_config(EXAMPLES / name, ENVIRON) for name in ("us-east-1.yaml", "eu-west-1.yaml"))
    for one, other in ((us, eu), (eu, us)):
        (peer,) = one.peers
        assert (peer.spec.gateway_id, peer.spec.place) == (other.gateway_id, other.place)


def keys(document: object, path: str = "") -> set[str]:
    """Every key of a document, by path; lists count as one."""
    if isinstance(document, list):
        return set().union(*(keys(each, f"{path}[]") for each in document))
    if not isinstance(document, dict):
        return {path}
    return set().union(*(keys(value, f"{path}.{key}") for key, value in document.items()))


def test_the_reference_shows_every_key_and_the_true_defaults(tmp_path: Path) -> None:
    reference = EXAMPLES / "every_key.yaml"
    effective = read_region_file(reference, ENVIRON).as_document()
    written = yaml.load(reference.read_text(), yaml.BaseLoader)
    assert keys(written) == keys(effective)
    without_default = (
        "gateway",
        "region",
        "jurisdiction",
        "policy",
        "prices",
        "pools",
        "replicas",
        "dns_replicas",
        "kubernetes_replicas",
        "peers",
        "models",
        "tenants",
        "operators",
        "oidc",
    )
    own = {key: effective[key] for key in without_default}
    own |= {section: {"tls": effective[section]["tls"]} for section in ("listen", "peering")}
    own["scaling"] = {"pools": effective["scaling"]["pools"]}
    assert effective == read_region_file(region_at(tmp_path, yaml.safe_dump(own)), ENVIRON).as_document()


def test_a_policy_that_there_is_not_is_told_with_everything_else(tmp_path: Path) -> None:
    text = SMALLEST + "queue: {wait_max: 5}\nplacement:\n  hold: soon\n  policy: colour\nnonsense: true\n"
    assert sorted(each.partition(": ")[2].partition(", ")[0] for each in region_faults(tmp_path, text)) == [
        "line 10: placement.hold: 'soon' is not a duration such as 100ms or 2s",
        "line 11: placement.policy: 'colour' is none of cost",
        "line 12: nonsense: is not a known key",
        "line 8: queue.wait_max: 5 is not a duration such as 100ms or 2s",
    ]


def test_a_policy_that_is_no_name_is_told_once(tmp_path: Path) -> None:
    (fault,) = region_faults(tmp_path, SMALLEST + "placement: {policy: [cost]}\n")
    assert fault.startswith("us.yaml: line 8: placement.policy: ")
