"""Model aliases: further names that clients may use for models, and the name that an answer shows.

An alias is resolved once, on arrival. From there on all parts of the mesh use the model's own name; only the client
sees the alias. This module never looks at the fleet: `FirstServed` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from gateway.core.vocabulary import ModelName, PlaceRule, TenantName
from gateway.request.body_edits import MODEL

ModelAliases = Mapping[ModelName, tuple[ModelName, ...]]
"""Models that each alias stands for, the most preferred first."""
FirstServed = Callable[[Sequence[ModelName], TenantName, PlaceRule | None, str], ModelName | None]
"""Picks the model, of several, that is served for a tenant, a key's rule and possibly a stored response; None: none
is."""

_MEMBER = rb'(?<!\\)"model"[ \t\n\r]*:[ \t\n\r]*'
_NAMED = re.compile(_MEMBER + rb'(?P<name>"[^"\\]*(?:\\.[^"\\]*)*")')


class ModelNames:
    """Resolution of the model names that clients use."""

    def __init__(
        self,
        aliases: Callable[[], ModelAliases] = dict,
        first_served: FirstServed = lambda names, _tenant, _process, _follows: names[0],
    ) -> None:
        """Set up the lookups. `aliases` is called anew for each request, because aliases may change at any time."""
        self._aliases = aliases
        self._first_served = first_served

    def stands_for(self, asked: ModelName) -> tuple[ModelName, ...]:
        """Models that the name may stand for; for most names only itself."""
        return self._aliases().get(asked) or (asked,)

    def resolved(
        self,
        asked: ModelName,
        meant: Sequence[ModelName],
        tenant: TenantName,
        process: PlaceRule | None,
        follows: str = "",
    ) -> ModelName:
        """Return the model to use of those that the name stands for; the name itself if none of them is served."""
        if len(meant) == 1 and meant[0] == asked:
            return asked
        return self._first_served(meant, tenant, process, follows) or asked

    def listed(self, served: Sequence[ModelName]) -> list[ModelName]:
        """Return the served models and the aliases of any of them."""
        known = set(served)
        further = (name for name, meant in self._aliases().items() if not known.isdisjoint(meant))
        return list(dict.fromkeys([*served, *further]))


def body_for(body: bytes, model: ModelName) -> bytes:
    """Return the body with the model's own name in place of the alias."""
    return b"".join(MODEL.set(body, msgspec.json.encode(model), is_named=True))


class Renamer:
    """Makes an answer, or whole events of one in order, show the name that the client asked for. Generated text is
    never changed: a quote inside a JSON string has a backslash before it."""

    def __init__(self, model: ModelName, asked: str) -> None:
        self._told = re.compile(_MEMBER + re.escape(msgspec.json.encode(model)))
        self._named = b'"model":' + msgspec.json.encode(asked)
        self._is_sure = False
        """True once the name that the engine uses for itself is known."""

    def __call__(self, data: bytes) -> bytes:
        """Rename the model in a piece of the answer. An engine may report another name than it was asked by; then the
        first that it reports is replaced."""
        renamed, count = self._told.subn(self._name, data)
        if not count and not self._is_sure and (other := _NAMED.search(data)) is not None:
            self._told = re.compile(_MEMBER + re.escape(other["name"]))
            renamed, count = self._told.subn(self._name, data)
        self._is_sure = self._is_sure or count > 0
        return renamed

    def _name(self, _: re.Match[bytes]) -> bytes:
        return self._named
