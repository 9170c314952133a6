from __future__ import annotations

from typing import Any

import pytest

from controller.dns.route53.record_sets import RecordLocation, as_api, from_api, location_of


@pytest.mark.parametrize(
    "said",
    [
        {"Name": "m.", "Type": "A", "TTL": 5, "ResourceRecords": [{"Value": "192.0.2.1"}]},
        {
            "Name": "m.",
            "Type": "A",
            "SetIdentifier": "x",
            "Region": "us-east-1",
            "AliasTarget": {"HostedZoneId": "Z", "DNSName": "o.m.", "EvaluateTargetHealth": True},
        },
        {
            "Name": "m.",
            "Type": "AAAA",
            "SetIdentifier": "x",
            "GeoLocation": {"CountryCode": "US", "SubdivisionCode": "CA"},
            "TTL": 5,
            "ResourceRecords": [{"Value": "2001:db8::1"}],
            "HealthCheckId": "h",
        },
        {
            "Name": "m.",
            "Type": "A",
            "SetIdentifier": "x",
            "MultiValueAnswer": True,
            "TTL": 5,
            "ResourceRecords": [{"Value": "192.0.2.1"}],
        },
        {
            "Name": "m.",
            "Type": "A",
            "SetIdentifier": "x",
            "Weight": 7,
            "GeoProximityLocation": {"AWSRegion": "us-east-1", "Bias": 3},
            "TTL": 5,
            "ResourceRecords": [{"Value": "192.0.2.1"}],
        },
    ],
)
def test_nothing_that_was_said_is_lost(said: dict[str, Any]) -> None:
    """Record sets keep even fields that ours never have: a deletion has to match the record set exactly."""
    assert as_api(from_api(said)) == said


def test_an_address_is_the_same_however_it_is_spelled() -> None:
    spelled = {"Name": "M.", "Type": "AAAA", "TTL": 5, "ResourceRecords": [{"Value": "2001:0DB8:0:0:0:0:0:1"}]}
    plain = {"Name": "m.", "Type": "AAAA", "TTL": 5, "ResourceRecords": [{"Value": "2001:db8::1"}]}
    assert from_api(spelled) == from_api(plain)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("DE", RecordLocation(country="DE")),
        ("US-CA", RecordLocation(country="US", subdivision="CA")),
        ("continent:EU", RecordLocation(continent="EU")),
    ],
)
def test_places_are_written_as_they_are_read(text: str, place: RecordLocation) -> None:
    assert location_of(text) == place
    assert str(place) == text


@pytest.mark.parametrize(
    "text", ["", "de", "DEU", "US-", "US-CALIF", "EU:continent", "continent:", "continent:Europe", "*"]
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a place as Route53 has them"):
        location_of(text)
