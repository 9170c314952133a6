from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from gateway.config import (
    Address,
    ConfigError,
    Dialect,
    ListenTlsConfig,
    LogFormat,
    LogLevel,
    MeshTlsConfig,
    format_duration,
    format_size,
    load_config,
    parse_address,
    parse_duration_ns,
    parse_size_bytes,
    read_named_files,
    read_region_file,
)
from gateway.core.config import CoreConfig, PlacementPolicy
from gateway.core.vocabulary import Jurisdiction, Place, RegionName
from gateway.policy.file import load_policy_or_closed

SMALLEST = """\
gateway: us-1
region: us-east-1
jurisdiction: US
replicas:
  - id: us-a
    url: http://127.0.0.1:8101
    models: [llama]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "us.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def faults(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(write(folder, text), environ={})
    return str(caught.value).splitlines()


def test_the_smallest_file_gets_every_default(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, SMALLEST), environ={})
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
    config = load_config(write(tmp_path, text), environ={})
    assert config.core.queue.wait_max_ns == 1_500_000_000
    assert config.core.placement.prefix_index_bytes_max == 2**20
    assert config.core.placement.policy == PlacementPolicy.LEAST_LOAD
    assert config.core.placement.explore_below_share == CoreConfig().placement.explore_below_share


def test_every_setting_of_the_core_can_be_written(tmp_path: Path) -> None:
    document = read_region_file(write(tmp_path, SMALLEST), environ={}).as_document()
    for section in fields(CoreConfig):
        settings = getattr(CoreConfig(), section.name)
        assert len(document[section.name]) == len(fields(settings)), section.name


def test_the_effective_file_reads_back_as_itself(tmp_path: Path) -> None:
    first = read_region_file(
        write(tmp_path, SMALLEST + "limits: {drain: 90s, body_max: 3KiB}\njournal: {folder: j}\nseed: 7\n"), environ={}
    )
    again = read_region_file(write(tmp_path, yaml.safe_dump(json.loads(json.dumps(first.as_document())))), environ={})
    assert again.as_config() == first.as_config()


@pytest.mark.parametrize(
    "text,expected",
    [
        (SMALLEST + "colour: blue\n", ["us.yaml: colour: is not a known key"]),
        (SMALLEST + "    port: 1\n", ["us.yaml: replicas[0].port: is not a known key"]),
        (SMALLEST.replace("jurisdiction: US\n", ""), ["us.yaml: jurisdiction: is missing"]),
        (
            SMALLEST.replace("http:", "ftp:"),
            [
                "us.yaml: replicas[0].url: 'ftp://127.0.0.1:8101' is not an address such as http://10.0.0.7:8000",
            ],
        ),
        (
            SMALLEST.replace("8101", "8101/v1"),
            ["us.yaml: replicas[0].url: should end before /v1: the gateway adds the path of each API call"],
        ),
        (SMALLEST.replace("[llama]", "[]"), ["us.yaml: replicas[0].models: should not be empty"]),
        (SMALLEST.replace("[llama]", "[a, a]"), ["us.yaml: replicas[0]: names a model or adapter twice"]),
        (
            SMALLEST + "queue: {wait_max: 5}\n",
            ["us.yaml: queue.wait_max: 5 is not a duration such as 100ms or 2s"],
        ),
        (SMALLEST + "queue: {wait_max: 0s}\n", ["us.yaml: queue.wait_max: should be greater than 0"]),
        (SMALLEST + "queue: {length_max: '7'}\n", ["us.yaml: queue.length_max: should be a valid integer"]),
        (
            SMALLEST + "attempt: {retry_budget_share: 2.0}\n",
            ["us.yaml: attempt.retry_budget_share: should be less than or equal to 1"],
        ),
        (SMALLEST + "region: eu\n", ["us.yaml: line 8: key 'region' is written twice"]),
        ("gateway: [\n", ["us.yaml: line 2: expected the node content, but found '<stream end>'"]),
        ("- a\n", ["us.yaml: should be a mapping of keys to values"]),
        (
            SMALLEST + "    region: eu-west-1\n",
            ["us.yaml: replicas[0]: region and jurisdiction are written together or not at all"],
        ),
        (
            SMALLEST + "    region: us-east-1\n    jurisdiction: EU\n",
            ["us.yaml: replicas[0].jurisdiction: region us-east-1 is in US elsewhere in this file"],
        ),
        (
            SMALLEST + "probes: {interval: 3s}\n",
            ["us.yaml: observation.replica_stale: should be longer than probes.interval"],
        ),
        (
            SMALLEST + "limits: {body_max: 64MiB}\n",
            ["us.yaml: peering.message_max: should exceed limits.body_max, or large requests could never be forwarded"],
        ),
        (
            SMALLEST + "limits: {prompt_blocks_max: 1048577}\n",
            ["us.yaml: limits.prompt_blocks_max: should be at most 1048576: no forward carries more"],
        ),
    ],
)
def test_a_fault_names_file_and_key_in_plain_words(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert faults(tmp_path, text) == expected


def test_models_may_be_left_to_the_engine(tmp_path: Path) -> None:
    file = read_region_file(write(tmp_path, SMALLEST.replace("[llama]", "auto")), environ={})
    (replica,) = file.as_config().replicas
    assert (replica.lists_models, replica.spec.models) == (True, ())
    assert file.as_document()["replicas"][0]["models"] == "auto"


def test_ranks_become_replicas_of_one_url(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, SMALLEST + "    data_parallel_ranks: 2\n"), environ={})
    assert [(each.spec.replica_id, each.rank, each.ranks) for each in config.replicas] == [
        ("us-a@0", 0, 2),
        ("us-a@1", 1, 2),
    ]
    assert {each.url for each in config.replicas} == {"http://127.0.0.1:8101"}


def test_only_an_engine_that_tells_no_load_goes_by_signs_of_life(tmp_path: Path) -> None:
    text = SMALLEST + "    dialect: openai\nprobes: {life_interval: 7s}\n"
    assert load_config(write(tmp_path, text), environ={}).replicas[0].spec.sign_of_life_ns == 7_000_000_000
    assert load_config(write(tmp_path, SMALLEST), environ={}).replicas[0].spec.sign_of_life_ns is None


def test_a_name_is_a_template_of_replicas(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret")
    text = SMALLEST + DNS + "    record: srv\n    data_parallel_ranks: 2\n    api_key_file: key\n"
    file = read_region_file(write(tmp_path, text), environ={})
    (found,) = file.as_config().dns_replicas
    assert (found.name, found.record, found.scheme, found.port) == ("llama.engines.test", "srv", "http", None)
    assert (found.template.ranks, found.template.api_key, found.template.url) == (2, "secret", "")
    assert file.engine_files() == [(tmp_path / "key").resolve()]


def test_a_region_file_knows_where_it_came_from_and_reads_its_keys_anew(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("first")
    file = read_region_file(write(tmp_path, SMALLEST + "    api_key_file: key\n"), environ={})
    assert file.path == tmp_path / "us.yaml"
    key.write_text("second")
    again = read_named_files(file, environ={})
    assert (file.as_config().replicas[0].api_key, again.as_config().replicas[0].api_key) == ("first", "second")
    assert again.as_document() == file.as_document()
    assert again.path == file.path
    key.unlink()
    with pytest.raises(ConfigError, match=r"us\.yaml: replicas\[0\]: api_key_file: .* cannot be read"):
        read_named_files(file, environ={})


DNS = """\
dns_replicas:
  - id: llama
    name: llama.Engines.test.
    models: [llama]
