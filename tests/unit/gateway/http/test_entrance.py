from __future__ import annotations

import pytest
from multidict import CIMultiDict

from gateway.http.entrance import credential_of


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Authorization": "Bearer abc"}, "abc"),
        ({"authorization": "bearer  abc "}, "abc"),
        ({"X-Api-Key": "abc"}, "abc"),
        ({"authorization": "Bearer abc", "x-api-key": "other"}, "abc"),
        ({"authorization": "Basic abc", "x-api-key": "other"}, "other"),
        ({"authorization": "Basic abc"}, ""),
        ({"authorization": "Bearer"}, ""),
        ({}, ""),
    ],
)
def test_a_credential_comes_as_either_kind_of_client_sends_it(headers: dict[str, str], expected: str) -> None:
    assert credential_of(CIMultiDict(headers)) == expected
