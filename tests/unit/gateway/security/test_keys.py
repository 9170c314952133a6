from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.core.vocabulary import Jurisdiction, ModelName, PlaceRule, RegionName, TenantName
from gateway.request.callers import ClientKey, KeyId, KeyLimits
from gateway.security.keys import KEYS_MAX, KeyEntry, KeysFile, KeyTable, mint, parse_time, read_keys_file
from mesh.faults import ConfigError

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
NOW = round(NOON.timestamp()) * 10**9


def entry(key_id: str = "team-a", **more: Any) -> tuple[str, KeyEntry]:
    key, kept = mint(key_id)
    return key, KeyEntry(id=key_id, hash=str(kept), tenant="acme", **more)


def written(folder: Path, *entries: dict[str, object], **more: object) -> Path:
    path = folder / "keys.yaml"
    path.write_text(yaml.safe_dump({"version": 1, "keys": list(entries), **more}))
    return path


def fault(folder: Path, *entries: dict[str, object], **more: object) -> str:
    with pytest.raises(ConfigError) as caught:
        read_keys_file(written(folder, *entries, **more))
    return str(caught.value)


PLAIN: dict[str, object] = {"id": "a", "tenant": "acme", "hash": f"blake2b:{'0' * 32}:{'0' * 64}"}


class TestRecognising:
    def test_a_key_opens_what_its_entry_says(self) -> None:
        key, kept = entry(
            concurrency=2,
            requests_per_minute=60,
            tokens_per_minute=1000,
            models=("llama",),
            process={"jurisdictions": ("EU",), "denied_regions": ("eu-west-2",)},
        )
        assert KeyTable([kept]).find(key, NOW) == (
            ClientKey(
                KeyId("team-a"),
                TenantName("acme"),
                KeyLimits(2, 60, 1000),
                process=PlaceRule(frozenset({Jurisdiction("EU")}), frozenset(), frozenset({RegionName("eu-west-2")})),
                models=frozenset({ModelName("llama")}),
            ),
            False,
        )

    def test_ids_may_look_like_anything_an_id_may(self) -> None:
        for key_id in ("a", "a-b-c", "0" * 64, "a._-9"):
            key, kept = entry(key_id)
            found = KeyTable([kept]).find(key, NOW)
            assert found is not None
            assert found.key.key_id == key_id

    def test_nothing_else_opens_it(self) -> None:
        key, kept = entry()
        other = mint("team-a")[0]
        wrong = [
            "", "ns-", key[:-1], key + "0", key.upper(), f" {key}", key[:-1] + ("0" if key[-1] != "0" else "1"),
            other, key.replace("team-a", "team-b"), key.removeprefix("ns-"), str(kept.hash), "ns-team-a-" + "0" * 64,
            key + "\n", key.replace("team-a", "nobody"), "ns--" + "0" * 64, "\udcff",
        ]  # fmt: skip
        assert [each for each in wrong if KeyTable([kept]).find(each, NOW) is not None] == []
        assert KeyTable([]).find("ns-nobody-" + "0" * 64, NOW) is None

    def test_a_key_of_another_entry_does_not_do(self) -> None:
        first, first_entry = entry("a")
        _, second_entry = entry("b")
        table = KeyTable([first_entry, second_entry])
        assert table.find(first.replace("ns-a-", "ns-b-"), NOW) is None

    def test_disabled_and_expired_keys_open_nothing(self) -> None:
        key, kept = entry(disabled=True)
        assert KeyTable([kept]).find(key, NOW) is None
        key, kept = entry(expires=NOON)
        assert KeyTable([kept]).find(key, NOW - 1) is not None
        assert KeyTable([kept]).find(key, NOW) is None

    def test_equal_secrets_are_kept_differently(self) -> None:
        _, kept = mint("a")
        assert mint("a")[0] != mint("a")[0]
        assert kept.salt != mint("a")[1].salt


class TestFile:
    def test_what_is_written_reads_back(self, tmp_path: Path) -> None:
        file = KeysFile(
            keys=(
                entry("a")[1],
                entry("b", models=("m",), process={"regions": ("eu-west-1",)}, expires="2027-01-31", disabled=True)[1],
            )
        )
        path = tmp_path / "keys.yaml"
        path.write_text(yaml.safe_dump(file.as_document()))
        assert read_keys_file(path) == file

    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            ({"tenant": "a b"}, "keys.yaml: keys[0].tenant: 'a b' should be 1 to 64 letters"),
            ({"id": "-a"}, "keys.yaml: keys[0].id: '-a' should be"),
            ({"hash": "ns-a-secret"}, "keys.yaml: keys[0].hash: is not what `nightside keys add` writes"),
            ({"expires": "soon"}, "keys.yaml: keys[0].expires: 'soon' is not a time such as 2027-01-31"),
            ({"concurrency": 0}, "keys.yaml: keys[0].concurrency: should be greater than or equal to 1"),
            ({"requests_per_minute": "5"}, "keys.yaml: keys[0].requests_per_minute: should be a valid integer"),
            ({"models": []}, "keys.yaml: keys[0].models: should not be empty"),
            ({"colour": "red"}, "keys.yaml: keys[0].colour: is not a known key"),
            ({"process": {"region": ["x"]}}, "keys.yaml: keys[0].process.region: is not a known key"),
            ({"disabled": "yes"}, "keys.yaml: keys[0].disabled: should be a valid boolean"),
        ],
    )
    def test_a_fault_is_named_by_its_path_and_shows_no_secret(
        self, tmp_path: Path, change: dict[str, object], expected: str
    ) -> None:
        message = fault(tmp_path, {**PLAIN, **change})
        assert re.sub(": line [2-9]: ", ": ", message).startswith(expected)
        assert ": line " in message
        assert "secret" not in message

    def test_an_id_stands_once(self, tmp_path: Path) -> None:
        assert fault(tmp_path, PLAIN, PLAIN) == "keys.yaml: line 4: keys[1].id: 'a' is used twice"

    def test_another_version_or_too_many_keys_are_refused(self, tmp_path: Path) -> None:
        assert "version" in fault(tmp_path, PLAIN, version=2)
        with pytest.raises(ValueError, match="at most"):
            KeysFile.model_validate({"keys": [{**PLAIN, "id": f"k{number}"} for number in range(KEYS_MAX + 1)]})

    def test_a_missing_file_is_said_to_be_missing(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
            read_keys_file(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2027-01-31", datetime(2027, 1, 31, tzinfo=UTC)),
        ("2027-01-31T12:00:00Z", datetime(2027, 1, 31, 12, tzinfo=UTC)),
        ("2027-01-31T12:00:00+02:00", datetime(2027, 1, 31, 10, tzinfo=UTC)),
    ],
)
def test_times(text: str, moment: datetime) -> None:
    assert parse_time(text) == moment
