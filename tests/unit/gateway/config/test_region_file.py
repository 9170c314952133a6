from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from msgspec import Struct
from msgspec.structs import fields
from rich.pretty import pretty_repr

from gateway.config.reading import read_region_file
from gateway.config.targets import Dialect, KubernetesApi, KubernetesKind
from gateway.core.config import CoreConfig
from gateway.core.kernel.config import PlacementPolicy
from gateway.core.vocabulary import Jurisdiction, Place, RegionName
from mesh.values import (
    Address,
)
from tests.support.region_files import SMALLEST, load_config, region_at, region_faults


def test_the_smallest_file_gets_every_default(tmp_path: Path) -> None:
    config = load_config(region_at(tmp_path, SMALLEST), environ={})
    assert config.place == Place(RegionName("us-east-1"), Jurisdiction("US"))
    assert config.listen.http == Address("127.0.0.1", 8080)
    assert config.core == CoreConfig()
    assert config.policy_file is None
    (replica,) = config.replicas
    assert replica.spec.place == config.place
    assert replica.spec.models == ("llama",)
    assert replica.dialect is Dialect.VLLM


def test_durations_and_sizes_become_integers(tmp_path: Path) -> None:
    text = SMALLEST + "queue: {wait_max: 1.5s}\nplacement: {prefix_index_max: 1MiB, policy: least_load}\n"
    config = load_config(region_at(tmp_path, text), environ={})
    assert config.core.queue.wait_max_ns == 1_500_000_000
    assert config.core.placement.prefix_index_bytes_max == 2**20
    assert config.core.placement.policy == PlacementPolicy.LEAST_LOAD
    assert config.core.placement.explore_below_share == CoreConfig().placement.explore_below_share


def test_the_policy_that_compares_costs_has_keys_of_its_own(tmp_path: Path) -> None:
    text = SMALLEST + "placement: {policy: cost, hold: 20ms, delay_weight: 0, kept_gaps: 2, explore_load: 1KiB}\n"
    placement = load_config(region_at(tmp_path, text), environ={}).core.placement
    assert placement.policy == PlacementPolicy.COST
    assert (placement.hold_ns, placement.delay_weight, placement.kept_gaps) == (20_000_000, 0, 2)


def test_every_setting_of_the_core_can_be_written(tmp_path: Path) -> None:
    document = read_region_file(region_at(tmp_path, SMALLEST), environ={}).as_document()
    for section in fields(CoreConfig):
        settings = getattr(CoreConfig(), section.name)
        written = fields(settings) if isinstance(settings, Struct) else settings
        assert len(document[section.name]) == len(written), section.name


def test_the_effective_file_reads_back_as_itself(tmp_path: Path) -> None:
    first = read_region_file(
        region_at(tmp_path, SMALLEST + "limits: {drain: 90s, body_max: 3KiB}\njournal: {folder: j}\nseed: 7\n"),
        environ={},
    )
    again = read_region_file(
        region_at(tmp_path, yaml.safe_dump(json.loads(json.dumps(first.as_document())))), environ={}
    )
    assert again.as_config() == first.as_config()


