"""Explains a 404 to the client: the path that was asked for, and the one that was probably meant."""

from __future__ import annotations

from gateway.request.engine_api import MESSAGES_PATH, POSTED_PATHS, RESPONSES_PATH

_SHOWN_MAX = 200
_MODELS_PATH = "/v1/models"
_KNOWN = frozenset({*POSTED_PATHS, _MODELS_PATH})
_BEGINNINGS = (f"{_MODELS_PATH}/", f"{RESPONSES_PATH}/")


def route_hint(method: str, path: str) -> str:
    """Text for the message of a 404."""
    shown = path if len(path) <= _SHOWN_MAX else f"{path[:_SHOWN_MAX]}…"
    named = f"{method} {shown}" if shown.isprintable() else method
    if _is_known(f"/v1{path}"):
        if f"/v1{path}".startswith(MESSAGES_PATH):
            return f"{named}: this is `/v1{path}`; Anthropic's clients add the /v1, others need it in their base URL"
        return f"{named}: the base URL lacks /v1, as in https://HOST/v1"
    if path.startswith("/v1/v1/") and _is_known(path.removeprefix("/v1")):
        return f"{named}: the base URL has a /v1 that this client adds by itself"
    if path.endswith("/") and _is_known(path.rstrip("/")):
        return f"{named}: without the slash at its end it exists"
    return f"{named}: /openapi.yaml lists every URL"


def _is_known(path: str) -> bool:
    return path in _KNOWN or path.startswith(_BEGINNINGS)
