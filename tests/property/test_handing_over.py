"""The engine model with prefill and decode in separate engines."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from loadgen.engine.blocks import packed
from loadgen.engine.iteration_cost import LinearCost
from loadgen.engine.model import EngineConfig, EngineModel, EngineOutput, Expired, Fetching, Finished, FirstTokenMade
from loadgen.engine.sequences import EngineRequest

CONFIG = EngineConfig(
    cost=LinearCost(base_ns=1_000, sequence_ns=100, prefill_token_ns=10),
    kv_blocks=24,
    context_tokens_max=160,
    sequences_max=4,
    batch_tokens_max=40,
    prefill_chunk_tokens=32,
    stream_every_iteration=True,
)
NAMES = packed(range(1, 9))


def kept(request_id: str, prompt: int, lease_ns: int = 50_000) -> EngineRequest:
    return EngineRequest(request_id, prompt, 1, lease_ns=lease_ns)


def remote(request_id: str, prompt: int, output: int = 3, names: bytes = b"") -> EngineRequest:
    return EngineRequest(request_id, prompt, output, names, is_remote=True)


def drain(model: EngineModel) -> list[EngineOutput]:
    outputs: list[EngineOutput] = []
    while (at_ns := model.next_change_ns()) is not None:
        outputs += model.advance(at_ns)
    return outputs


def test_a_prefill_keeps_its_blocks_until_they_have_been_fetched() -> None:
    model = EngineModel(CONFIG)
    model.submit(kept("a", 32), 0)
    model.advance(10_000)
    load = model.load()
    assert (load.kept, load.blocks_held, load.running, load.finished) == (1, 2, 0, 1)

    assert model.keeps("a")
    assert model.let_go("a", 11_000)
    assert not model.let_go("a", 12_000)
    assert (model.load().kept, model.load().blocks_held, model.load().leases_expired) == (0, 0, 0)


def test_a_lease_begins_with_the_end_of_the_prefill_and_its_expiry_is_told() -> None:
    model = EngineModel(CONFIG)
    model.submit(kept("a", 32), 0)

    outputs = drain(model)

    end_ns = next(each.at_ns for each in outputs if isinstance(each, Finished))
    assert outputs[-1] == Expired("a", end_ns + 50_000)
    assert (model.load().blocks_held, model.load().leases_expired) == (0, 1)


def test_a_lease_is_renewed_while_whoever_wants_it_waits() -> None:
    model = EngineModel(CONFIG)
    model.submit(kept("a", 32), 0)
    model.advance(10_000)
    assert model.renew("a", 200_000, 40_000)

    assert drain(model)[-1] == Expired("a", 200_000)
    assert not model.renew("a", 300_000, 250_000)


def test_who_waits_for_the_room_that_is_kept_gets_it_when_the_lease_is_over() -> None:
    model = EngineModel(CONFIG)
    for name in "abc":
        model.submit(kept(name, 150), 0)
    outputs = drain(model)

    ends = {each.request_id: each.at_ns for each in outputs if isinstance(each, Finished)}
    overs = {each.request_id: each.at_ns for each in outputs if isinstance(each, Expired)}
    assert set(ends) == set(overs) == set("abc")
    assert overs["a"] < ends["c"]


def test_a_stopped_prefill_keeps_nothing() -> None:
    model = EngineModel(CONFIG)
    model.submit(kept("a", 100), 0)
    model.advance(500)
    model.abort("a", 600)
    drain(model)

    assert (model.load().kept, model.load().blocks_held) == (0, 0)


def test_a_remote_prompt_has_its_room_and_is_deferred_until_it_has_come() -> None:
    model = EngineModel(CONFIG)
    model.submit(remote("a", 32), 0)
    assert model.advance(0) == [Fetching("a", 0, 0)]
    load = model.load()
    assert (load.deferred, load.waiting, load.running, load.blocks_held) == (1, 0, 0, 2)
    assert model.next_change_ns() is None

    model.deliver("a", 7_000, has_come=True)
    outputs = drain(model)
    assert FirstTokenMade("a", 7_000 + 1_110) in outputs
    load = model.load()
    assert (load.deferred, load.external_tokens, load.prefix_hit_tokens, load.blocks_held) == (0, 32, 0, 0)
    assert (load.finished, load.generation_tokens) == (1, 3)


def test_what_never_comes_is_read_here() -> None:
    model = EngineModel(CONFIG)
    model.submit(remote("a", 32), 0)
    model.advance(0)
    model.deliver("a", 7_000, has_come=False)

    assert FirstTokenMade("a", 7_000 + 1_100 + 320) in drain(model)
    assert model.load().external_tokens == 0


def test_only_what_is_not_in_the_cache_here_has_to_come() -> None:
    model = EngineModel(CONFIG)
    for name in "ab":
        model.submit(remote(name, 40, names=NAMES), 0 if name == "a" else 90_000)
        model.advance(0 if name == "a" else 90_000)
        model.deliver(name, 1_000 if name == "a" else 91_000, has_come=True)
        drain(model)

    assert (model.load().external_tokens, model.load().prefix_hit_tokens) == (40 + 8, 32)


def test_others_run_while_a_prompt_is_on_its_way() -> None:
    model = EngineModel(replace(CONFIG, stream_every_iteration=False))
    model.submit(remote("a", 32), 0)
    model.submit(EngineRequest("b", 8, 50), 0)
    model.advance(20_000)
    model.deliver("a", 20_500, has_come=True)
    outputs = drain(model)

    first_ns = next(each.at_ns for each in outputs if isinstance(each, FirstTokenMade) and each.request_id == "a")
    assert first_ns < next(each.at_ns for each in outputs if isinstance(each, Finished) and each.request_id == "b")


deeds = st.lists(
    st.tuples(
        st.integers(0, 30_000),
        st.integers(1, 110),
        st.integers(1, 40),
        st.sampled_from(("plain", "kept", "remote")),
        st.sampled_from(("", "abort", "come", "fail", "let go", "renew")),
    ),
    max_size=25,
)


@given(deeds=deeds, is_stepped=st.booleans())
def test_whatever_happens_nothing_is_kept_or_held_in_the_end(
    deeds: list[tuple[int, int, int, str, str]], is_stepped: bool
) -> None:
    model = EngineModel(replace(CONFIG, stream_every_iteration=is_stepped))
    now_ns, fetching, outputs = 0, list[str](), list[EngineOutput]()
    for number, (after_ns, prompt, output, kind, deed) in enumerate(deeds):
        now_ns += after_ns
        outputs += (new := model.advance(now_ns))
        fetching += [each.request_id for each in new if isinstance(each, Fetching)]
        earlier = str(number - 1)
        if deed == "abort":
            model.abort(earlier, now_ns)
        elif deed in ("come", "fail") and fetching:
            model.deliver(fetching.pop(0), now_ns, has_come=deed == "come")
        elif deed == "let go":
            model.let_go(earlier, now_ns)
        elif deed == "renew":
            model.renew(earlier, now_ns + 20_000, now_ns)
        lease_ns = 30_000 if kind == "kept" else None
        model.submit(EngineRequest(str(number), prompt, output, is_remote=kind == "remote", lease_ns=lease_ns), now_ns)
    while (at_ns := model.next_change_ns()) is not None or fetching:
        now_ns = max(now_ns, at_ns if at_ns is not None else now_ns)
        outputs += (new := model.advance(now_ns))
        fetching += [each.request_id for each in new if isinstance(each, Fetching)]
        while fetching:
            model.deliver(fetching.pop(0), now_ns, has_come=True)

    load = model.load()
    assert (load.running, load.waiting, load.deferred, load.kept, load.blocks_held) == (0, 0, 0, 0, 0)
