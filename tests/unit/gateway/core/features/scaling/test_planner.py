from __future__ import annotations

from msgspec.structs import replace

from gateway.core.features.scaling.planner import plan
from gateway.core.features.scaling.vocabulary import RegionNeed, Way
from gateway.core.vocabulary import RegionName

MS = 1_000_000
EU, US, AP = (RegionName(name) for name in ("eu", "us", "ap"))
ALL = (EU, US, AP)


def need(
    region: RegionName, replicas: int, slots: float, *, to: tuple[RegionName, ...] = ALL, most: int = 8
) -> RegionNeed:
    """Need of a region at ten requests per replica; neighbours are in the order of their names, 100 ms apart."""
    ways = tuple(Way(each, (number + 1) * 100 * MS) for number, each in enumerate(to) if each != region)
    return RegionNeed(region, replicas, 10, 1, most, round(slots * 1000), 0, ways=ways)


def wanted(*needs: RegionNeed, slack: float = 0.1) -> dict[RegionName, int]:
    return {region: verdict.replicas for region, verdict in plan(needs, slack).items()}


def loser(*needs: RegionNeed, slack: float = 0.1) -> RegionName | None:
    losers = [region for region, verdict in plan(needs, slack).items() if verdict.may_lose]
    assert len(losers) <= 1
    return losers[0] if losers else None


def test_what_a_neighbour_idles_for_is_not_asked_for() -> None:
    needs = need(EU, 2, 27), need(US, 2, 5), need(AP, 1, 9)
    assert wanted(*needs) == {EU: 2, US: 2, AP: 1}
    verdict = plan(needs, 0.1)
    assert verdict[EU].borrowed == 7_000
    assert verdict[US].lent + verdict[AP].lent == 7_000


def test_alone_it_is() -> None:
    needs = [need(EU, 2, 27, to=()), need(US, 2, 5, to=()), need(AP, 1, 9, to=())]
    assert wanted(*needs) == {EU: 3, US: 2, AP: 1}


def test_of_three_that_go_a_little_short_one_is_asked_and_it_is_the_one_that_goes_short_most() -> None:
    needs = need(EU, 2, 23), need(US, 2, 24), need(AP, 1, 12)
    assert wanted(*needs) == {EU: 2, US: 3, AP: 1}
    assert wanted(*reversed(needs)) == wanted(*needs)


def test_the_cheapest_is_asked_where_prices_are_known() -> None:
    eu, us, ap = need(EU, 2, 24), need(US, 2, 23), need(AP, 1, 1)
    assert wanted(replace(eu, price=3), replace(us, price=2), replace(ap, price=2)) == {EU: 2, US: 2, AP: 1}
    eu, us, ap = need(EU, 2, 24), need(US, 2, 23), need(AP, 1, 10)
    assert wanted(replace(eu, price=3), replace(us, price=2), replace(ap, price=1)) == {EU: 2, US: 2, AP: 2}
    verdict = plan([replace(eu, price=3), replace(us, price=2), replace(ap, price=1)], 0.1)
    assert verdict[AP].is_for_others
    assert not verdict[EU].is_for_others


def test_all_that_is_missing_is_asked_for_at_once() -> None:
    assert wanted(need(EU, 1, 75), need(US, 1, 10)) == {EU: 8, US: 1}


def test_over_the_most_that_there_may_be_neighbours_are_asked_and_the_rest_is_missing() -> None:
    needs = need(EU, 1, 75, most=4), need(US, 1, 10, most=3)
    verdict = plan(needs, 0.1)
    assert {region: each.replicas for region, each in verdict.items()} == {EU: 4, US: 3}
    assert verdict[EU].missing + verdict[US].missing == 15_000


def test_what_policy_keeps_at_home_is_no_neighbours() -> None:
    pinned = replace(need(EU, 2, 27), pinned=25_000)
    verdict = plan([pinned, need(US, 8, 5)], 0.1)
    assert verdict[EU].replicas == 3
    assert plan([replace(pinned, pinned=18_000), need(US, 8, 5)], 0.1)[EU].replicas == 2


def test_a_neighbour_that_may_not_be_sent_anything_counts_for_nothing() -> None:
    assert wanted(need(EU, 2, 27, to=()), need(US, 8, 5)) == {EU: 3, US: 8}
    assert wanted(replace(need(EU, 2, 27), is_alone=True), need(US, 8, 5)) == {EU: 3, US: 8}


def test_one_that_counts_on_nobody_still_helps_others() -> None:
    needs = need(EU, 2, 27), replace(need(US, 8, 5), is_alone=True)
    assert wanted(*needs) == {EU: 2, US: 8}


def test_one_region_is_told_that_a_replica_of_it_may_go_and_it_is_the_one_that_uses_least() -> None:
    assert loser(need(EU, 3, 20), need(US, 4, 5), need(AP, 2, 15)) == US


def test_the_dearest_goes_first() -> None:
    eu, us = need(EU, 3, 10), need(US, 4, 5)
    assert loser(eu, us) == US
    assert loser(replace(eu, price=2), us) == EU


def test_none_goes_that_a_neighbour_counts_on() -> None:
    needs = need(EU, 2, 27), need(US, 2, 8)
    assert loser(*needs) is None
    assert loser(need(EU, 2, 12), need(US, 2, 8)) == US


def test_regions_with_a_little_to_spare_each_give_up_one_together() -> None:
    """Neither region alone has a whole unused replica."""
    needs = need(EU, 2, 14), need(US, 2, 13)
    assert loser(need(EU, 2, 14, to=()), need(US, 2, 13, to=()), slack=0.0) is None
    assert loser(*needs, slack=0.0) == US


def test_none_goes_below_the_least_and_none_is_asked_for_that_is_no_use() -> None:
    assert loser(need(EU, 1, 0)) is None
    assert loser(replace(need(EU, 1, 0), least=0)) == EU
    assert wanted(replace(need(EU, 1, 0), least=3)) == {EU: 3}


def test_slack_keeps_one_that_is_only_just_not_needed() -> None:
    needs = need(EU, 2, 9.5), need(US, 1, 10)
    assert loser(*needs, slack=0.0) == EU
    assert loser(*needs, slack=0.1) is None
