"""Kubernetes settings of a region file, and what a process reads about its own cluster. It calls no API."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated

from msgspec import Struct
from pydantic import AfterValidator, Strict

from gateway.config.targets import KubernetesApi
from mesh.whole_files import read_whole

SERVICE_ACCOUNT_VARIABLE = "NIGHTSIDE_SERVICE_ACCOUNT"
"""Environment variable with the folder of the pod's token, if not the usual one."""
_SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SELECTOR = re.compile(r"[A-Za-z0-9._/,=!() -]{1,1024}")


class KubernetesCluster(Struct, frozen=True):
    """Cluster that this process runs in."""

    api: KubernetesApi
    namespace: str | None


def cluster_around(environ: Mapping[str, str]) -> KubernetesCluster | None:
    """Return the cluster described by a pod's environment; None outside of a cluster."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        return None
    folder = Path(environ.get(SERVICE_ACCOUNT_VARIABLE, _SERVICE_ACCOUNT))
    bracketed = f"[{host}]" if ":" in host else host
    api = KubernetesApi(f"https://{bracketed}:{port}", folder / "token", folder / "ca.crt")
    return KubernetesCluster(api, _namespace_in(folder / "namespace"))


def _namespace_in(file: Path) -> str | None:
    try:
        text = read_whole(file).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if _LABEL.fullmatch(text) else None


def _check_namespace(text: str) -> str:
    if _LABEL.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not the name of a namespace")
    return text


def _check_port_name(text: str) -> str:
    if _PORT_NAME.fullmatch(text) is None:
        raise ValueError(f"{text!r} is neither a port nor the name of one")
    return text


def _check_selector(text: str) -> str:
    if _SELECTOR.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a selector such as app=vllm,tier=engines")
    return text


def _check_network(text: str) -> str:
    as_network(text)
    return text


def as_network(text: str) -> IPv4Network | IPv6Network:
    """Parse a network such as 10.244.0.0/16. Raises ValueError."""
    if "/" not in text:
        raise ValueError(f"{text[:64]!r} is not a network such as 10.244.0.0/16")
    return ip_network(text)


Namespace = Annotated[str, Strict(), AfterValidator(_check_namespace)]
PortName = Annotated[str, Strict(), AfterValidator(_check_port_name)]
Network = Annotated[str, Strict(), AfterValidator(_check_network)]
Selector = Annotated[str, Strict(), AfterValidator(_check_selector)]
