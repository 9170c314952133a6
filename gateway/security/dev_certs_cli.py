"""`nightside dev-certs`: makes a certificate authority and certificates for trying TLS. It overwrites no file unless
told to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import yaml
from msgspec import Struct

from gateway.core.vocabulary import GatewayId, Jurisdiction, RegionName
from gateway.security.development_ca import DevelopmentCa, Issued, validity
from mesh.clock import Clock
from mesh.identity import ControllerIdentity, MeshIdentity, is_trust_domain
from mesh.values import CERTIFICATE_NAME_PATTERN

ROOTS = "roots.pem"
CA_KEY = "development-ca.key"

_CA_DAYS = 3650
_HOSTS = ("localhost", "127.0.0.1", "::1")
_SECRET_MODE = 0o600
_PUBLIC_MODE = 0o644

_Snippets = dict[str, dict[str, object]]
"""Parts of configuration files, by gateway or controller."""


class _Files(Struct, frozen=True):
    """Paths of one gateway's certificates and keys."""

    folder: Path
    gateway_id: GatewayId

    def pair(self, use: str) -> tuple[Path, Path]:
        return self.folder / f"{self.gateway_id}.{use}.pem", self.folder / f"{self.gateway_id}.{use}.key"

    def all(self) -> list[Path]:
        return [*self.pair("clients"), *self.pair("peers")]

    def snippet(self) -> dict[str, object]:
        """Part of the region file that names these files."""
        clients, peers = ([str(path) for path in self.pair(use)] for use in ("clients", "peers"))
        return {
            "listen": {"tls": {"certificate": clients[0], "key": clients[1]}},
            "peering": {"tls": {"certificate": peers[0], "key": peers[1], "roots": str(self.folder / ROOTS)}},
        }


class _ControllerFiles(Struct, frozen=True):
    """Paths of one controller's certificate and key."""

    folder: Path
    name: str

    def pair(self) -> tuple[Path, Path]:
        return self.folder / f"{self.name}.controller.pem", self.folder / f"{self.name}.controller.key"

    def snippet(self) -> dict[str, object]:
        """Part of the controller's file that names these files."""
        certificate, key = map(str, self.pair())
        return {"tls": {"certificate": certificate, "key": key, "roots": str(self.folder / ROOTS)}}


def _read_trust_domain(_: click.Context, __: click.Parameter, text: str) -> str:
    if not is_trust_domain(text):
        raise click.BadParameter(f"{text!r} should look like a host name in small letters, such as mesh.local")
    return text


_Gateway = tuple[GatewayId, RegionName, Jurisdiction | None]


def _read_gateways(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> list[_Gateway]:
    gateways: dict[str, _Gateway] = {}
    for text in texts:
        gateway_id, _colon, place = text.partition(":")
        region, colon, jurisdiction = place.partition(":")
        names = [gateway_id, region, *([jurisdiction.lower()] if colon else [])]
        if not all(map(CERTIFICATE_NAME_PATTERN.fullmatch, names)):
            raise click.BadParameter(
                f"{text!r} is not GATEWAY:REGION, both of small letters, digits and inner dashes, nor"
                " GATEWAY:REGION:JURISDICTION"
            )
        if gateway_id in gateways:
            raise click.BadParameter(f"gateway {gateway_id} is named twice")
        gateways[gateway_id] = GatewayId(gateway_id), RegionName(region), Jurisdiction(jurisdiction) if colon else None
    return list(gateways.values())


def _read_controllers(_: click.Context, __: click.Parameter, names: tuple[str, ...]) -> list[str]:
    for name in names:
        if not CERTIFICATE_NAME_PATTERN.fullmatch(name):
            raise click.BadParameter(f"{name!r} should be small letters, digits and inner dashes")
    return list(dict.fromkeys(names))


@click.command("dev-certs")
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--trust-domain", required=True, callback=_read_trust_domain, help="Set the trust domain that certificates name."
)
@click.option(
    "--gateway",
    "gateways",
    multiple=True,
    metavar="GATEWAY:REGION[:JURISDICTION]",
    callback=_read_gateways,
    help="Create a certificate of this gateway, named as in its region file; repeatable.",
)
@click.option(
    "--controller",
    "controllers",
    multiple=True,
    metavar="NAME",
    callback=_read_controllers,
    help="Create a certificate of this controller; repeatable.",
)
@click.option(
    "--host", "hosts", multiple=True, help="Add a name or address by which clients reach the gateways; repeatable."
)
@click.option(
    "--days", type=click.IntRange(1, 365), default=30, show_default=True, help="Set the days until certificates expire."
)
@click.option("--renew", is_flag=True, help="Replace these gateways' certificates, and keep the authority.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of parts of region files.")
def dev_certs(
    *,
    out: Path,
    trust_domain: str,
    gateways: list[_Gateway],
    controllers: list[str],
    hosts: tuple[str, ...],
    days: int,
    renew: bool,
    as_json: bool,
) -> None:
    """Create a certificate authority in OUT, and certificates for gateways and controllers. For development only.

    What is in OUT already is kept: further gateways and controllers get certificates from the same authority.
    """
    if not gateways and not controllers:
        raise click.UsageError("Missing option '--gateway' or '--controller'.")
    folder = out.resolve()
    made = [_Files(folder, gateway_id) for gateway_id, *_ in gateways]
    made_for_controllers = [_ControllerFiles(folder, name) for name in controllers]
    wanted = [path for files in made for path in files.all()] + [
        path for files in made_for_controllers for path in files.pair()
    ]
    taken = [str(path) for path in wanted if path.exists()]
    if taken and not renew:
        raise click.ClickException(
            "\n".join([*(f"{path} is there already" for path in taken), "--renew replaces them"])
        )
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        ca = _authority(folder, trust_domain)
        for files, (gateway_id, region, jurisdiction) in zip(made, gateways, strict=True):
            _issue(ca, files, MeshIdentity(trust_domain, region, gateway_id, jurisdiction), (*_HOSTS, *hosts), days)
        for each in made_for_controllers:
            _issue_for_controller(ca, each, days)
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from error
    snippets: _Snippets = {files.gateway_id: files.snippet() for files in made}
    told: _Snippets = {each.name: each.snippet() for each in made_for_controllers}
    if as_json:
        click.echo(json.dumps(_as_document(folder, trust_domain, days, snippets, told), indent=2))
    else:
        click.echo(_text(snippets, told))


