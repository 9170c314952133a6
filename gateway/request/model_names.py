"""The names that clients may use for models besides those that engines have, and the name that an answer goes by.

What a name stands for is found once, where the request comes in: from there on everybody knows it by the model's own
name, and only the client never hears that one. Nothing here looks at the fleet: whoever is asked does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from gateway.core.vocabulary import ModelName, PlaceRule, TenantName
from gateway.request.body_edits import MODEL

ModelAliases = Mapping[ModelName, tuple[ModelName, ...]]
"""What each further name stands for, the most wanted model first."""
FirstServed = Callable[[Sequence[ModelName], TenantName, PlaceRule | None, str], ModelName | None]
"""Which of several models is served to a client of a tenant, with its key's rule, whose request may follow a stored
response; None: nobody has any of them."""

_MEMBER = rb'(?<!\\)"model"[ \t\n\r]*:[ \t\n\r]*'
_NAMED = re.compile(_MEMBER + rb'(?P<name>"[^"\\]*(?:\\.[^"\\]*)*")')


class ModelNames:
    """What each client's word for a model stands for."""

    def __init__(
        self,
        aliases: Callable[[], ModelAliases] = dict,
        first_served: FirstServed = lambda names, _tenant, _process, _follows: names[0],
    ) -> None:
        """`aliases` are asked for anew each time: they change while requests come."""
        self._aliases = aliases
        self._first_served = first_served

    def stands_for(self, asked: ModelName) -> tuple[ModelName, ...]:
        """The models that may be meant by it, for most names that one alone."""
        return self._aliases().get(asked) or (asked,)

    def resolved(
        self,
        asked: ModelName,
        meant: Sequence[ModelName],
        tenant: TenantName,
        process: PlaceRule | None,
        follows: str = "",
    ) -> ModelName:
        """Which of the models that are meant it is; where nobody has any of them, the name that was asked for."""
        if len(meant) == 1 and meant[0] == asked:
            return asked
        return self._first_served(meant, tenant, process, follows) or asked

    def listed(self, served: Sequence[ModelName]) -> list[ModelName]:
        """With each further name that stands for one of those that are served."""
        known = set(served)
        further = (name for name, meant in self._aliases().items() if not known.isdisjoint(meant))
        return list(dict.fromkeys([*served, *further]))


def body_for(body: bytes, model: ModelName) -> bytes:
    """The body of a client that asked by another name."""
    return b"".join(MODEL.set(body, msgspec.json.encode(model), is_named=True))


class Renamer:
    """Makes an answer, or whole events of one in their order, name what was asked for. Text that a model wrote is never
    changed: a quote inside a JSON string has a backslash before it."""

    def __init__(self, model: ModelName, asked: str) -> None:
        self._told = re.compile(_MEMBER + re.escape(msgspec.json.encode(model)))
        self._named = b'"model":' + msgspec.json.encode(asked)
        self._is_sure = False
        """That the engine goes by this name."""

    def __call__(self, data: bytes) -> bytes:
        """An engine may go by yet another name than it was asked by: then it is the first that it tells."""
        renamed, count = self._told.subn(self._name, data)
        if not count and not self._is_sure and (other := _NAMED.search(data)) is not None:
            self._told = re.compile(_MEMBER + re.escape(other["name"]))
            renamed, count = self._told.subn(self._name, data)
        self._is_sure = self._is_sure or count > 0
        return renamed

    def _name(self, _: re.Match[bytes]) -> bytes:
        return self._named
