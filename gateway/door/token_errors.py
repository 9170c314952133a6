"""Errors for clients whose token is not accepted: status, code, and challenge (RFC 6750). The texts are the gateway's,
and contain no part of the token.
"""

from __future__ import annotations

from msgspec.structs import replace

from gateway.door.errors import ClientFault, ErrorKind
from mesh.tokens.words import TokenFault, TokenRefused

_BAD_REQUEST = "invalid_request_error"

INVALID_TOKEN = ErrorKind(401, _BAD_REQUEST, "invalid_token", "The access token is not valid.", shows_detail=True)
INSUFFICIENT_SCOPE = ErrorKind(
    403, _BAD_REQUEST, "insufficient_scope", "The access token lacks a required scope.", shows_detail=True
)
TOKEN_NOT_MAPPED = ErrorKind(
    403, _BAD_REQUEST, "token_not_mapped", "The access token maps to no tenant.", shows_detail=True
)
ISSUER_UNAVAILABLE = ErrorKind(
    503, "server_error", "issuer_unavailable", "The signing keys of the token's issuer are unavailable.", 5.0
)
_KINDS = {
    TokenFault.SCOPE: INSUFFICIENT_SCOPE,
    TokenFault.NOT_MAPPED: TOKEN_NOT_MAPPED,
    TokenFault.UNAVAILABLE: ISSUER_UNAVAILABLE,
}


def token_fault(refused: TokenRefused) -> ClientFault:
    """Fault for a refused token. A retry only helps where the issuer was unavailable."""
    kind = _KINDS.get(refused.reason, INVALID_TOKEN)
    if kind is INVALID_TOKEN:
        kind = replace(kind, challenge=_challenge("invalid_token", refused.words))
    if kind is INSUFFICIENT_SCOPE:
        kind = replace(kind, challenge=f'{_challenge(kind.code, refused.words)}, scope="{_quotable(refused.about)}"')
    return ClientFault(kind, refused.words)


def _challenge(error: str, words: str) -> str:
    return f'Bearer error="{error}", error_description="{_quotable(words)}"'


def _quotable(text: str) -> str:
    return text.encode("ascii", "replace").decode().replace("\\", "/").replace('"', "'")
