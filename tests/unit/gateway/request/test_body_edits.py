"""Splices compared with what `json` makes of the body before and after them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.request import body_edits
from gateway.request.body_edits import CACHE_SALT, BodyMember, BodySetting, set_members

OURS = b'"0123456789abcdef"'
NAME = "cache_salt"


def spliced(body: bytes, *, is_named: bool) -> bytes:
    return b"".join(CACHE_SALT.set(body, OURS, is_named=is_named))


def pairs(body: bytes) -> Any:
    """Every member of every object, in order, also those that are named twice; surrogates and numbers as written."""
    return json.loads(body, object_pairs_hook=list, parse_float=str, parse_int=str)


class Members(list[tuple[str, Any]]):
    """Object that may name a member twice."""


names = st.sampled_from((NAME, "cache_sal", "\\cache_salt", 'x"cache_salt', "model", "{", ",", '"', "ü")) | st.text()
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.sampled_from((NAME, '"cache_salt":', '{"cache_salt":1}')),
    lambda inner: st.lists(inner, max_size=4) | st.lists(st.tuples(names, inner), max_size=4).map(Members),
    max_leaves=12,
)
space = st.text(" \t\n\r", max_size=3)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, list[tuple[str, Any]]]:
    """Bodies with odd white space and spellings; the value of the member to be set is a string or null, as the HTTP
    edge admits it."""
    members = Members(
        (name, draw(st.none() | st.text()) if name == NAME else draw(values))
        for name in draw(st.lists(names, max_size=6))
    )
    text = draw(space) + written(draw, members) + draw(space)
    return text.encode("utf-8", "surrogatepass"), members


def written(draw: st.DrawFn, value: Any) -> str:
    if isinstance(value, Members):
        parts = [f"{spelt(draw, name)}{draw(space)}:{draw(space)}{written(draw, each)}" for name, each in value]
        return "{" + draw(space) + f"{draw(space)},{draw(space)}".join(parts) + "}"
    if isinstance(value, list):
        return "[" + ",".join(written(draw, each) for each in value) + "]"
    return spelt(draw, value) if isinstance(value, str) else json.dumps(value)


def spelt(draw: st.DrawFn, text: str) -> str:
    if draw(st.booleans()):
        return json.dumps(text, ensure_ascii=draw(st.booleans()))
    return '"' + "".join(f"\\u{ord(each):04x}" if ord(each) < 0x80 else json.dumps(each)[1:-1] for each in text) + '"'


@given(bodies())
def test_ours_stands_wherever_it_stood_and_nothing_else_changes(made: tuple[bytes, list[tuple[str, Any]]]) -> None:
    body, members = made
    is_named = NAME in dict(members)
    before, after = pairs(body), pairs(spliced(body, is_named=is_named))
    ours = [NAME, json.loads(OURS)]
    if is_named:
        assert [list(pair) for pair in after] == [ours if name == NAME else [name, value] for name, value in before]
    else:
        assert list(after[0]) == ours
        assert after[1:] == before


@given(bodies())
def test_without_its_name_the_body_is_there_byte_for_byte(made: tuple[bytes, list[tuple[str, Any]]]) -> None:
    body, members = made
    added = b'"cache_salt":' + OURS + (b"," if members else b"")
    result = spliced(body, is_named=False)
    assert result.replace(added, b"", 1) == body


@pytest.mark.parametrize(
    "body,result",
    [
        (b'{"model":"m"}', b'{"cache_salt":%b,"model":"m"}'),
        (b' \n{ "model" : "m" } ', b' \n{"cache_salt":%b, "model" : "m" } '),
        (b'{"cache_salt":"a","model":"m"}', b'{"cache_salt":%b,"model":"m"}'),
        (b'{"model":"m", "cache_salt" : null }', b'{"model":"m", "cache_salt" : %b }'),
        (b'{"cache_salt":"a","cache\\u005Fsalt":"b"}', b'{"cache_salt":%b,"cache\\u005Fsalt":%b}'),
        (b'{"cache_salt":"\\"}","x":[{"cache_salt":"c"}]}', b'{"cache_salt":%b,"x":[{"cache_salt":"c"}]}'),
        (b'{"x\\"cache_salt":"a","cache_salt":"b"}', b'{"x\\"cache_salt":"a","cache_salt":%b}'),
    ],
)
def test_every_other_byte_arrives_as_it_came(body: bytes, result: bytes) -> None:
    is_named = NAME in json.loads(body)
    assert spliced(body, is_named=is_named) == result.replace(b"%b", OURS)


@pytest.mark.parametrize(
    "filler",
    [
        b"x" * (body_edits._SEARCHED_BYTES_MAX + 1),
        b'{"cache_salt":1},' * (body_edits._LOOKS_MAX + 1) + b"1",
        b"0" * 900_000 + b',{"cache_salt":1}' * 12,
    ],
)
def test_what_would_take_long_to_find_is_overruled_from_both_ends(filler: bytes) -> None:
    text = (
        b'"%b"' % filler
        if filler.startswith(b"x")
        else b"[%b]" % filler.replace(b"0" * 900_000, b'"%b"' % (b"0" * 900_000))
    )
    body = b'{"cache_salt":"theirs","text":%b}' % text
    result = pairs(spliced(body, is_named=True))
    assert [list(result[index]) for index in (0, -1)] == [[NAME, json.loads(OURS)]] * 2
    assert result[1:-1] == pairs(body)


def test_a_large_body_is_not_copied() -> None:
    body = b'{"model":"m","text":"%b"}' % (b"x" * 1000)
    _, rest = CACHE_SALT.set(body, OURS, is_named=False)
    assert isinstance(rest, memoryview)
    assert rest.obj is body


@pytest.mark.parametrize(
    "old",
    [b"{}", b'{"a":1}', b'{"a":{"b":["}",{"c":"\\"{"}]}}', b"[]", b'[[1,2],{"x":[]}]', b'"]"', b"-1.5e+3", b"true"],
)
def test_a_value_of_any_kind_is_replaced_whole(old: bytes) -> None:
    assert spliced(b'{"cache_salt": %b ,"x":[1]}' % old, is_named=True) == b'{"cache_salt": %b ,"x":[1]}' % OURS


def test_a_value_in_which_it_would_get_lost_is_overruled_from_both_ends() -> None:
    old = b"[" + b'"x",' * body_edits._BRACKETS_MAX + b"1]"
    result = pairs(spliced(b'{"cache_salt":%b}' % old, is_named=True))
    assert [list(result[index]) for index in (0, -1)] == [[NAME, json.loads(OURS)]] * 2
    assert len(result) == 3


STREAM, OPTIONS, CAP = BodyMember("stream"), BodyMember("stream_options"), BodyMember("max_tokens")


@pytest.mark.parametrize(
    "body,result",
    [
        (b"{}", b'{"stream":false,"max_tokens":1}'),
        (b'{"a":1}', b'{"stream":false,"max_tokens":1,"a":1}'),
        (b'{"stream":true,"a":1}', b'{"max_tokens":1,"stream":false,"a":1}'),
        (b' {"a":1, "max_tokens":9,"stream" : true}', b' {"a":1, "max_tokens":1,"stream" : false}'),
        (b'{"max_tokens":9,"a":{"stream":true}}', b'{"stream":false,"max_tokens":1,"a":{"stream":true}}'),
    ],
)
def test_several_are_set_in_one_go(body: bytes, result: bytes) -> None:
    named = json.loads(body)
    wanted = [
        BodySetting(STREAM, b"false", is_named="stream" in named),
        BodySetting(CAP, b"1", is_named="max_tokens" in named),
    ]
    assert b"".join(set_members(body, wanted)) == result


def test_of_several_only_what_takes_long_to_find_is_at_both_ends() -> None:
    body = b'{"stream":true,"stream_options":%b,"a":1}' % (b"[" * 3000 + b"]" * 3000)
    wanted = [BodySetting(STREAM, b"false", is_named=True), BodySetting(OPTIONS, b"null", is_named=True)]
    result = b"".join(set_members(body, wanted))
    assert result.startswith(b'{"stream_options":null,"stream":false,')
    assert result.endswith(b'"a":1,"stream_options":null}')


MANY = [BodyMember(f"member_{letter}") for letter in "abcdefghijklmnop"]


class Counted:
    """Decoder that counts the bytes of all its reads."""

    def __init__(self, decoder: msgspec.json.Decoder[Any]) -> None:
        self._decoder = decoder
        self.bytes = 0

    def decode(self, text: bytes) -> Any:
        self.bytes += len(text)
        return self._decoder.decode(text)


def of_many(body: bytes) -> bytes:
    return b"".join(set_members(body, [BodySetting(member, b"0", is_named=True) for member in MANY]))


@pytest.mark.parametrize("spelling", [b"", b'"\\u006d\\u0065"'])
def test_many_members_cost_no_more_to_find_than_one(monkeypatch: pytest.MonkeyPatch, spelling: bytes) -> None:
    """Each member is named at the top and again, several times, behind a value that takes long to read."""
    counted = Counted(body_edits._ANYTHING)
    monkeypatch.setattr(body_edits, "_ANYTHING", counted)
    named = b",".join(member.named(b"1") for member in MANY)
    inner = b",".join(b"{%b}" % named for _ in range(7))
    body = b'{%b,"x":[%b%b%b]}' % (named, b"[]," * 300_000, spelling + b"," * bool(spelling), inner)
    result = pairs(of_many(body))
    assert counted.bytes < body_edits._LOOKED_BYTES_MAX + len(body)
    told = dict(tuple(pair) for pair in result)
    assert [told.pop(f"member_{letter}") for letter in "abcdefghijklmnop"] == ["0"] * len(MANY)
    assert list(told) == ["x"]
    first = dict(tuple(pair) for pair in reversed(result))
    assert {value for name, value in first.items() if name != "x"} == {"0"}


def test_what_stands_once_is_found_without_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(body_edits._ANYTHING)
    monkeypatch.setattr(body_edits, "_ANYTHING", counted)
    body = b'{"x":[%b1],%b}' % (b"[]," * 300_000, b",".join(member.named(b"[1]") for member in MANY))
    assert of_many(body) == body.replace(b":[1]", b":0")
    assert counted.bytes == 0


def test_the_values_of_all_together_are_gone_through_only_so_far() -> None:
    long = b"[%b1]" % (b"[]," * 2000)
    body = b"{%b}" % b",".join(member.named(long) for member in MANY)
    result = of_many(body)
    assert result.count(long) == len(MANY) - 4
    assert len(pairs(result)) == len(MANY) + 2 * (len(MANY) - 4)


def test_what_is_spliced_in_is_what_an_engine_reads() -> None:
    body = b'{"cache_salt":"theirs","model":"m","cache_salt":"theirs too"}'
    for read in (json.loads, msgspec.json.decode):
        assert read(spliced(body, is_named=True))[NAME] == json.loads(OURS)
