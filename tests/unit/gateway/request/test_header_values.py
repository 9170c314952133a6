from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.request.header_values import from_bytes, from_text, has_control_character, to_bytes


@given(st.binary())
def test_bytes_come_out_as_they_went_in_however_they_were_read(raw: bytes) -> None:
    assert to_bytes(from_bytes(raw)) == raw
    assert to_bytes(from_text(raw.decode("utf-8", "surrogateescape"))) == raw


@pytest.mark.parametrize("byte", [*range(9), *range(10, 32), 127])
def test_control_characters_are_found(byte: int) -> None:
    assert has_control_character(f"a{chr(byte)}b")


@pytest.mark.parametrize("text", ["", "plain", "a\tb", "\u00a0", "\u20ac", "\u65e5\u672c\u8a9e", "\udcff\udc80"])
def test_all_else_is_none(text: str) -> None:
    assert not has_control_character(from_text(text))
