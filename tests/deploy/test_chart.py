"""The Helm chart: the real helm renders it, Kubernetes' schemas validate the result, and the product's files in it are
checked by the programs that read them.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from gateway.app.commands import cli
from gateway.security.dev_certs_cli import dev_certs
from gateway.security.keys_cli import keys
from mesh.values import SECOND_NS, parse_duration_ns
from tests.deploy.charts import CHART, EXAMPLES, PYTHON, Rendered, helm, of_example, refusal, render
from tests.support.processes import gateway_process

MONITORING = json.loads(Path(__file__).with_name("monitoring.schema.json").read_text())
VERSIONS = ["1.30", "1.34"]
"""Versions of Kubernetes: the oldest that is tested, and a recent one."""
US, EU = (next(each for each in EXAMPLES if each.stem == name) for name in ("us-east-1", "eu-west-1"))


@pytest.fixture(scope="module", params=EXAMPLES, ids=lambda example: example.stem)
def rendered(request: pytest.FixtureRequest) -> Rendered:
    return render(*of_example(request.param))


@pytest.fixture(scope="module")
def us() -> Rendered:
    return render(*of_example(US))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_helm_finds_nothing_wrong_with_the_chart(example: Path) -> None:
    done = helm("lint", CHART, "--strict", *of_example(example))
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_schemas_are_kept(rendered: Rendered, version: str, tmp_path: Path) -> None:
    core = [each for each in rendered.manifests if not each["apiVersion"].startswith("monitoring.coreos.com")]
    assert core
    file = tmp_path / "manifests.yaml"
    file.write_text(yaml.safe_dump_all(core))
    done = validated(file, version)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARN" not in done.stdout + done.stderr, "a kind without a schema"


def validated(file: Path, version: str) -> subprocess.CompletedProcess[str]:
    program = [str(PYTHON.with_name("kubernetes-validate")), "-k", version, "--strict", str(file)]
    return subprocess.run(program, capture_output=True, text=True)


def test_a_misspelt_key_is_found(us: Rendered, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(us.text.replace("terminationGracePeriodSeconds", "terminationGraceSeconds"))
    assert validated(broken, VERSIONS[-1]).returncode == 1


def test_what_is_for_prometheus_operator_keeps_our_schema_of_it(us: Rendered) -> None:
    found = [*us.all_of("ServiceMonitor"), *us.all_of("PrometheusRule")]
    assert [each["metadata"]["name"] for each in found] == ["us-east-1", "controller", "us-east-1"]
    for each in found:
        jsonschema.validate(each, MONITORING)
    found[0]["spec"]["endpoints"][0]["bearerToken"] = "x"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found[0], MONITORING)


def test_the_rules_in_it_are_those_of_the_repository(us: Rendered) -> None:
    (rule,) = us.all_of("PrometheusRule")
    written = (CHART.parents[1] / "prometheus/nightside.rules.yaml").read_text()
    assert rule["spec"] == yaml.safe_load(written)


# Contents of each pod


class Pod:
    """Pod of a gateway or controller, with its volumes laid out in a folder as a kubelet would mount them."""

    def __init__(self, rendered: Rendered, stateful_set: str, ordinal: int, folder: Path) -> None:
        self.name = f"{stateful_set}-{ordinal}"
        self.set = rendered.one("StatefulSet", stateful_set)
        self.spec = self.set["spec"]["template"]["spec"]
        (self.container,) = self.spec["containers"]
        self.folder = folder
        self._rendered = rendered
        for mount in self.container["volumeMounts"]:
            place = self.at(mount["mountPath"])
            place.mkdir(parents=True, exist_ok=True)
            self._fill(place, mount["name"])

    def at(self, path: str) -> Path:
        return self.folder / path.lstrip("/")

    def _fill(self, place: Path, volume: str) -> None:
        given = [each for each in self.spec["volumes"] if each["name"] == volume]
        if given and "configMap" in given[0]:
            for name, text in self._rendered.one("ConfigMap", given[0]["configMap"]["name"])["data"].items():
                (place / name).write_text(text.replace("/etc/nightside", str(self.at("/etc/nightside"))))
            return
        claimed = {each["metadata"]["name"] for each in self.set["spec"]["volumeClaimTemplates"]}
        assert given or volume in claimed, f"{volume} is mounted, and nothing says what it is"

    @property
    def arguments(self) -> list[str]:
        """Arguments as the kubelet would pass them."""
        (variable,) = (each for each in self.container["env"] if each["name"] == "POD_NAME")
        assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
        filled = [each.replace("$(POD_NAME)", self.name) for each in self.container["args"]]
        return [each.replace("/etc/nightside", str(self.at("/etc/nightside"))) for each in filled]

    def move(self, free_port: Callable[[], int]) -> dict[str, int]:
        """Move the state folder and the ports to this machine; return the new ports by name."""
        file = Path(self.arguments[2])
        ports = {each["name"]: each["containerPort"] for each in self.container["ports"]}
        here = {name: free_port() for name in ports}
        text = file.read_text().replace("/var/lib/nightside", str(self.at("/var/lib/nightside")))
        for name, port in ports.items():
            assert f"0.0.0.0:{port}" in text, "a port that the container says it has"
            text = text.replace(f"0.0.0.0:{port}", f"0.0.0.0:{here[name]}")
        file.write_text(text)
        return here

    def certificate(self) -> tuple[str, str]:
        """URI and DNS name of the certificate that cert-manager is asked for."""
        (volume,) = (each for each in self.spec["volumes"] if each["name"] == "mesh")
        asked = volume["csi"]["volumeAttributes"]
        return tuple(
            asked[f"csi.cert-manager.io/{key}"].replace("${POD_NAME}", self.name) for key in ("uri-sans", "dns-names")
        )


def fill_with_secrets(pod: Pod, region: str) -> None:
    """Put the secrets in place that a cluster's operator provides."""
    made = pod.folder / "made"
    told = ["--trust-domain", "mesh.example.net", "--gateway", f"{pod.name}:{region}", "--controller", "controller-0"]
    invoke(dev_certs, made, *told, "--controller", "controller-1")
    etc = pod.at("/etc/nightside")
    is_gateway = pod.name.startswith(region)
    if is_gateway:
        invoke(keys, "add", etc / "keys/keys.yaml", "--id", "demo", "--tenant", "demo")
    for place in ("clients", "operators"):
        if (etc / place).is_dir():
            (etc / place / "tls.crt").write_bytes(
                (made / f"{region}-0.clients.pem").read_bytes() if is_gateway else b""
            )
            (etc / place / "tls.key").write_bytes(
                (made / f"{region}-0.clients.key").read_bytes() if is_gateway else b""
            )
    own = made / (f"{pod.name}.peers" if is_gateway else f"{pod.name}.controller")
    for certificate in ("tls.crt", f"{pod.name}.pem"):
        (etc / "mesh" / certificate).write_bytes(own.with_name(own.name + ".pem").read_bytes())
    for key in ("tls.key", f"{pod.name}.key"):
        (etc / "mesh" / key).write_bytes(own.with_name(own.name + ".key").read_bytes())
    for roots in ("ca.crt", "roots.pem"):
        (etc / "mesh" / roots).write_bytes((made / "roots.pem").read_bytes())
    for secret in ("admin/token", "cache/secret", "secrets/password", "secrets/ca.pem"):
        if (etc / secret).parent.is_dir():
            (etc / secret).write_text("not-a-real-one")
    for file in etc.rglob("*"):
        file.chmod(0o750 if file.is_dir() else 0o640)


