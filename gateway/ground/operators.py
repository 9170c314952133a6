"""Who may ask at an admin address, and how much each may do: by tokens that lie in files, and by those of an issuer.

It logs no credential, keeps none but those of its files, and answers nobody.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gateway.ground.faults import ConfigError, KeyFaults
from gateway.ground.operators_config import OperatorsConfig, Role
from gateway.ground.reloader import ReloadRefused
from gateway.ground.values import read_secret

_ROLES = tuple(Role)


@dataclass(frozen=True, slots=True)
class Operator:
    """Somebody who asked, and proved it."""

    name: str
    """For logs and records; empty where nobody has to prove anything."""
    role: Role

    def may(self, needed: Role) -> bool:
        return _ROLES.index(self.role) >= _ROLES.index(needed)


ANYBODY = Operator("", Role.CHANGE)
"""Where operators show nothing: whoever reaches the address."""
HOLDER_OF_ALL = Operator("admin-token", Role.CHANGE)
"""Who has the token of `admin_token_file`."""


def told_of(by: Operator) -> dict[str, object]:
    """For a line of log about what somebody ordered."""
    return {"operator": by.name, "role": by.role} if by.name else {}


class NotAnOperator(Exception):
    """Why a credential opens nothing, in words that may be told to whoever showed it."""


@dataclass(frozen=True, slots=True)
class _Kept:
    operator: Operator
    secret: bytes = field(repr=False)


Verify = Callable[[str], Awaitable[Operator | None]]
"""Who an issuer says that the holder of this token is; None for what is no token of an issuer's. Raises
NotAnOperator."""


class Operators:
    """Knows them. Files are read at the start, and anew when they change."""

    def __init__(
        self, admin_token: str | None = None, config: OperatorsConfig | None = None, verify: Verify | None = None
    ) -> None:
        """Raises ConfigError."""
        self._admin_token = admin_token
        self._config = config or OperatorsConfig()
        self._verify = verify
        self._kept = self._read()

    @property
    def are_asked(self) -> bool:
        """Whether anybody has to show anything."""
        return bool(self._kept) or self._verify is not None

    async def identify(self, credential: str) -> Operator:
        """Who shows this. A token of a file needs nobody else to be there. Raises NotAnOperator."""
        if not self.are_asked:
            return ANYBODY
        if (known := self._holder_of(credential)) is not None:
            return known
        if credential and self._verify is not None and (verified := await self._verify(credential)) is not None:
            return verified
        raise NotAnOperator("show an operator's token as a bearer token")

    def files(self) -> list[Path]:
        return list(self._config.secret_files())

    async def reload(self) -> None:
        """For the Reloader."""
        try:
            self._kept = await asyncio.to_thread(self._read)
        except ConfigError as error:
            raise ReloadRefused(str(error)) from error

    def _holder_of(self, credential: str) -> Operator | None:
        """Each is compared, in the same time whether and wherever they differ."""
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
    """Of one token that is two operators' nobody could say whose order it was."""
    seen: dict[bytes, str] = {}
    for each in kept:
        other = seen.setdefault(each.secret, each.operator.name)
        if other != each.operator.name:
            raise ConfigError(f"operators.tokens: {other} and {each.operator.name} have the same token")
