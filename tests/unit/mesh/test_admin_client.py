from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gateway.features.lockdown.cli import lockdown
from mesh.admin_client import Admin, AdminAnswer, AdminFault


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"error": "no"}', "no"),
        (b"<html>", "the gateway answered with status 500"),
        (b"[]", "the gateway answered with status 500"),
        (b"{}", "the gateway answered with status 500"),
    ],
)
def test_the_gateway_s_own_words_are_used_where_there_are_any(body: bytes, told: str) -> None:
    assert AdminAnswer(500, body).fault == told


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "ftp://127.0.0.1:1", ""])
def test_an_address_that_does_not_answer_is_named(url: str) -> None:
    with pytest.raises(AdminFault, match=f"^{url} cannot be reached: ."):
        Admin(url).ask("GET", "/ready")


def test_a_token_is_never_shown() -> None:
    assert "s3cret" not in repr(Admin("http://x", "s3cret"))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(AdminFault, match=r"nothing.* cannot be reached"):
        Admin("https://127.0.0.1:1/nothing", ca_file=tmp_path / "nothing").ask("GET", "/ready")
    with pytest.raises(click.BadParameter, match=r"nothing cannot be read"):
        lockdown.main(["--token-file", str(tmp_path / "nothing")], standalone_mode=False)


def test_a_token_that_others_may_read_is_told(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret")
    for mode, is_told in ((0o644, True), (0o600, False)):
        token.chmod(mode)
        said = CliRunner().invoke(lockdown, ["--token-file", str(token), "--admin", "http://127.0.0.1:1"]).stderr
        assert (f"warning: {token} has mode 0644" in said) is is_told
        assert "s3cret" not in said
