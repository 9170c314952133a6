"""Estimates of a request's tokens, against requests whose true ratio is known."""

from __future__ import annotations

import random
from math import nan

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.core.features.lengths.config import TokenBudgetConfig
from gateway.core.features.lengths.events import LearntLengths, LearntRatio, TokenBudgetSnapshot
from gateway.core.features.lengths.token_budget import (
    NO_TENANT,
    RATIO_MAX,
    RATIO_MIN,
    TokenBudget,
)
from gateway.core.vocabulary import Category, Hints, ModelName, RequestProfile, TenantName
from tests.support.core import profile as a_profile

CONFIG = TokenBudgetConfig()
TRUE_RATIOS = {Category.PROSE: 4.48, Category.CODE: 3.52, Category.CJK: 2.01, Category.MIXED: 3.81}
"""Bytes per token by category, from Table 4 of the paper."""


def request(
    text_bytes: int = 8000, category: Category = Category.PROSE, *, tenant: str = "acme", most: int | None = 100
) -> RequestProfile:
    return replace(
        a_profile("r"),
        text_bytes=text_bytes,
        category=category,
        tenant=TenantName(tenant),
        output_tokens_max=most,
        extra_prompt_tokens=0,
    )


def taught(budget: TokenBudget, category: Category, ratio: float, times: int, *, tenant: str = "acme") -> None:
    for _ in range(times):
        budget.observe(request(8000, category, tenant=tenant), round(8000 / ratio), 10)


def test_before_any_answer_the_start_counts_and_cjk_is_never_given_more_than_two_bytes() -> None:
    budget = TokenBudget(CONFIG)
    assert budget.estimate(request(8001)).prompt_tokens == 2001
    assert budget.estimate(request(8000, Category.CJK)).prompt_tokens == 4000


def test_what_comes_of_no_text_and_the_clients_maximum_are_added() -> None:
    estimate = TokenBudget(CONFIG).estimate(replace(request(400), extra_prompt_tokens=765))
    assert (estimate.prompt_tokens, estimate.output_tokens, estimate.total_tokens) == (865, 100, 965)
    assert not estimate.is_soft


@pytest.mark.parametrize("hinted", [1, 2**31])
def test_a_hinted_length_chooses_no_pool_that_others_learn_from(hinted: int) -> None:
    budget = TokenBudget(CONFIG)
    plain = budget.estimate(request(400, most=None))
    told = budget.estimate(replace(request(400, most=None), hints=Hints(output_tokens=hinted)))
    assert (told.output_tokens, told.is_soft) == (plain.output_tokens, plain.is_soft)


def test_nobody_counted_text_then_all_bytes_of_the_prompt_stand_in() -> None:
    uncounted = replace(request(0), prompt_bytes=4000)
    assert TokenBudget(CONFIG).estimate(uncounted).prompt_tokens == 1000


@pytest.mark.parametrize("category", list(Category))
def test_fifty_answers_bring_a_ratio_within_the_papers_error(category: Category) -> None:
    """Ratios have noise of a tenth, as texts differ; Table 4: at most 3.5 % off. β = 0.95 from the start would leave
    CJK 7.6 % off (of 4.0)."""
    rng = random.Random(7)
    truth = TRUE_RATIOS[category]
    budget = TokenBudget(CONFIG)
    for _ in range(50):
        ratio = truth * rng.uniform(0.9, 1.1)
        budget.observe(request(8000, category), round(8000 / ratio), 10)
    (shared, _) = budget.snapshot().ratios
    assert abs(shared.mean / truth - 1) <= 0.035
    assert truth * 0.85 < budget.bytes_a_token(request(8000, category)) < truth


def test_more_different_answers_are_reckoned_with_more_cautiously() -> None:
    calm, wild = TokenBudget(CONFIG), TokenBudget(CONFIG)
    for turn in range(200):
        calm.observe(request(), round(8000 / 4), 1)
        wild.observe(request(), round(8000 / (3 if turn % 2 else 5)), 1)
    assert calm.bytes_a_token(request()) == pytest.approx(4.0, rel=0.01)
    assert wild.bytes_a_token(request()) == pytest.approx(3.0, rel=0.05)
    assert TokenBudget(replace(CONFIG, caution=0.0)).bytes_a_token(request()) == 4.0


def test_an_outlier_moves_a_ratio_little_either_way_and_what_stays_different_is_followed() -> None:
    for odd, prompt_tokens in (("all blanks", 100), ("base64", 8000)):
        budget = TokenBudget(CONFIG)
        taught(budget, Category.PROSE, 4.5, 100)
        before = budget.snapshot().ratios[0].mean
        budget.observe(request(), prompt_tokens, 1)
        assert abs(budget.snapshot().ratios[0].mean / before - 1) <= 0.025, odd
    budget = TokenBudget(CONFIG)
    taught(budget, Category.PROSE, 4.5, 100)
    taught(budget, Category.PROSE, 2.0, 60)
    assert budget.snapshot().ratios[0].mean == pytest.approx(2.0, rel=0.1)


def test_nonsense_teaches_nothing() -> None:
    budget = TokenBudget(CONFIG)
    for prompt_tokens in (None, 0, -5, 1 << 24):
        budget.observe(request(), prompt_tokens, None)
    budget.observe(request(1 << 24), 1, None)
    budget.observe(replace(request(), follows="a response"), 2000, None)
    budget.observe(replace(request(), is_control=True), 2000, 50)
    budget.observe(replace(request(0), prompt_bytes=0), 2000, 50)
    assert budget.snapshot().ratios == ()
    assert budget.snapshot().lengths == ()