def invoke(command: Any, *arguments: object) -> None:
    result = CliRunner().invoke(command, [str(each) for each in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_each_gateways_file_is_one_that_it_would_start_with(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`gateway check` accepts each file, certificates and policy included, without warnings."""
    in_a_cluster(tmp_path, monkeypatch)
    region = example.stem
    pod = Pod(render(*of_example(example)), region, 0, tmp_path)
    fill_with_secrets(pod, region)
    assert pod.arguments[:2] == ["gateway", "run"]
    result = CliRunner().invoke(cli, ["check", pod.arguments[2]], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "warning" not in result.stderr
    written = yaml.safe_load(result.stdout)
    assert (written["gateway"], written["region"]) == (f"{region}-0", region)
    assert f"{region}-1" in [each["gateway"] for each in written["peers"]]


async def test_a_pods_command_line_starts_answers_its_probes_and_ends_as_the_chart_says(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int]
) -> None:
    """The command line is taken word for word, with ports of this machine."""
    pod = Pod(render(*of_example(EU)), "eu-west-1", 0, tmp_path)
    fill_with_secrets(pod, "eu-west-1")
    here = pod.move(unused_tcp_port_factory)
    async with gateway_process(tmp_path, run=[sys.executable, "-m", "nightside", *pod.arguments]) as running:
        async with aiohttp.ClientSession() as session:
            for kind in ("startup", "liveness", "readiness"):
                probe = pod.container[f"{kind}Probe"]["httpGet"]
                url = f"{probe['scheme'].lower()}://127.0.0.1:{here[probe['port']]}{probe['path']}"
                async with session.get(url, ssl=False) as answer:
                    assert answer.status == 200, url
        running.signal(signal.SIGTERM)
        assert await running.process.wait() == 0


def in_a_cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "account").mkdir()
    (folder / "account/namespace").write_text("mesh")
    environ = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "NIGHTSIDE_SERVICE_ACCOUNT": str(folder / "account")}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)


def test_each_controllers_file_is_one_that_it_would_start_with(us: Rendered, tmp_path: Path) -> None:
    from controller.commands import cli as controller_cli  # noqa: PLC0415 - of this one test

    for ordinal in (0, 1):
        pod = Pod(us, "controller", ordinal, tmp_path / str(ordinal))
        fill_with_secrets(pod, "us-east-1")
        clients = pod.folder / "made/us-east-1-0.clients"
        invoke(
            dev_certs, pod.folder / "made", "--trust-domain", "mesh.example.net", "--gateway", "us-east-1-0:us-east-1"
        )
        for suffix, name in (("pem", "tls.crt"), ("key", "tls.key")):
            (pod.at("/etc/nightside/operators") / name).write_bytes(
                clients.with_name(f"{clients.name}.{suffix}").read_bytes()
            )
        assert pod.arguments[:2] == ["controller", "run"]
        result = CliRunner().invoke(controller_cli, ["check", pod.arguments[2]], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        assert yaml.safe_load(result.stdout)["controller"] == f"controller-{ordinal}"


def test_each_pod_has_a_certificate_in_its_own_name(us: Rendered, tmp_path: Path) -> None:
    assert Pod(us, "us-east-1", 1, tmp_path / "g").certificate() == (
        "spiffe://mesh.example.net/gateway/us-east-1/us-east-1-1",
        "us-east-1-1.us-east-1.gateway.mesh.example.net",
    )
    assert Pod(us, "controller", 1, tmp_path / "c").certificate() == (
        "spiffe://mesh.example.net/controller/controller-1",
        "controller.mesh.example.net",
    )


def test_each_gateway_has_an_address_of_its_own(us: Rendered) -> None:
    for ordinal in (0, 1):
        service = us.one("Service", f"us-east-1-{ordinal}-peers")
        assert service["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] == f"us-east-1-{ordinal}"
        file = yaml.safe_load(us.one("ConfigMap", "us-east-1-regions")["data"][f"us-east-1-{ordinal}.yaml"])
        assert file["control"]["peer_address"] == f"us-east-1-{ordinal}.peers.example.net:7070"
        sibling = f"us-east-1-{1 - ordinal}"
        assert [each["address"] for each in file["peers"]] == [f"{sibling}.us-east-1-peers.mesh.svc:7070"]
    headless = us.one("Service", "us-east-1-peers")["spec"]
    assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)


# Rights of a pod, and where it runs


def test_pods_may_write_nowhere_but_their_state_and_are_nobody(rendered: Rendered) -> None:
    for each in rendered.all_of("StatefulSet"):
        spec = each["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert (spec["securityContext"]["runAsNonRoot"], spec["securityContext"]["runAsUser"]) == (True, 65532)
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        may = container["securityContext"]
        assert (may["readOnlyRootFilesystem"], may["allowPrivilegeEscalation"]) == (True, False)
        assert may["capabilities"] == {"drop": ["ALL"]}
        writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
        assert writable == {"/var/lib/nightside", "/tmp"}
        assert re.fullmatch(r"[^@]+@sha256:[0-9a-f]{64}", container["image"])


def test_pods_of_a_kind_stand_apart_and_go_one_by_one(rendered: Rendered) -> None:
    for each in rendered.all_of("StatefulSet"):
        spec, wanted = each["spec"]["template"]["spec"], each["spec"]["selector"]
        (apart,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (spread,) = spec["topologySpreadConstraints"]
        budget = rendered.one("PodDisruptionBudget", each["metadata"]["name"])["spec"]
        assert apart["labelSelector"] == spread["labelSelector"] == budget["selector"] == wanted
        assert (apart["topologyKey"], spread["topologyKey"]) == (
            "kubernetes.io/hostname",
            "topology.kubernetes.io/zone",
        )
        assert budget["maxUnavailable"] == 1
        assert wanted["matchLabels"].items() <= each["spec"]["template"]["metadata"]["labels"].items()


def test_a_drain_has_the_time_that_the_longest_request_may_take(rendered: Rendered) -> None:
    for each in rendered.all_of("StatefulSet"):
        spec = each["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        if container["name"] != "gateway":
            continue
        (hook,) = [int(container["lifecycle"]["preStop"]["exec"]["command"][1])]
        for text in rendered.one("ConfigMap", f"{each['metadata']['name']}-regions")["data"].values():
            limits = yaml.safe_load(text)["limits"]
            drain_s, deadline_s = (parse_duration_ns(limits[key]) / SECOND_NS for key in ("drain", "request_deadline"))
            assert drain_s >= deadline_s
            assert spec["terminationGracePeriodSeconds"] >= hook + drain_s + 30


def test_probes_ask_what_answers_during_a_drain_and_of_controllers_what_one_that_stands_by_answers(
    us: Rendered,
) -> None:
    def asked(stateful_set: str) -> dict[str, str]:
        (container,) = us.one("StatefulSet", stateful_set)["spec"]["template"]["spec"]["containers"]
        return {probe: container[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "liveness", "readiness")}

    assert asked("us-east-1") == {"startup": "/health", "liveness": "/health", "readiness": "/ready"}
    assert set(asked("controller").values()) == {"/health"}


def test_only_discovery_shows_pods_the_api_and_may_look_and_nothing_else(us: Rendered) -> None:
    assert us.one("StatefulSet", "us-east-1")["spec"]["template"]["spec"]["automountServiceAccountToken"] is True
    assert us.one("StatefulSet", "controller")["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    (role,) = us.all_of("Role")
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"list", "watch"}
    assert {name for rule in role["rules"] for name in rule["resources"]} == {"endpointslices", "pods"}
    assert render(*of_example(EU)).all_of("Role") == []


def test_a_network_policy_opens_three_doors_and_says_to_whom(us: Rendered) -> None:
    (doors,) = (
        each["spec"]["ingress"] for each in us.all_of("NetworkPolicy") if each["metadata"]["name"] != "controller"
    )
    assert [door["ports"][0]["port"] for door in doors] == ["clients", "peers", "admin"]
    assert "from" not in doors[0]
    assert doors[1]["from"][1] == {"ipBlock": {"cidr": "198.51.100.0/24"}}
    assert doors[2]["from"][1]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "monitoring"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (["--set", "image.digest=latest"], "digest"),
        (["--set", "image.digst=x"], "digst"),
        (["--set", "drainSeconds=30"], "drainSeconds is below requestDeadlineSeconds"),
        (["--set", "config.limits.drain=30s"], "limits"),
        (["--set", "config.insecure=true"], "config"),
        (["--set", "keysSecret="], "keysSecret"),
        (["--set", "controller.config.store.kind=sqlite"], "two controllers cannot share"),
        (["--set", "certificates.peers.issuer="], "certificates.peers.issuer is missing"),
        (["--set", "region=US East"], "region"),
    ],
)
def test_values_that_cannot_be_meant_are_refused_by_name(changed: list[str], said: str) -> None:
    assert said in refusal(*of_example(US), *changed)


def test_nothing_that_has_to_be_looked_up_has_a_default() -> None:
    said = refusal()
    for key in ("image", "region", "jurisdiction", "trustDomain", "policy", "keysSecret", "adminTokenSecret"):
        assert key in said
