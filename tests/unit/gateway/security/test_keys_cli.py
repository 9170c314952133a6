from __future__ import annotations

import fcntl
import json
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.core.vocabulary import ServiceClass
from gateway.security.keyring import Keyring
from gateway.security.keys import read_keys_file
from gateway.security.keys_cli import keys
from gateway.security.keys_editing import _editing
from mesh.clock import Clock


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(keys, [str(each) for each in arguments])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


def add(file: Path, key_id: str, *more: str) -> str:
    done = run("add", file, "--id", key_id, "--tenant", "acme", *more)
    assert done.exit_code == 0, done.output
    return done.output.strip()


def opens(file: Path, key: str) -> bool:
    return Keyring(file, Clock()).check(key) is not None


def test_add_prints_a_key_that_works_and_keeps_no_secret(file: Path) -> None:
    key = add(file, "team-a")
    assert opens(file, key)
    assert key.removeprefix("ns-team-a-") not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_change_sets_and_removes_limits_and_leaves_the_rest(file: Path) -> None:
    key = add(file, "team-a", "--requests-per-minute", "60", "--tokens-per-minute", "9000", "--concurrency", "4")
    done = run("change", file, "team-a", "--requests-per-minute", "90", "--tokens-per-minute", "none")
    assert done.exit_code == 0, done.output
    (entry,) = read_keys_file(file).keys
    assert (entry.requests_per_minute, entry.tokens_per_minute, entry.concurrency) == (90, None, 4)
    assert opens(file, key)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "name a limit to change"),
        (("--concurrency", "few"), 2, "'few' is neither a whole number nor `none`"),
        (("--concurrency", "0"), 1, "concurrency"),
    ],
)
def test_a_change_of_nothing_or_to_nonsense_is_refused(
    file: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    add(file, "team-a", "--concurrency", "4")
    done = run("change", file, "team-a", *arguments)
    assert (done.exit_code, words in done.output) == (code, True), done.output
    assert read_keys_file(file).keys[0].concurrency == 4


def test_a_disabled_key_is_enabled_again(file: Path) -> None:
    key = add(file, "team-a")
    assert run("disable", file, "team-a").exit_code == 0
    assert not opens(file, key)
    assert run("enable", file, "team-a").exit_code == 0
    assert opens(file, key)


def test_add_with_everything(file: Path) -> None:
    add(
        file, "all", "--concurrency", "4", "--requests-per-minute", "60", "--tokens-per-minute", "9000",
        "--model", "m1", "--model", "m2", "--jurisdiction", "EU", "--region", "eu-west-1", "--deny-region", "eu-west-2",
        "--expires", "2127-01-31", "--may-name-tenant",
        "--service-class", "batch",
    )  # fmt: skip
    (entry,) = read_keys_file(file).keys
    assert (entry.concurrency, entry.requests_per_minute, entry.tokens_per_minute) == (4, 60, 9000)
    assert entry.models == ("m1", "m2")
    assert entry.process is not None
    assert (entry.process.jurisdictions, entry.process.regions) == (("EU",), ("eu-west-1",))
    assert entry.process.denied_regions == ("eu-west-2",)
    assert entry.expires is not None
    assert entry.may_name_tenant
    assert entry.client_key().may_name_tenant
    assert entry.client_key().service_class is ServiceClass.BATCH
    shown = run("list", file).output
    assert shown == (
        "all  tenant=acme  concurrency=4 requests_per_minute=60 tokens_per_minute=9000 models=m1,m2"
        " process=jurisdictions:EU;regions:eu-west-1;denied_regions:eu-west-2 may_name_tenant=true"
        " service_class=batch expires=2127-01-31T00:00:00Z\n"
    )


def test_list_shows_no_hash(file: Path) -> None:
    key = add(file, "a")
    (hashed,) = (entry.hash for entry in read_keys_file(file).keys)
    for output in (run("list", file).output, run("list", file, "--json").output):
        assert hashed not in output
        assert key not in output
    assert json.loads(run("list", file, "--json").output) == [{"id": "a", "tenant": "acme"}]


def test_json_for_programs(file: Path) -> None:
    answer = json.loads(add(file, "a", "--json"))
    assert answer["id"] == "a"
    assert opens(file, answer["key"])


def test_disable_and_remove(file: Path) -> None:
    first, second = add(file, "first"), add(file, "second")
    assert run("disable", file, "first").exit_code == 0
    assert not opens(file, first)
    assert opens(file, second)
    assert run("remove", file, "second").exit_code == 0
    assert [entry.id for entry in read_keys_file(file).keys] == ["first"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "FILE", "--id", "a", "--tenant", "acme"), "keys.yaml: keys[1].id: 'a' is used twice"),
        (("add", "FILE", "--id", "b c", "--tenant", "acme"), "keys.yaml: keys[1].id: 'b c' should be"),
        (("add", "FILE", "--id", "b", "--tenant", "acme", "--expires", "soon"), "expires: 'soon' is not a time"),
        (("disable", "FILE", "nobody"), "no key has the id 'nobody'"),
        (("remove", "FILE", "nobody"), "no key has the id 'nobody'"),
        (("list", "MISSING"), "none.yaml: cannot be read: No such file"),
        (("disable", "MISSING", "a"), "none.yaml: cannot be read: No such file"),
        (("add", "NOWHERE", "--id", "b", "--tenant", "acme"), "No such file or directory"),
    ],
)
def test_what_goes_wrong_is_said_and_changes_nothing(file: Path, arguments: tuple[str, ...], message: str) -> None:
    add(file, "a")
    before = file.read_bytes()
    places = {"FILE": file, "MISSING": file.parent / "none.yaml", "NOWHERE": file.parent / "no" / "keys.yaml"}
    done = run(*(places.get(each, each) for each in arguments))
    assert (done.exit_code, message in done.output) == (1, True), done.output
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_a_link_stays_a_link(file: Path) -> None:
    real = file.parent / "real.yaml"
    add(real, "a")
    file.symlink_to(real)
    add(file, "b")
    assert file.is_symlink()
    assert [entry.id for entry in read_keys_file(real).keys] == ["a", "b"]


def test_nobody_else_edits_meanwhile(file: Path) -> None:
    add(file, "a")
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        with _editing(file), pytest.raises(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(folder)