"""


@pytest.mark.parametrize(
    "text,expected",
    [
        (SMALLEST.replace("[llama]", "some"), "replicas[0].models: should be a valid tuple"),
        (
            SMALLEST.replace("[llama]", "auto\n    adapters: [a]"),
            "replicas[0]: adapters are listed by the engine itself where models is auto",
        ),
        (
            SMALLEST + "    data_parallel_ranks: 2\n    dialect: llamacpp\n",
            "replicas[0]: data_parallel_ranks: llamacpp has no ranks that can be asked for",
        ),
        (
            SMALLEST + "    data_parallel_ranks: 0\n",
            "replicas[0].data_parallel_ranks: should be greater than or equal to 1",
        ),
        (SMALLEST + "    tls: {ca_file: ca.pem}\n", "replicas[0]: tls: the engine is not reached by https"),
        (
            SMALLEST.replace("http:", "https:") + "    tls: {client_key: k}\n",
            "replicas[0]: tls: client_certificate and client_key are written together or not at all",
        ),
        (SMALLEST + DNS, "dns_replicas[0]: port: belongs to record: address, and SRV records name their own"),
        (
            SMALLEST + DNS + "    record: srv\n    port: 1\n",
            "dns_replicas[0]: port: belongs to record: address, and SRV records name their own",
        ),
        (
            SMALLEST + DNS.replace("llama.E", "no good.e") + "    port: 1\n",
            "dns_replicas[0].name: 'no good.engines.test.' is not a name that DNS can be asked for",
        ),
        (
            SMALLEST + DNS + "    port: 1\n    nameservers: [dns.test:53]\n",
            "dns_replicas[0]: nameservers: dns.test:53 is not an address and a port such as 10.0.0.2:53",
        ),
        (SMALLEST + DNS.replace("id: llama", "id: us-a") + "    port: 1\n", "dns_replicas[0].id: 'us-a' is used twice"),
        (
            SMALLEST + DNS + "    port: 1\n    region: us-east-1\n    jurisdiction: EU\n",
            "dns_replicas[0].jurisdiction: region us-east-1 is in US elsewhere in this file",
        ),
        (
            SMALLEST + "discovery: {interval_max: 1s}\n",
            "discovery.interval_max: is below discovery.interval_min",
        ),
        (SMALLEST + "probes: {slow_max: 1ms}\n", "probes.slow_max: is below probes.timeout"),
    ],
)
def test_faults_of_engines_and_names_are_told_by_key(tmp_path: Path, text: str, expected: str) -> None:
    assert faults(tmp_path, text) == [f"us.yaml: {expected}"]


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    text = SMALLEST.replace("us-1", "us 1").replace("region: us-east-1", "region: true")
    assert [line.split(": ")[1] for line in faults(tmp_path, text)] == ["gateway", "region"]


def test_norway_is_a_jurisdiction(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, SMALLEST.replace("US", "NO")), environ={}).place.jurisdiction == "NO"


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        load_config(tmp_path / "none.yaml", environ={})


PEER = "peers:\n  - {gateway: eu-1, region: eu-west-1, jurisdiction: EU, address: 'ADDRESS'}\n"


@pytest.mark.parametrize(
    "exposed",
    [
        "keys: keys.yaml\nlisten: {http: '0.0.0.0:8080'}\n",
        "admin_token_file: token\nlisten: {admin: '10.0.0.1:9090'}\n",
        "listen: {peers: '127.evil.example:7070'}\n",
        PEER.replace("ADDRESS", "gw.eu.example:7070"),
    ],
)
def test_beyond_this_machine_without_tls_must_be_asked_for(tmp_path: Path, exposed: str) -> None:
    (tmp_path / "token").write_text("t0ken")
    (fault,) = faults(tmp_path, SMALLEST + exposed)
    assert "beyond this machine, without TLS" in fault
    load_config(write(tmp_path, SMALLEST + exposed + "insecure: true\n"), environ={})


def test_beyond_this_machine_clients_need_keys_and_operators_a_token(tmp_path: Path) -> None:
    http = SMALLEST + "listen: {http: '0.0.0.0:8080'}\n"
    no_keys = "us.yaml: listen.http: 0.0.0.0:8080 is beyond this machine, and no `keys` file says who may call"
    assert no_keys in faults(tmp_path, http)
    load_config(write(tmp_path, http + "insecure: true\n"), environ={})
    admin = SMALLEST + "insecure: true\nlisten: {admin: '0.0.0.0:9090'}\n"
    assert faults(tmp_path, admin) == [
        "us.yaml: listen.admin: 0.0.0.0:9090 is beyond this machine, and there is no `admin_token_file`"
    ]


def test_the_operators_token_comes_from_a_file_and_is_never_shown(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken\n")
    path = write(tmp_path, SMALLEST + "admin_token_file: token\n")
    config = load_config(path, environ={})
    assert config.admin_token == "t0ken"
    assert "t0ken" not in repr(config)
    assert "t0ken" not in json.dumps(read_region_file(path, environ={}).as_document())
    (tmp_path / "token").write_text("\n")
    assert faults(tmp_path, SMALLEST + "admin_token_file: token\n") == [
        f"us.yaml: admin_token_file: {tmp_path / 'token'} holds no usable key"
    ]
    assert faults(tmp_path, SMALLEST + "admin_token_file: none\n") == [
        f"us.yaml: admin_token_file: {tmp_path / 'none'} cannot be read"
    ]


CERTIFIED = "certificate: c.pem, key: c.key"
PROTECTED = (
    f"listen: {{http: '0.0.0.0:8080', admin: '0.0.0.0:9090', peers: '0.0.0.0:7070', tls: {{{CERTIFIED}}}}}\n"
    f"peering: {{tls: {{{CERTIFIED}, roots: r.pem}}}}\n"
)


def test_with_tls_it_may_go_beyond_this_machine(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t" * 40)
    shown = "keys: keys.yaml\nadmin_token_file: token\n"
    peer = PEER.replace("ADDRESS", "gw.eu.example:7070")
    config = load_config(write(tmp_path, SMALLEST + PROTECTED + shown + peer), environ={})
    assert config.listen.tls == config.listen.admin_tls == ListenTlsConfig(tmp_path / "c.pem", tmp_path / "c.key")
    assert config.peering.tls == MeshTlsConfig(tmp_path / "c.pem", tmp_path / "c.key", tmp_path / "r.pem")


@pytest.mark.parametrize(
    "missing,exposed", [("listen", ["listen.http", "listen.admin"]), ("peering", ["listen.peers", "peers[0].address"])]
)
def test_each_kind_of_traffic_needs_tls_of_its_own(tmp_path: Path, missing: str, exposed: list[str]) -> None:
    (tmp_path / "token").write_text("t" * 40)
    document = yaml.safe_load(SMALLEST + PROTECTED + PEER.replace("ADDRESS", "gw.eu.example:7070"))
    del document[missing]["tls"]
    document |= {"keys": "keys.yaml", "admin_token_file": "token"}
    found = faults(tmp_path, yaml.safe_dump(document))
    assert [line.split(": ")[1] for line in found] == exposed
    assert all(f"without TLS ({missing}.tls)" in line for line in found)


def test_operators_on_this_machine_need_no_tls(tmp_path: Path) -> None:
    text = SMALLEST + f"listen: {{tls: {{{CERTIFIED}}}}}\n"
    assert load_config(write(tmp_path, text), environ={}).listen.admin_tls is None


def test_names_that_certificates_cannot_tell_apart_are_refused(tmp_path: Path) -> None:
    peer = PEER.replace("ADDRESS", "127.0.0.1:7071")
    text = SMALLEST + f"peering: {{tls: {{{CERTIFIED}, roots: r.pem}}}}\n" + peer
    load_config(write(tmp_path, text), environ={})
    for good, bad, path in (
        ("gateway: us-1", "gateway: us.1", "gateway"),
        ("region: us-east-1", "region: US_East", "region"),
        ("gateway: eu-1", "gateway: EU-1", "peers[0].gateway"),
        ("region: eu-west-1", "region: eu.west", "peers[0].region"),
    ):
        (fault,) = faults(tmp_path, text.replace(good, bad))
        assert fault.startswith(f"us.yaml: {path}: with peering.tls, ")


def test_calls_outlive_the_requests_they_carry(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, SMALLEST + "peering: {connection_grace: 9m}\n")
    assert fault.startswith("us.yaml: peering.connection_grace: is below limits.request_deadline")


def test_a_peer_that_behaves_has_time_to_be_heard(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, SMALLEST + "peering: {heartbeats_time_max: 4ms}\n")
    assert fault.startswith("us.yaml: peering.heartbeats_time_max: is below 5ms")


def test_peers_are_other_gateways_each_named_once(tmp_path: Path) -> None:
    peer = PEER.replace("ADDRESS", "127.0.0.1:7071")
    (config,) = load_config(write(tmp_path, SMALLEST + peer), environ={}).peers
    assert (config.spec.gateway_id, config.spec.place) == ("eu-1", Place(RegionName("eu-west-1"), Jurisdiction("EU")))
    assert config.address == Address("127.0.0.1", 7071)
    itself = peer.replace("eu-1", "us-1").replace("eu-west-1, jurisdiction: EU", "us-east-1, jurisdiction: US")
    assert faults(tmp_path, SMALLEST + itself) == [
        "us.yaml: peers[0].gateway: 'us-1' is used twice, or is this gateway"
    ]


def test_paths_start_at_the_files_own_folder(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, SMALLEST + "policy: policies/us.yaml\n"), environ={})
    assert config.policy_file == tmp_path / "policies" / "us.yaml"


def test_an_engines_key_comes_from_elsewhere_and_is_never_shown(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s3cret\n")
    path = write(tmp_path, SMALLEST + "    api_key_file: key\n")
    config = load_config(path, environ={})
    assert config.replicas[0].api_key == "s3cret"
    assert "s3cret" not in repr(config)
    assert "s3cret" not in json.dumps(read_region_file(path, environ={}).as_document())
    path = write(tmp_path, SMALLEST + "    api_key_env: ENGINE_KEY\n")
    assert load_config(path, environ={"ENGINE_KEY": "other"}).replicas[0].api_key == "other"
    assert faults(tmp_path, SMALLEST + "    api_key_env: ENGINE_KEY\n") == [
        "us.yaml: replicas[0]: api_key_env: environment variable ENGINE_KEY holds no usable key"
    ]


def test_the_environment_says_how_to_log(tmp_path: Path) -> None:
    path = write(tmp_path, SMALLEST + "logging: {format: console}\n")
    assert load_config(path, environ={}).logging.format is LogFormat.CONSOLE
    logging = load_config(path, environ={"NIGHTSIDE_LOG_FORMAT": "json", "NIGHTSIDE_LOG_LEVEL": "debug"}).logging
    assert (logging.format, logging.level) == (LogFormat.JSON, LogLevel.DEBUG)
    with pytest.raises(ConfigError, match="environment: NIGHTSIDE_LOG_FORMAT: 'xml' is not one of auto, json, console"):
        load_config(path, environ={"NIGHTSIDE_LOG_FORMAT": "xml"})


@pytest.mark.parametrize(
    "text,duration_ns", [("1ns", 1), ("100ms", 10**8), ("0.5us", 500), ("2m", 120 * 10**9), ("1.25 h", 4500 * 10**9)]
)
def test_durations(text: str, duration_ns: int) -> None:
    assert parse_duration_ns(text) == duration_ns
    assert parse_duration_ns(format_duration(duration_ns)) == duration_ns


@pytest.mark.parametrize("text", ["", "5", "-1s", "1 fortnight", "s", "0.5ns", "1e3s", None, 5, "٣s"])
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError):
        parse_duration_ns(text)


@pytest.mark.parametrize("text,size_bytes", [("1B", 1), ("64MiB", 64 * 2**20), ("1.5KiB", 1536), ("0B", 0)])
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size_bytes(text) == size_bytes
    assert parse_size_bytes(format_size(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    "text,address",
    [
        ("127.0.0.1:80", Address("127.0.0.1", 80)),
        ("[::1]:0", Address("::1", 0)),
        ("gw.eu.example:7000", Address("gw.eu.example", 7000)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["", "8080", ":8080", "::1:80", "a:b", "a:99999", "a:", 8080, "[]:1"])
def test_what_is_no_address(text: object) -> None:
    with pytest.raises(ValueError, match="is not an address such as"):
        parse_address(text)


def test_loopback_is_judged_by_address_not_by_spelling() -> None:
    assert parse_address("127.9.9.9:1").is_loopback
    assert parse_address("[::1]:1").is_loopback
    assert parse_address("localhost:1").is_loopback
    assert not parse_address("127.0.0.1.example:1").is_loopback
    assert not parse_address("[::]:1").is_loopback


EXAMPLES = Path(__file__).parents[3] / "docs/examples"
ENVIRON = {"ENGINE_API_KEY": "k"}


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
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
    without_default = ("gateway", "region", "jurisdiction", "policy", "replicas", "dns_replicas", "peers")
    own = {key: effective[key] for key in without_default}
    own |= {section: {"tls": effective[section]["tls"]} for section in ("listen", "peering")}
    assert effective == read_region_file(write(tmp_path, yaml.safe_dump(own)), ENVIRON).as_document()
