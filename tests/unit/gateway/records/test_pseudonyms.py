from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.core.kernel.effects import Effect, EndRequest, RefuseForward
from gateway.core.kernel.events import DrainRequested, LegEnded, RequestArrived
from gateway.core.vocabulary import LegResult, ModelName, Outcome, RefusalReason, RequestId, RequestProfile
from gateway.records.pseudonyms import KEY_BYTES, Pseudonyms
from gateway.request.driver import GatewayStep
from mesh.steps import Step
from tests.support.core import SECOND, profile
from tests.support.orders import forward_from_eu

KEY = bytes(range(KEY_BYTES))
HASHES = st.integers(0, 2**64 - 1)


def packed(*hashes: int) -> bytes:
    return struct.pack(f">{len(hashes)}Q", *hashes)


def asked(prefix: bytes = b"") -> RequestProfile:
    return replace(profile("r1"), prefix=prefix)


def told(step: GatewayStep, *, keeps_session: bool = False) -> tuple[RequestProfile, list[Effect]]:
    said = Pseudonyms(KEY).step(step, keeps_session=keeps_session)
    assert isinstance(said.event, RequestArrived)
    return said.event.profile, said.effects or []


class TestChains:
    @given(st.lists(HASHES, unique=True, max_size=50))
    def test_no_two_hashes_get_one_name(self, hashes: list[int]) -> None:
        named = Pseudonyms(KEY).chain(packed(*hashes))
        assert len({named[at : at + 8] for at in range(0, len(named), 8)}) == len(hashes)

    @given(st.lists(HASHES, max_size=20), st.lists(HASHES, max_size=20))
    def test_a_hash_has_one_name_wherever_it_stands(self, some: list[int], others: list[int]) -> None:
        """Chains therefore keep their common prefixes."""
        names = Pseudonyms(KEY)
        assert names.chain(packed(*some, *others)) == names.chain(packed(*some)) + names.chain(packed(*others))

    def test_many_neighbours_stay_apart(self) -> None:
        named = Pseudonyms(KEY).chain(packed(*range(200_000)))
        assert len({named[at : at + 8] for at in range(0, len(named), 8)}) == 200_000

    def test_one_bit_of_a_hash_or_the_key_changes_half_of_the_name(self) -> None:
        rng = random.Random(1)
        flips: list[int] = []
        for _ in range(200):
            one, bit = rng.getrandbits(64), 1 << rng.randrange(64)
            named = struct.unpack(">2Q", Pseudonyms(KEY).chain(packed(one, one ^ bit)))
            flips.append((named[0] ^ named[1]).bit_count())
        assert 29 < sum(flips) / len(flips) < 35
        other = Pseudonyms(KEY[:-1] + b"\xff").chain(packed(1))
        assert other != Pseudonyms(KEY).chain(packed(1))

    def test_each_journal_draws_a_key_of_its_own(self) -> None:
        assert Pseudonyms().chain(packed(1)) != Pseudonyms().chain(packed(1))
        assert Pseudonyms().name("x") != Pseudonyms().name("x")


class TestSteps:
    def test_what_tells_of_no_prompt_is_told_as_it_is(self) -> None:
        step: GatewayStep = Step(1, DrainRequested(), [])
        assert Pseudonyms(KEY).step(step, keeps_session=False) is step

    def test_what_stands_for_a_whole_prompt_fits_what_was_kept_and_goes_with_who_is_turned_away(self) -> None:
        one = replace(asked(packed(1, 2)), prompt_key=b"made with a secret")
        said, _ = told(Step(1, RequestArrived(one, SECOND), []))
        assert said.prompt_key == one.prompt_key
        end = EndRequest(RequestId("r1"), Outcome.REJECTED_QUEUE_FULL, "full", attempts=0)
        said, _ = told(Step(1, RequestArrived(one, SECOND), [end]))
        assert (said.prefix, said.prompt_key) == (b"", b"")

    def test_an_arrival_keeps_all_but_its_hashes(self) -> None:
        one = asked(packed(1, 2))
        said, _ = told(Step(1, RequestArrived(one, SECOND), []))
        assert said.prefix == Pseudonyms(KEY).chain(one.prefix)
        assert said.session_key == Pseudonyms(KEY).name(one.session_key) != one.session_key
        assert (said.request_id, said.model, said.tenant) == (one.request_id, one.model, one.tenant)
        assert said.prompt_bytes == one.prompt_bytes
        assert one.prefix == packed(1, 2), "the core's own is not touched"

    def test_a_session_key_stays_where_placement_goes_by_it(self) -> None:
        said, _ = told(Step(1, RequestArrived(profile("r1"), SECOND), []), keeps_session=True)
        assert said.session_key == profile("r1").session_key

    def test_a_forward_is_told_the_same_way(self) -> None:
        event = forward_from_eu(asked(packed(5)), SECOND)
        said = Pseudonyms(KEY).step(Step(1, event, None), keeps_session=False)
        assert said.event.profile.prefix == Pseudonyms(KEY).chain(packed(5))  # type: ignore[union-attr]
        assert said.effects is None

    def test_what_is_left_of_a_broken_answer_is_told_like_an_arrival(self) -> None:
        """The continuation's prefix extends the request's, and has to be found under the same names."""
        asked_for, rest = asked(packed(1, 2)), asked(packed(1, 2, 3))
        broke = LegEnded(asked_for.request_id, 1, 1, LegResult.FAILED, remainder=rest)
        said = Pseudonyms(KEY).step(Step(0, broke, []), keeps_session=False).event
        assert isinstance(said, LegEnded)
        assert said.remainder is not None
        assert said.remainder.prefix.startswith(told(Step(0, RequestArrived(asked_for, SECOND), []))[0].prefix)
        assert said.remainder.session_key != rest.session_key
        assert replace(said.remainder, prefix=rest.prefix, session_key=rest.session_key) == rest

    @pytest.mark.parametrize("outcome", [each for each in Outcome if each.startswith("rejected")])
    def test_who_is_turned_away_leaves_no_prefix(self, outcome: Outcome) -> None:
        end = EndRequest(RequestId("r1"), outcome, "why", 0)
        assert told(Step(1, RequestArrived(asked(packed(1)), SECOND), [end]))[0].prefix == b""

    def test_another_request_s_end_is_no_refusal(self) -> None:
        end = EndRequest(RequestId("r0"), Outcome.COMPLETED, "", 1)
        said, effects = told(Step(1, RequestArrived(asked(packed(1)), SECOND), [end]))
        assert (len(said.prefix), effects) == (8, [end])

    def test_a_refused_forward_leaves_no_prefix(self) -> None:
        event = forward_from_eu(asked(packed(5)), SECOND)
        no = RefuseForward(RequestId("r1"), RefusalReason.UNKNOWN_MODEL, "no replica here may serve `llama` for it")
        said = Pseudonyms(KEY).step(Step(1, event, [no]), keeps_session=False)
        assert said.event.profile.prefix == b""  # type: ignore[union-attr]
        assert "llama" not in repr(said)

    def test_a_model_that_nobody_serves_is_the_client_s_text(self) -> None:
        one = profile("r1", model=ModelName("my secret"))
        end = EndRequest(RequestId("r1"), Outcome.REJECTED_UNKNOWN_MODEL, "the model `my secret` does not exist", 0)
        said, effects = told(Step(1, RequestArrived(one, SECOND), [end]))
        assert "secret" not in repr((said, effects))
        assert effects == [EndRequest(end.request_id, end.outcome, f"the model `{said.model}` does not exist", 0)]