@pytest.mark.parametrize(
    "text,expected",
    [
        (SMALLEST + "colour: blue\n", ["us.yaml: line 8: colour: is not a known key"]),
        (SMALLEST + "    port: 1\n", ["us.yaml: line 8: replicas[0].port: is not a known key"]),
        (SMALLEST.replace("jurisdiction: US\n", ""), ["us.yaml: jurisdiction: is missing"]),
        (
            SMALLEST.replace("http:", "ftp:"),
            [
                "us.yaml: line 6: replicas[0].url: 'ftp://127.0.0.1:8101' is not an address such as http://10.0.0.7:8000",
            ],
        ),
        (
            SMALLEST.replace("8101", "8101/v1"),
            ["us.yaml: line 6: replicas[0].url: should end before /v1: the gateway adds the path of each API call"],
        ),
        (SMALLEST.replace("[llama]", "[]"), ["us.yaml: line 7: replicas[0].models: should not be empty"]),
        (SMALLEST.replace("[llama]", "[a, a]"), ["us.yaml: line 5: replicas[0]: names a model or adapter twice"]),
        (
            SMALLEST + "queue: {wait_max: 5}\n",
            ["us.yaml: line 8: queue.wait_max: 5 is not a duration such as 100ms or 2s"],
        ),
        (SMALLEST + "queue: {wait_max: 0s}\n", ["us.yaml: line 8: queue.wait_max: should be greater than 0"]),
        (SMALLEST + "queue: {length_max: '7'}\n", ["us.yaml: line 8: queue.length_max: should be a valid integer"]),
        (
            SMALLEST + "attempt: {retry_budget_share: 2.0}\n",
            ["us.yaml: line 8: attempt.retry_budget_share: should be less than or equal to 1"],
        ),
        (SMALLEST + "placement: {hold: 0ms}\n", ["us.yaml: line 8: placement.hold: should be greater than 0"]),
        (
            SMALLEST + "placement: {delay_weight: -0.1, kept_gaps: 1001}\n",
            [
                "us.yaml: line 8: placement.delay_weight: should be greater than or equal to 0",
                "us.yaml: line 8: placement.kept_gaps: should be less than or equal to 1000",
            ],
        ),
        (
            SMALLEST + "placement: {delay_weight: .nan, kept_gaps: '3'}\n",
            [
                "us.yaml: line 8: placement.delay_weight: should be a valid number",
                "us.yaml: line 8: placement.kept_gaps: should be a valid number",
            ],
        ),
        (
            SMALLEST + "placement: {policy: cost, policy_options: {hold: 3}}\n",
            [
                "us.yaml: line 8: placement.policy_options: cost has none; its settings are keys of their own",
            ],
        ),
        (SMALLEST + "region: eu\n", ["us.yaml: line 8: region: is written twice"]),
        (
            "gateway: [\n",
            ["us.yaml: line 2: while parsing a flow node: expected the node content, but found '<stream end>'"],
        ),
        ("- a\n", ["us.yaml: should be a mapping of keys to values"]),
        (
            SMALLEST + "    region: eu-west-1\n",
            ["us.yaml: line 5: replicas[0]: region and jurisdiction are written together or not at all"],
        ),
        (
            SMALLEST + "    region: us-east-1\n    jurisdiction: EU\n",
            ["us.yaml: line 9: replicas[0].jurisdiction: region us-east-1 is in US elsewhere in this file"],
        ),
        (
            SMALLEST + "control: {client_addresses: [0.0.0.0]}\n",
            [
                "us.yaml: line 8: control.client_addresses[0]: '0.0.0.0' is not an address of one host that clients can"
                " connect to"
            ],
        ),
        (
            SMALLEST + "probes: {interval: 3s}\n",
            ["us.yaml: line 8: observation.replica_stale: should be longer than probes.interval"],
        ),
        (
            SMALLEST + "limits: {body_max: 64MiB}\n",
            [
                "us.yaml: line 8: peering.message_max:"
                " should exceed limits.body_max, or large requests could never be forwarded"
            ],
        ),
        (
            SMALLEST + "control: {message_max: 63KiB}\n",
            [
                "us.yaml: line 8: control.message_max:"
                " is below 64KiB, so that the history of a pool would break the stream"
            ],
        ),
        (
            SMALLEST + "limits: {prompt_blocks_max: 1048577}\n",
            ["us.yaml: line 8: limits.prompt_blocks_max: should be at most 1048576: no forward carries more"],
        ),
    ],
)
def test_a_fault_names_file_line_and_key_in_plain_words(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert region_faults(tmp_path, text) == expected


def test_models_may_be_left_to_the_engine(tmp_path: Path) -> None:
    file = read_region_file(region_at(tmp_path, SMALLEST.replace("[llama]", "auto")), environ={})
    (replica,) = file.as_config().replicas
    assert (replica.lists_models, replica.spec.models) == (True, ())
    assert file.as_document()["replicas"][0]["models"] == "auto"


def test_ranks_become_replicas_of_one_url(tmp_path: Path) -> None:
    config = load_config(region_at(tmp_path, SMALLEST + "    data_parallel_ranks: 2\n"), environ={})
    assert [(each.spec.replica_id, each.rank, each.ranks) for each in config.replicas] == [
        ("us-a@0", 0, 2),
        ("us-a@1", 1, 2),
    ]
    assert {each.url for each in config.replicas} == {"http://127.0.0.1:8101"}


def test_only_an_engine_that_tells_no_load_goes_by_signs_of_life(tmp_path: Path) -> None:
    text = SMALLEST + "    dialect: openai\nprobes: {life_interval: 7s}\n"
    assert load_config(region_at(tmp_path, text), environ={}).replicas[0].spec.sign_of_life_ns == 7_000_000_000
    assert load_config(region_at(tmp_path, SMALLEST), environ={}).replicas[0].spec.sign_of_life_ns is None


def test_a_name_is_a_template_of_replicas(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret")
    text = SMALLEST + DNS + "    record: srv\n    data_parallel_ranks: 2\n    api_key_file: key\n"
    file = read_region_file(region_at(tmp_path, text), environ={})
    (found,) = file.as_config().dns_replicas
    assert (found.name, found.record, found.scheme, found.port) == ("llama.engines.test", "srv", "http", None)
    assert (found.template.ranks, found.template.api_key, found.template.url) == (2, "secret", "")
    assert file.engine_files() == [(tmp_path / "key").resolve()]


DNS = """\
dns_replicas:
  - id: llama
    name: llama.Engines.test.
    models: [llama]
"""


KUBERNETES = """\
kubernetes_replicas:
  - id: stack
    selector: app=vllm
    port: http
    models: auto
"""


def test_labels_in_a_cluster_are_a_template_of_replicas(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a.b.c")
    text = SMALLEST + KUBERNETES + "    namespace: engines\n    api: https://10.0.0.1:6443/\n    token_file: token\n"
    file = read_region_file(region_at(tmp_path, text), environ={})
    (found,) = file.as_config().kubernetes_replicas
    assert (found.selector, found.namespace, found.port, found.scheme) == ("app=vllm", "engines", "http", "http")
    assert found.api == KubernetesApi("https://10.0.0.1:6443", (tmp_path / "token").resolve())
    assert found.kind is KubernetesKind.ENDPOINT_SLICES
    assert (tmp_path / "token").resolve() in file.as_config().secret_files


@pytest.mark.parametrize("host", ["10.96.0.1", "fd00::1"])
def test_a_gateway_in_a_cluster_needs_to_be_told_nothing_of_it(tmp_path: Path, host: str) -> None:
    (tmp_path / "namespace").write_text("engines\n")
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "6443"}
    environ["NIGHTSIDE_SERVICE_ACCOUNT"] = str(tmp_path)
    file = read_region_file(region_at(tmp_path, SMALLEST + KUBERNETES), environ)
    (found,) = file.as_config().kubernetes_replicas
    shown = f"[{host}]" if ":" in host else host
    assert found.api == KubernetesApi(f"https://{shown}:6443", tmp_path / "token", tmp_path / "ca.crt")
    assert found.namespace == "engines"


@pytest.mark.parametrize(
    "text,expected",
    [
        (SMALLEST + KUBERNETES, "line 9: kubernetes_replicas[0].api: is missing, and this gateway runs in no cluster"),
        (
            SMALLEST + KUBERNETES + "    api: https://k:6443\n",
            "line 9: kubernetes_replicas[0].namespace: is missing",
        ),
        (
            SMALLEST + KUBERNETES + "    api: http://k\n    token_file: t\n    namespace: e\n",
            "line 13: kubernetes_replicas[0].api: is not https, and a token would be sent there",
        ),
        (
            SMALLEST + KUBERNETES.replace("app=vllm", "app in; rm") + "    api: http://k\n    namespace: e\n",
            "line 10: kubernetes_replicas[0].selector: 'app in; rm' is not a selector such as app=vllm,tier=engines",
        ),
        (
            SMALLEST + KUBERNETES.replace("id: stack", "id: us-a") + "    api: http://k\n    namespace: e\n",
            "line 9: kubernetes_replicas[0].id: 'us-a' is used twice",
        ),
        (SMALLEST.replace("[llama]", "some"), "line 7: replicas[0].models: should be a valid tuple"),
        (
            SMALLEST.replace("[llama]", "auto\n    adapters: [a]"),
            "line 8: replicas[0].adapters: are listed by the engine itself where models is auto",
        ),
        (
            SMALLEST + "    data_parallel_ranks: 2\n    dialect: llamacpp\n",
            "line 8: replicas[0].data_parallel_ranks: llamacpp has no ranks that can be asked for",
        ),
        (
            SMALLEST + "    data_parallel_ranks: 0\n",
            "line 8: replicas[0].data_parallel_ranks: should be greater than or equal to 1",
        ),
        (
            SMALLEST + "    kv_events_port: 65535\n    data_parallel_ranks: 2\n",
            "line 8: replicas[0].kv_events_port: leaves no port for each of 2 ranks: the last would be 65536",
        ),
        (
            SMALLEST + "    kv_events_port: 1\n    kv_events_replay_port: 65534\n    data_parallel_ranks: 3\n",
            "line 9: replicas[0].kv_events_replay_port: leaves no port for each of 3 ranks: the last would be 65536",
        ),
        (
            SMALLEST + "    kv_events_port: 5557\n    kv_events_replay_port: 5558\n    data_parallel_ranks: 2\n",
            "line 9: replicas[0].kv_events_replay_port: is within the ports of kv_events_port, one for each of 2 ranks",
        ),
        (SMALLEST + "    tls: {ca_file: ca.pem}\n", "line 8: replicas[0].tls: the engine is not reached by https"),
        (
            SMALLEST.replace("http:", "https:") + "    tls: {client_key: k}\n",
            "line 8: replicas[0].tls: client_certificate and client_key are written together or not at all",
        ),
        (SMALLEST + DNS, "line 9: dns_replicas[0].port: belongs to record: address, and SRV records name their own"),
        (
            SMALLEST + DNS + "    record: srv\n    port: 1\n",
            "line 13: dns_replicas[0].port: belongs to record: address, and SRV records name their own",
        ),
        (
            SMALLEST + DNS.replace("llama.E", "no good.e") + "    port: 1\n",
            "line 10: dns_replicas[0].name: 'no good.engines.test.' is not a name that DNS can be asked for",
        ),
        (
            SMALLEST + DNS + "    port: 1\n    nameservers: [dns.test:53]\n",
            "line 13: dns_replicas[0].nameservers: dns.test:53 is not an address and a port such as 10.0.0.2:53",
        ),
        (
            SMALLEST + DNS.replace("id: llama", "id: us-a") + "    port: 1\n",
            "line 9: dns_replicas[0].id: 'us-a' is used twice",
        ),
        (
            SMALLEST + DNS + "    port: 1\n    region: us-east-1\n    jurisdiction: EU\n",
            "line 14: dns_replicas[0].jurisdiction: region us-east-1 is in US elsewhere in this file",
        ),
        (
            SMALLEST + "discovery: {interval_max: 1s}\n",
            "line 8: discovery.interval_max: is below discovery.interval_min",
        ),
        (SMALLEST + "probes: {slow_max: 1ms}\n", "line 8: probes.slow_max: is below probes.timeout"),
    ],
)
def test_faults_of_engines_and_names_are_told_by_key(tmp_path: Path, text: str, expected: str) -> None:
    assert region_faults(tmp_path, text) == [f"us.yaml: {expected}"]


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    text = SMALLEST.replace("us-1", "us 1").replace("region: us-east-1", "region: true")
    assert [line.split(": ")[1:3] for line in region_faults(tmp_path, text)] == [
        ["line 1", "gateway"],
        ["line 2", "region"],
    ]


def test_norway_is_a_jurisdiction(tmp_path: Path) -> None:
    assert load_config(region_at(tmp_path, SMALLEST.replace("US", "NO")), environ={}).place.jurisdiction == "NO"


def test_the_operators_token_comes_from_a_file_and_is_never_shown(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken\n")
    path = region_at(tmp_path, SMALLEST + "admin_token_file: token\n")
    config = load_config(path, environ={})
    assert config.admin_token == "t0ken"
    assert "t0ken" not in repr(config) + pretty_repr(config)
    assert "t0ken" not in json.dumps(read_region_file(path, environ={}).as_document())
    (tmp_path / "token").write_text("\n")
    assert region_faults(tmp_path, SMALLEST + "admin_token_file: token\n") == [
        f"us.yaml: line 8: admin_token_file: {tmp_path / 'token'} holds no usable key"
    ]
    assert region_faults(tmp_path, SMALLEST + "admin_token_file: none\n") == [
        f"us.yaml: line 8: admin_token_file: {tmp_path / 'none'} cannot be read: No such file or directory"
    ]


def test_paths_start_at_the_files_own_folder(tmp_path: Path) -> None:
    config = load_config(region_at(tmp_path, SMALLEST + "policy: policies/us.yaml\n"), environ={})
    assert config.policy_file == tmp_path / "policies" / "us.yaml"


def test_an_engines_key_comes_from_elsewhere_and_is_never_shown(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s3cret\n")
    path = region_at(tmp_path, SMALLEST + "    api_key_file: key\n")
    config = load_config(path, environ={})
    assert config.replicas[0].api_key == "s3cret"
    assert "s3cret" not in repr(config) + pretty_repr(config) + pretty_repr(config.replicas)
    assert "s3cret" not in json.dumps(read_region_file(path, environ={}).as_document())
    path = region_at(tmp_path, SMALLEST + "    api_key_env: ENGINE_KEY\n")
    assert load_config(path, environ={"ENGINE_KEY": "other"}).replicas[0].api_key == "other"
    assert region_faults(tmp_path, SMALLEST + "    api_key_env: ENGINE_KEY\n") == [
        "us.yaml: line 8: replicas[0].api_key_env: environment variable ENGINE_KEY holds no usable key"
    ]
