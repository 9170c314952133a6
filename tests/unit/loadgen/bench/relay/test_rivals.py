"""Other projects' relays: their configurations reach all engines, and each package has one folder."""

from __future__ import annotations

from pathlib import Path

from loadgen.bench.relay.installed import folder_of, unmeasured, version_of
from loadgen.bench.relay.relays import RELAYS
from loadgen.bench.relay.rivals import LITELLM, PORTKEY, litellm_file, portkey_config
from loadgen.bench.relay.wire import MODEL

ROOT = Path(__file__).parents[5]
URLS = ["http://127.0.0.1:1", "http://127.0.0.1:2"]


def test_litellm_has_a_deployment_of_the_model_for_each_engine() -> None:
    models = litellm_file(URLS)["model_list"]
    assert isinstance(models, list)
    assert [each["litellm_params"]["api_base"] for each in models] == [f"{url}/v1" for url in URLS]
    assert {each["model_name"] for each in models} == {MODEL}


def test_portkey_balances_over_all_engines() -> None:
    targets = portkey_config(URLS)["targets"]
    assert isinstance(targets, list)
    assert [each["custom_host"] for each in targets] == [f"{url}/v1" for url in URLS]


def test_a_package_has_a_folder_with_its_version(tmp_path: Path) -> None:
    folder = folder_of("@portkey-ai/gateway", tmp_path)
    assert folder == tmp_path / "portkey-ai-gateway"
    assert version_of(PORTKEY, tmp_path) is None
    folder.mkdir()
    (folder / "version").write_text("1.2.3\n")
    assert version_of(PORTKEY, tmp_path) == "1.2.3"
    assert version_of(LITELLM, tmp_path) is None


def test_every_relay_of_another_project_is_installed_by_its_pin() -> None:
    """Dynamo is tried and has no relay, since it could never be installed: the page says why."""
    pins = (ROOT / "loadgen/bench/relay/rivals.txt").read_text().splitlines()
    names = {line.split()[1].partition("==")[0].partition("[")[0] for line in pins if not line.startswith("#")}
    assert {each.package for each in RELAYS if each.package} | {"ai-dynamo"} == names


def test_a_package_that_no_relay_is_made_of_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "unavailable-ai-dynamo").write_text("no such release\n")
    (tmp_path / "unavailable-litellm").write_text("told as a relay's own\n")
    assert unmeasured(RELAYS, tmp_path) == {"ai-dynamo": "not available: no such release"}
