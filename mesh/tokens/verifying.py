"""Verifies a token: reads it, and checks it against an issuer's keys and against the time. It fetches nothing and
remembers nothing.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from joserfc import jws
from joserfc._rfc7515.model import JWSAlgModel
from joserfc.errors import (
    BadSignatureError,
    ExpiredTokenError,
    InvalidClaimError,
    JoseError,
    MissingClaimError,
    UnsupportedAlgorithmError,
)
from joserfc.jwt import JWTClaimsRegistry

from mesh.tokens.claims import scopes_of
from mesh.tokens.config import Algorithm, IssuerConfig
from mesh.tokens.key_set import PublicKeys
from mesh.tokens.words import TokenFault, TokenRefused

TOKEN_BYTES_MAX = 8192
SUBJECT_LENGTH_MAX = 255
"""Most characters of a subject, as in OpenID Connect."""
_SECOND_NS = 1_000_000_000
_NEVER_S = 2**40
_ACCESS_TOKEN_TYPES = ("at+jwt", "application/at+jwt")
_CLAIM_REASONS = {
    "aud": TokenFault.AUDIENCE,
    "iss": TokenFault.ISSUER,
    "nbf": TokenFault.NOT_YET,
    "iat": TokenFault.NOT_YET,
}


class Unverified(NamedTuple):
    """Content of a token before it is verified; none of it may be trusted."""

    token: str
    header: dict[str, Any]
    claims: dict[str, Any]

    @property
    def issuer(self) -> str:
        said = self.claims.get("iss")
        return said if isinstance(said, str) else ""


def read_token(token: str) -> Unverified:
    """Read a token's header and claims. Raises TokenRefused."""
    if len(token) > TOKEN_BYTES_MAX:
        raise TokenRefused(TokenFault.TOO_LARGE)
    header, claims, _ = token.split(".")
    return Unverified(token, _object_in(header), _object_in(claims))


def verify(told: Unverified, config: IssuerConfig, keys: PublicKeys, wall_ns: int) -> Mapping[str, Any]:
    """Verify the signature, the validity and the audience of a token, and return its claims. Raises TokenRefused."""
    try:
        _verify_signature(told, config, keys)
        _verify_claims(told.claims, config, wall_ns)
    except TokenRefused as refused:
        refused.issuer = config.name
        raise
    return told.claims


def expires_ns(claims: Mapping[str, Any], config: IssuerConfig) -> int:
    """Wall time in nanoseconds at which verified claims expire by this program's clock."""
    return int(min(claims["exp"], _NEVER_S) * _SECOND_NS) + config.leeway_ns


def _object_in(part: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (msgspec.DecodeError, binascii.Error, ValueError, RecursionError) as error:
        raise TokenRefused(TokenFault.MALFORMED) from error
    if not isinstance(found, dict):
        raise TokenRefused(TokenFault.MALFORMED)
    return found


def _verify_signature(told: Unverified, config: IssuerConfig, keys: PublicKeys) -> None:
    algorithm, kid = told.header.get("alg"), told.header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in config.algorithms:
        raise TokenRefused(TokenFault.ALGORITHM)
    if not isinstance(kid, str | None) or "crit" in told.header or "b64" in told.header:
        raise TokenRefused(TokenFault.MALFORMED)  # critical headers must be understood, and none is
    if config.access_tokens_only and str(told.header.get("typ")).lower() not in _ACCESS_TOKEN_TYPES:
        raise TokenRefused(TokenFault.TYPE)
    candidates = keys.that_may_verify(algorithm, kid)
    if not candidates:
        raise TokenRefused(TokenFault.KEY)
    registry = _registry(algorithm)
    for key in candidates:
        try:
            jws.deserialize_compact(told.token, key, registry=registry)
        except BadSignatureError:
            continue
        except (JoseError, ValueError) as error:
            raise TokenRefused(TokenFault.MALFORMED) from error
        return
    raise TokenRefused(TokenFault.SIGNATURE)


class _Registry(jws.JWSRegistry):
    """Registry for the tokens that issuers sign: long headers, and EdDSA under the name that RFC 9864 replaces, of
    which the library would warn on standard error, once for each place of use."""

    max_header_length = TOKEN_BYTES_MAX

    def get_alg(self, name: str) -> JWSAlgModel:
        if name not in (self.allowed or ()):
            raise UnsupportedAlgorithmError(name)
        return self.algorithms[name]


@lru_cache(len(Algorithm))
def _registry(algorithm: Algorithm) -> _Registry:
    """Registry that allows this algorithm alone. An unknown header is ignored, and does no harm."""
    return _Registry(algorithms=[str(algorithm)], strict_check_header=False)


def _verify_claims(claims: dict[str, Any], config: IssuerConfig, wall_ns: int) -> None:
    registry = JWTClaimsRegistry(
        now=wall_ns // _SECOND_NS,
        leeway=config.leeway_ns // _SECOND_NS,
        iss={"essential": True, "value": config.issuer},
        aud={"essential": True, "values": list(config.audiences)},
        exp={"essential": True},
        sub={"essential": True},
    )
    try:
        registry.validate(claims)
    except ExpiredTokenError as error:
        raise TokenRefused(TokenFault.EXPIRED) from error
    except MissingClaimError as error:
        raise TokenRefused(TokenFault.CLAIM, about=error.claim) from error
    except InvalidClaimError as error:
        raise TokenRefused(_CLAIM_REASONS.get(error.claim, TokenFault.CLAIM), about=error.claim) from error
    subject = claims["sub"]
    if not isinstance(subject, str) or len(subject) > SUBJECT_LENGTH_MAX:
        raise TokenRefused(TokenFault.CLAIM, about="sub")
    if not set(config.scopes) <= scopes_of(claims):
        raise TokenRefused(TokenFault.SCOPE, about=" ".join(config.scopes))