def test_a_prompt_of_one_byte_teaches_next_to_nothing_and_one_of_ten_megabytes_is_estimated() -> None:
    budget = TokenBudget(CONFIG)
    taught(budget, Category.PROSE, 4.5, 50)
    before = budget.bytes_a_token(request())
    for _ in range(100):
        budget.observe(request(1), 12, 1)
    assert budget.bytes_a_token(request()) == pytest.approx(before, rel=0.05)
    assert budget.estimate(request(10 << 20)).prompt_tokens == pytest.approx((10 << 20) / 4.5, rel=0.1)


def test_a_tenant_unlike_everyone_else_is_estimated_by_its_own_prompts_and_the_others_by_theirs() -> None:
    budget = TokenBudget(CONFIG)
    for _ in range(60):
        taught(budget, Category.PROSE, 4.5, 1, tenant="everyone")
        taught(budget, Category.PROSE, 1.4, 1, tenant="odd")
    assert budget.estimate(request(tenant="odd")).prompt_tokens == pytest.approx(8000 / 1.4, rel=0.05)
    assert budget.estimate(request(tenant="everyone")).prompt_tokens == pytest.approx(8000 / 4.5, rel=0.05)
    assert budget.estimate(request(tenant="new")).prompt_tokens > 8000 / 3.0  # unknown tenant: on the high side


def test_models_and_categories_know_nothing_of_each_other() -> None:
    budget = TokenBudget(CONFIG)
    taught(budget, Category.PROSE, 2.0, 50)
    assert budget.bytes_a_token(request(category=Category.CODE)) == CONFIG.ratio_start
    assert budget.bytes_a_token(replace(request(), model=ModelName("other"))) == CONFIG.ratio_start


def test_without_a_maximum_the_answer_is_as_long_as_most_were() -> None:
    budget = TokenBudget(CONFIG)
    unlimited = request(most=None)
    assert budget.estimate(unlimited).output_tokens == CONFIG.output_start_tokens
    assert budget.estimate(unlimited).is_soft
    for tokens in range(1, 401):
        budget.observe(unlimited, 2000, tokens)
    assert 380 <= budget.estimate(unlimited).output_tokens <= 380 * 2**0.25
    assert budget.estimate(request(category=Category.CODE, most=None)).output_tokens == CONFIG.output_start_tokens


def test_answers_that_a_client_limited_say_nothing_and_those_that_a_pool_cut_say_that_they_were_longer() -> None:
    budget = TokenBudget(CONFIG)
    for _ in range(100):
        budget.observe(request(most=5000), 2000, 5000)
    assert budget.estimate(request(most=None)).output_tokens == CONFIG.output_start_tokens
    for _ in range(100):
        budget.observe(request(most=None), 2000, 500, was_cut=True)
    assert budget.estimate(request(most=None)).output_tokens >= 1000


def test_lengths_of_long_ago_are_forgotten() -> None:
    budget = TokenBudget(CONFIG)
    for tokens in (8000, 100):
        for _ in range(3000):
            budget.observe(request(most=None), 2000, tokens)
    assert budget.estimate(request(most=None)).output_tokens < 200


def test_it_goes_on_after_a_restart_as_if_there_had_been_none() -> None:
    budget = TokenBudget(CONFIG)
    taught(budget, Category.PROSE, 4.5, 30)
    taught(budget, Category.CODE, 3.1, 5, tenant="other")
    for tokens in range(100):
        budget.observe(request(most=None), None, tokens)
    kept = msgspec.json.decode(msgspec.json.encode(budget.snapshot()), type=TokenBudgetSnapshot)
    again = TokenBudget(CONFIG)
    again.restore(kept)
    assert again.snapshot() == budget.snapshot()
    assert again.estimate(request(most=None)) == budget.estimate(request(most=None))


def test_what_is_out_of_all_bounds_is_not_restored() -> None:
    model, prose = ModelName("m"), Category.PROSE
    good = LearntRatio(model, NO_TENANT, prose, 3.0, 4.0, 0.5)
    bad = [replace(good, mean=nan), replace(good, mean=0.5), replace(good, deviation=-1.0), replace(good, weight=0.0)]
    lengths = LearntLengths(model, prose, (1, 2, 3))
    budget = TokenBudget(CONFIG)
    budget.restore(TokenBudgetSnapshot((good, *bad), (lengths,)))
    assert budget.snapshot() == TokenBudgetSnapshot((good,), ())


def test_as_many_tenants_are_remembered_as_may_be_those_that_were_heard_of_last() -> None:
    budget = TokenBudget(replace(CONFIG, tenants_max=3))
    for tenant in "abcda":
        taught(budget, Category.PROSE, 4.0, 1, tenant=tenant)
    assert [each.tenant for each in budget.snapshot().ratios] == ["", "c", "d", "a"]
    budget.configure(replace(CONFIG, tenants_max=1))
    assert [each.tenant for each in budget.snapshot().ratios] == ["", "a"]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1 << 26), st.none() | st.integers(-10, 1 << 30), st.none() | st.integers(-10, 1 << 30)
        ),
        max_size=60,
    )
)
def test_whatever_is_told_an_estimate_stays_within_its_bounds(told: list[tuple[int, int | None, int | None]]) -> None:
    budget = TokenBudget(CONFIG)
    for text_bytes, prompt_tokens, output_tokens in told:
        budget.observe(request(text_bytes, most=None), prompt_tokens, output_tokens, was_cut=text_bytes % 2 == 0)
        for each in budget.snapshot().ratios:
            assert RATIO_MIN <= each.mean <= RATIO_MAX
            assert each.deviation >= 0
        estimate = budget.estimate(request(1000, most=None))
        assert 1000 / RATIO_MAX <= estimate.prompt_tokens <= 1000
        assert 0 < estimate.output_tokens <= 1 << 20