def _authority(folder: Path, trust_domain: str) -> DevelopmentCa:
    """Authority in the folder, or a new one where there is none."""
    certificate, key = folder / ROOTS, folder / CA_KEY
    if not certificate.exists() and not key.exists():
        ca = DevelopmentCa.create(trust_domain, now_ns=Clock().wall_ns(), days=_CA_DAYS)
        _write_pair(certificate, key, ca.pem())
        return ca
    try:
        ca = DevelopmentCa.from_pem(Issued(certificate.read_bytes(), key.read_bytes()))
    except (ValueError, IndexError) as error:
        raise click.ClickException(f"{certificate} and {key} are no authority of this command: {error}") from error
    if ca.trust_domain != trust_domain:
        raise click.ClickException(f"{certificate} is of {ca.trust_domain}, not of {trust_domain}")
    return ca


def _issue(ca: DevelopmentCa, files: _Files, identity: MeshIdentity, hosts: tuple[str, ...], days: int) -> None:
    begins, ends = validity(Clock().wall_ns(), days)
    _write_pair(*files.pair("clients"), ca.issue_for_clients(identity.gateway_id, hosts, begins=begins, ends=ends))
    _write_pair(*files.pair("peers"), ca.issue_for_gateway(identity, begins=begins, ends=ends))


def _issue_for_controller(ca: DevelopmentCa, files: _ControllerFiles, days: int) -> None:
    begins, ends = validity(Clock().wall_ns(), days)
    identity = ControllerIdentity(ca.trust_domain, files.name)
    _write_pair(*files.pair(), ca.issue_for_controller(identity, begins=begins, ends=ends))


def _write_pair(certificate: Path, key: Path, issued: Issued) -> None:
    _write(key, issued.key_pem, _SECRET_MODE)
    _write(certificate, issued.certificate_pem, _PUBLIC_MODE)


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write the file whole or not at all; other users can read a secret file at no moment."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    draft.replace(path)


def _as_document(
    folder: Path, trust_domain: str, days: int, gateways: _Snippets, controllers: _Snippets
) -> dict[str, object]:
    expires = datetime.fromtimestamp(Clock().wall_ns() // 1_000_000_000 + 86_400 * days, UTC)
    return {
        "trust_domain": trust_domain,
        "roots": str(folder / ROOTS),
        "expires": expires.isoformat().replace("+00:00", "Z"),
        "gateways": gateways,
        "controllers": controllers,
    }


def _text(gateways: _Snippets, controllers: _Snippets) -> str:
    return "\n".join(_parts(gateways, controllers)).rstrip()


def _parts(gateways: _Snippets, controllers: _Snippets) -> Iterator[str]:
    for gateway_id, snippet in gateways.items():
        yield f"# For development only. Into the region file of {gateway_id}:"
        yield yaml.safe_dump(snippet, sort_keys=False)
    for name, snippet in controllers.items():
        yield f"# For development only. Into the file of controller {name}:"
        yield yaml.safe_dump(snippet, sort_keys=False)
