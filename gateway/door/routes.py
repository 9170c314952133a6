"""Paths of the clients' port, each with its methods. Nothing here answers a request."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from gateway.door.call import ClientCall

Serve = Callable[[ClientCall], None]
Answer = Callable[[ClientCall], Coroutine[None, None, None]]
"""Answers one call of a feature's route. It may wait, and is cancelled when the client leaves."""
FindAnswers = Callable[[str], Mapping[str, Answer] | None]
"""Finds the answers of a feature by path: one for each method. None: the path is not the feature's."""


@dataclass(frozen=True, slots=True)
class Route:
    """Methods of one path, each with the function that serves it."""

    methods: dict[str, Serve]

    @property
    def allowed(self) -> list[str]:
        return sorted(self.methods)


def get_route(serve: Serve) -> Route:
    return Route({"GET": serve, "HEAD": serve})


def path_of(target: bytes) -> str:
    """Path of a request's target, decoded; a whole address may stand in its place."""
    text = target.decode("latin-1")
    if not text.startswith("/"):
        text = "/" + text.partition("://")[2].partition("/")[2] if "://" in text else text
    path = text.partition("?")[0].partition("#")[0]
    return unquote(path) if "%" in path else path
