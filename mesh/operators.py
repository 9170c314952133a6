"""Authenticates operators at an admin address and gives them roles, by tokens in files and by tokens of an issuer.

It logs no credential, keeps none but those of its files, and answers no request.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from mesh.faults import ConfigError, KeyFaults
from mesh.operators_config import OperatorsConfig, Role
from mesh.reloader import ReloadRefused
from mesh.values import read_secret

_ROLES = tuple(Role)


class Operator(Struct, frozen=True):
    """Caller with a verified credential."""

    name: str
    """Name for logs and records; empty where no credential is required."""
    role: Role

    def may(self, needed: Role) -> bool:
        return _ROLES.index(self.role) >= _ROLES.index(needed)


ANY_OPERATOR = Operator("", Role.CHANGE)
"""Operator of every request where no credential is required."""
HOLDER_OF_ALL = Operator("admin-token", Role.CHANGE)
"""Operator with the token of `admin_token_file`."""


def told_of(by: Operator) -> dict[str, object]:
    """Fields for a log line about an operator's command."""
    return {"operator": by.name, "role": by.role} if by.name else {}


class NotAnOperator(Exception):
    """Reason why a credential is refused, in words that may be shown to the caller."""


@dataclass(frozen=True, slots=True)
class _Kept:
    operator: Operator
    secret: bytes = field(repr=False)


Verify = Callable[[str], Awaitable[Operator | None]]
"""Callback that returns the operator of an issuer's token; None for a token of no issuer. Raises NotAnOperator."""


class Operators:
    """Operators of a program. Their files are read at the start, and again when they change."""

    def __init__(
        self, admin_token: str | None = None, config: OperatorsConfig | None = None, verify: Verify | None = None
    ) -> None:
        """Read the tokens. Raises ConfigError."""
        self._admin_token = admin_token
        self._config = config or OperatorsConfig()
        self._verify = verify
        self._kept = self._read()

    @property
    def are_asked(self) -> bool:
        """Return whether callers must show a credential."""
        return bool(self._kept) or self._verify is not None

    async def identify(self, credential: str) -> Operator:
        """Return the operator with this credential. A token of a file needs no issuer to be reachable. Raises
        NotAnOperator."""
        if not self.are_asked:
            return ANY_OPERATOR
        if (known := self._holder_of(credential)) is not None:
            return known
        if credential and self._verify is not None and (verified := await self._verify(credential)) is not None:
            return verified
        raise NotAnOperator("show an operator's token as a bearer token")

    def files(self) -> list[Path]:
        return list(self._config.secret_files())

    async def reload(self) -> None:
        """Read the files again; called by the Reloader."""
        try:
            self._kept = await asyncio.to_thread(self._read)
        except ConfigError as error:
            raise ReloadRefused(str(error)) from error

    def _holder_of(self, credential: str) -> Operator | None:
        """Operator with this token. Every known token is compared, in a time that does not depend on where they
        differ."""
        shown = credential.encode("utf-8", "surrogateescape")
        held = [each.operator for each in self._kept if hmac.compare_digest(shown, each.secret)]
        return held[0] if held else None

    def _read(self) -> list[_Kept]:
        kept = [] if self._admin_token is None else [_Kept(HOLDER_OF_ALL, _bytes(self._admin_token))]
        for index, each in enumerate(self._config.tokens):
            try:
                secret = read_secret(each.token_file, f"operators.tokens[{index}].token_file")
            except KeyFaults as fault:
                raise ConfigError(str(fault)) from fault
            kept.append(_Kept(Operator(each.name, each.role), _bytes(secret)))
        _refuse_shared(kept)
        return kept


def _bytes(secret: str) -> bytes:
    return secret.encode()


def _refuse_shared(kept: Sequence[_Kept]) -> None:
    """Refuse a token that two operators share: its commands could be attributed to neither."""
    seen: dict[bytes, str] = {}
    for each in kept:
        other = seen.setdefault(each.secret, each.operator.name)
        if other != each.operator.name:
            raise ConfigError(f"operators.tokens: {other} and {each.operator.name} have the same token")
