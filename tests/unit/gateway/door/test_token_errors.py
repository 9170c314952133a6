from __future__ import annotations

import pytest

from gateway.door.errors import error_headers
from gateway.door.token_errors import token_fault
from mesh.tokens.words import WORDS, TokenFault, TokenRefused


@pytest.mark.parametrize("reason", list(TokenFault))
def test_every_reason_has_words_a_status_and_a_safe_header(reason: TokenFault) -> None:
    fault = token_fault(TokenRefused(reason, about='a "quoted\\" thing\r\nx: y\xe9'))
    status = {TokenFault.SCOPE: 403, TokenFault.NOT_MAPPED: 403, TokenFault.UNAVAILABLE: 503}.get(reason, 401)
    assert fault.kind.status == status
    assert WORDS[reason]
    challenge = error_headers(fault.kind).get("www-authenticate", "")
    assert challenge.isascii()
    if status == 401:
        assert challenge.startswith('Bearer error="invalid_token", error_description="the ')
    assert bool(challenge) is (status == 401 or reason is TokenFault.SCOPE)


def test_a_lack_of_scope_says_which() -> None:
    fault = token_fault(TokenRefused(TokenFault.SCOPE, about="read write"))
    assert error_headers(fault.kind)["www-authenticate"].endswith('scope="read write"')


def test_an_issuer_that_is_away_is_worth_another_try() -> None:
    assert error_headers(token_fault(TokenRefused(TokenFault.UNAVAILABLE)).kind)["retry-after"] == "5"
