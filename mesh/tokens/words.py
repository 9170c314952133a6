"""Reasons for refusing a token: a closed set, each with a text for the token's holder. No text quotes a token."""

from __future__ import annotations

from enum import StrEnum


class TokenFault(StrEnum):
    """Reason for refusing a token; also a label of metrics."""

    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    ALGORITHM = "algorithm"
    TYPE = "type"
    ISSUER = "issuer"
    KEY = "key"
    SIGNATURE = "signature"
    EXPIRED = "expired"
    NOT_YET = "not_yet"
    AUDIENCE = "audience"
    CLAIM = "claim"
    SCOPE = "scope"
    NOT_MAPPED = "not_mapped"
    UNAVAILABLE = "unavailable"


WORDS = {
    TokenFault.MALFORMED: "the access token is not a signed JSON web token",
    TokenFault.TOO_LARGE: "the access token is too large",
    TokenFault.ALGORITHM: "the access token is signed by an algorithm that is not accepted",
    TokenFault.TYPE: "the token is not an access token",
    TokenFault.ISSUER: "the issuer of the access token is not trusted",
    TokenFault.KEY: "the access token is signed with a key that its issuer does not publish",
    TokenFault.SIGNATURE: "the signature of the access token is not valid",
    TokenFault.EXPIRED: "the access token has expired",
    TokenFault.NOT_YET: "the access token is not valid yet",
    TokenFault.AUDIENCE: "the access token is meant for another audience",
    TokenFault.CLAIM: "the access token lacks a required claim",
    TokenFault.SCOPE: "the access token lacks a required scope",
    TokenFault.NOT_MAPPED: "no tenant or role is configured for such an access token",
    TokenFault.UNAVAILABLE: "the keys of the token's issuer are unavailable",
}
"""Texts for the token's holder. The subject of a reason is appended where the program's own file names it."""


class TokenRefused(Exception):
    """The token is refused."""

    def __init__(self, reason: TokenFault, issuer: str = "", about: str = "") -> None:
        """Describe the refusal. `issuer` is the name of a configured issuer; `about` is a name from this program's own
        file."""
        super().__init__(WORDS[reason])
        self.reason = reason
        self.issuer = issuer
        self.about = about

    @property
    def words(self) -> str:
        return f"{WORDS[self.reason]}: {self.about}" if self.about else WORDS[self.reason]


def looks_like_token(credential: str) -> bool:
    """Return whether a credential has a token's form: two JSON objects in base64 and a signature. No client key has
    it."""
    return credential.startswith("ey") and credential.count(".") == 2
