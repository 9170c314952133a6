from __future__ import annotations

from gateway.core.kernel.residency import closed_policy
from gateway.core.vocabulary import TenantName
from gateway.policy.flows import region_of
from gateway.policy.words import NAMES_SHOWN, region_sentences, sentences_seen_from, tenants_in_words
from tests.support.policies import Stated, by_jurisdiction, by_region, stated


def words(*policies: Stated) -> str:
    """All sentences about these regions."""
    regions = [region_of(*each) for each in policies]
    return "\n".join(sentence for region in regions for sentence in region_sentences(region, regions))


def test_both_ends_are_explained() -> None:
    eu = stated("dublin", "EU", accept=by_jurisdiction("EU", "US"))
    us = stated("virginia", "US", process=by_jurisdiction("US", "EU"))
    text = words(eu, us)
    assert "Requests are kept away from virginia (US): `process` names neither it nor its jurisdiction." in text
    assert "Overflow is taken in from virginia (US): `accept` names its jurisdiction." in text
    assert "Requests may be sent to dublin (EU): `process` names its jurisdiction." in text
    assert "Overflow is refused from dublin (EU): `accept` names neither it nor its jurisdiction." in text


def test_an_offer_that_nobody_takes_and_a_wish_that_nobody_grants_are_explained() -> None:
    eu = stated("dublin", "EU", process=by_jurisdiction("EU", "US"))
    us = stated("virginia", "US", accept=by_region("lyon"))
    fr = stated("lyon", "FR")
    text = words(eu, us, fr)
    assert (
        "Requests are not sent to virginia (US), though `process` names its jurisdiction: `accept` there does not"
        in text
    )
    assert "Overflow would be taken in from lyon (FR), for `accept` names it, but none is sent." in text


def test_a_denied_region_is_said_to_be_denied() -> None:
    dublin = stated("dublin", "EU", process={**by_jurisdiction("EU"), "denied_regions": ["lyon"]})
    lyon = stated("lyon", "EU", accept={**by_jurisdiction("EU"), "denied_regions": ["dublin"]})
    text = words(dublin, lyon)
    assert "Requests are kept away from lyon (EU): `process` denies it." in text
    assert "Overflow is refused from dublin (EU): `accept` denies it." in text


def test_tenants_are_explained_and_those_treated_alike_share_a_sentence() -> None:
    rules = {
        "clinic": {"process": by_region("lyon")},
        "court": {"process": by_region("virginia")},
        "bank": {"process": by_region("dublin")},
        "shop": {"process": by_region("dublin", "lyon")},
    }
    dublin = stated("dublin", "EU", tenants=rules)
    lyon = stated("lyon", "EU", accept=by_jurisdiction("EU"))
    text = words(dublin, lyon)
    assert (
        "Tenants clinic and court are refused here (HTTP 421) before any content is read: `tenants` leaves this" in text
    )
    assert "Tenant bank is processed here and nowhere else." in text
    assert "Tenant shop may be processed here and in lyon (EU), nowhere else." in text


def test_what_may_be_logged_is_said() -> None:
    open_logs = {"tenant": True, "client_address": True, "session_key": True}
    shut_logs = {"tenant": False}
    text = words(stated("dublin", "EU", logging=open_logs), stated("lyon", "EU", logging=shut_logs))
    assert "Logs may show the tenant, the client address and the session key, never the content of a request." in text
    assert "Logs never show the tenant, the client address, the session key or the content of a request." in text


def test_one_file_alone_is_explained_too() -> None:
    assert "Requests stay here, for no other region was given." in words(stated("dublin", "EU"))


def test_a_closed_region_is_explained_to_itself_and_to_those_who_would_send_there() -> None:
    path, policy = stated("dublin", "EU")
    us = stated("virginia", "US", process=by_jurisdiction("US", "EU"))
    text = words((path, closed_policy(policy.place, "mistyped")), us)
    assert "runs closed: its requests stay in the region" in text
    assert "closed until the policy there is mended" in text


def test_a_long_list_of_tenants_is_cut() -> None:
    names = [TenantName(f"t{number}") for number in range(NAMES_SHOWN + 1)]
    assert tenants_in_words(names[:1]) == "tenant t0"
    assert tenants_in_words(names[:-1]) == "tenants t0, t1, t2 and t3"
    assert tenants_in_words(names) == "tenants t0, t1, t2, t3 and 1 more"


def test_a_region_that_knows_only_its_own_policy_says_what_that_allows() -> None:
    eu = stated("dublin", "EU", process=by_jurisdiction("EU"), accept=by_jurisdiction("US"))
    places = [stated("virginia", "US")[1].place, stated("lyon", "EU")[1].place]
    text = "\n".join(sentences_seen_from(eu[1], places))
    assert "Requests may be sent to lyon (EU): `process` names its jurisdiction." in text
    assert "Requests are kept away from virginia (US): `process` names neither it nor its jurisdiction." in text
    assert "Overflow is taken in from virginia (US): `accept` names its jurisdiction." in text
    assert "Overflow is refused from lyon (EU)" in text


def test_one_that_is_closed_says_why() -> None:
    policy = closed_policy(stated("dublin", "EU")[1].place, "the file cannot be read")
    first, *_ = sentences_seen_from(policy, [])
    assert first.startswith("Closed, the file cannot be read: requests stay in the region")
