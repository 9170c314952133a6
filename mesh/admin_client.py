"""Client of a running program's admin address, for commands. It decides nothing."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import aiohttp
import click
import msgspec
from msgspec import Struct

from mesh.bodies import read_body
from mesh.environment import PROCESS_ENVIRONMENT
from mesh.private_files import open_to_others
from mesh.whole_files import read_whole

TOKEN_VARIABLE = "NIGHTSIDE_ADMIN_TOKEN"  # noqa: S105 - a name
ADMIN_URL = "http://127.0.0.1:9900"
TIMEOUT_S = 15.0
"""Seconds for one call of a command; the program may pass it on to peers, each of which has some seconds."""
ANSWER_BYTES_MAX = 64 << 20


class AdminFault(click.ClickException):
    """The program could not be reached, or refused the call. Exit code 1."""


class PermissionDenied(AdminFault):
    """The operator is known but lacks the permission: nothing has changed."""


@dataclass(frozen=True, slots=True)
class Admin:
    """Admin address of a program, with the token and the certificates to use."""

    url: str
    token: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    timeout_s: float = TIMEOUT_S
    """Seconds for one call."""

    def ask(self, method: str, path: str, body: object | None = None) -> AdminAnswer:
        """Make one call. Raises AdminFault where there is no answer, or where it refuses the caller (401 or 403)."""
        return asyncio.run(self.answer(method, path, body))

    async def answer(self, method: str, path: str, body: object | None = None) -> AdminAnswer:
        """Make one call as `ask` does, for a program with an event loop."""
        try:
            answer = await self._ask(method, path, body)
        except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
            raise AdminFault(f"{self.url} cannot be reached: {_in_words(error, self.timeout_s)}") from error
        if answer.status in (401, 403):
            kind = AdminFault if answer.status == 401 else PermissionDenied
            raise kind(f"{self.url}: {answer.fault}")
        return answer

    async def _ask(self, method: str, path: str, body: object | None) -> AdminAnswer:
        headers = {} if self.token is None else {"authorization": f"Bearer {self.token}"}
        data = None
        if body is not None:
            data, headers["content-type"] = msgspec.json.encode(body), "application/json"
        tls = ssl.create_default_context(cafile=self.ca_file) if self.ca_file is not None else True
        timeout = aiohttp.ClientTimeout(total=self.timeout_s)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            url = f"{self.url.rstrip('/')}{path}"
            async with session.request(method, url, data=data, headers=headers, ssl=tls) as response:
                return AdminAnswer(response.status, await read_body(response, ANSWER_BYTES_MAX))


def _in_words(error: Exception, timeout_s: float) -> str:
    """Reason for the user who typed the address, with what to check."""
    if isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError):
        return "it is not an address such as http://127.0.0.1:9900"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not trusted ({error.certificate_error}); name its authority by --ca-file"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"the name {error.host} cannot be resolved"
    if isinstance(error, ConnectionRefusedError) or getattr(error, "errno", None) == errno.ECONNREFUSED:
        return (
            "nothing listens there. Does it run, and is this its admin address? Its log says so as it starts (--admin)"
        )
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:.0f} s"
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError):
        return "what listens there closed the connection: is it an admin address, and http or https as written here?"
    return str(error) or type(error).__name__


class AdminAnswer(Struct, frozen=True):
    status: int
    body: bytes

    @property
    def fault(self) -> str:
        """Error message of an answer that is no success."""
        try:
            return str(msgspec.json.decode(self.body)["error"])
        except (msgspec.DecodeError, KeyError, TypeError):
            return f"the gateway answered with status {self.status}"


def admin_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--admin`, `--token-file` and `--ca-file`, as its argument `admin`."""
    return admin_options_at(ADMIN_URL)(command)


def admin_options_at(default_url: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Do as `admin_options`, for a program with another default address."""

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        @click.option(
            "--admin",
            "url",
            default=default_url,
            show_default=True,
            metavar="URL",
            help="Set the URL of the admin address.",
        )
        @credential_options
        @wraps(command)
        def with_admin(*, url: str, token: str | None, ca_file: Path | None, **others: Any) -> None:
            command(Admin(url, token, ca_file), **others)

        return with_admin

    return with_options


def credential_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--token-file` and `--ca-file`, as its arguments `token` and `ca_file`."""

    @click.option(
        "--token-file",
        type=click.Path(path_type=Path),
        help=f"Read the operator's token from this file, instead of from {TOKEN_VARIABLE}.",
    )
    @click.option(
        "--ca-file",
        type=click.Path(path_type=Path),
        help="Verify an https address by this file of CA certificates (PEM).",
    )
    @wraps(command)
    def with_credentials(*, token_file: Path | None, **others: Any) -> None:
        command(token=secret_in(token_file, "--token-file", PROCESS_ENVIRONMENT, TOKEN_VARIABLE), **others)

    return with_credentials


def secret_in(file: Path | None, option: str, environ: Mapping[str, str], variable: str) -> str | None:
    """Token or key from the file that an option names, or from the environment variable, which suits short-lived tokens
    that a command prints."""
    if file is None:
        return environ.get(variable, "").strip() or None
    try:
        secret = read_whole(file).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{file} cannot be read", param_hint=option) from error
    for path, mode in open_to_others([file]):
        click.echo(f"warning: {path} has mode {mode}, and should have 0640 or less", err=True)
    return secret
