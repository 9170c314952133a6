"""A chain that was forged whole, or cut at its end, is consistent in itself: keys and noted heads reveal it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from gateway.core.vocabulary import GatewayId
from gateway.records.audit_cli import audit
from gateway.records.audit_files import ChainedFiles, ChainSettings, chain, hash_of
from gateway.records.audit_heads import HeadSigner, read_noted, read_public_key
from mesh.faults import ConfigError
from tests.support.core import US

OURS, OTHER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()


class Gateway:
    """Writer of a chain, whose clock moves by a second with each line."""

    def __init__(self, folder: Path, key: Ed25519PrivateKey | None = OURS, *, file_bytes_max: int = 1 << 20) -> None:
        self.folder = folder
        self.seconds = 0
        settings = ChainSettings(folder, file_bytes_max, None, syncs=False)
        signer = None if key is None else HeadSigner(key, within_s=60)
        self.files = ChainedFiles(
            settings, GatewayId("us-1"), US, wall_time=self.time, on_deleted=lambda _: None, signer=signer
        )

    def time(self) -> str:
        return f"2026-03-01T12:{self.seconds // 60:02}:{self.seconds % 60:02}Z"

    def write(self, count: int) -> None:
        for _ in range(count):
            self.seconds += 1
            self.files.write(
                [msgspec.json.encode({"kind": "lost", "time": self.time(), "gateway": "us-1", "lines": 1})]
            )

    def paths(self) -> list[Path]:
        return sorted(self.folder.glob("*.audit"))


@pytest.fixture
def public(tmp_path: Path) -> Path:
    path = tmp_path / "audit.pub"
    path.write_bytes(OURS.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(audit, [str(each) for each in arguments])


def verified(gateway: Gateway, public: Path) -> Result:
    return run("verify", *gateway.paths(), "--public-key", public)


def written(folder: Path, key: Ed25519PrivateKey | None = OURS) -> Gateway:
    """A closed chain with two signed heads along the way."""
    gateway = Gateway(folder, key)
    for _ in range(2):
        gateway.write(3)
        gateway.files.seal()
    gateway.write(2)
    gateway.files.close()
    return gateway


def rechained(lines: list[bytes]) -> bytes:
    """Lines chained again, as a forger without the key would do."""
    made: list[bytes] = []
    for line in lines:
        body = line[: line.rindex(b',"prev"')] + b"}"
        made.append(chain(body, hash_of(made[-1]) if made else ""))
    return b"".join(line + b"\n" for line in made)


class TestSignatures:
    def test_what_the_gateway_wrote_is_whole(self, tmp_path: Path, public: Path) -> None:
        result = verified(written(tmp_path / "a"), public)
        assert (result.exit_code, result.output.splitlines()[0]) == (0, "whole: 13 lines in 1 files")
        assert run("summary", *written(tmp_path / "b").paths()).exit_code == 1, "eight lines say that some were lost"

    def test_signed_ends_leave_files_within_their_bound_and_all_are_signed(self, tmp_path: Path, public: Path) -> None:
        gateway = Gateway(tmp_path / "a", file_bytes_max=3000)
        gateway.write(60)
        gateway.files.close()
        assert len(gateway.paths()) > 3
        assert all(path.stat().st_size <= 3000 for path in gateway.paths())
        result = verified(gateway, public)
        assert (result.exit_code, "note" in result.output) == (0, False)

    @pytest.mark.parametrize("key", [None, OTHER], ids=["unsigned", "another"])
    def test_one_forged_whole_is_found(self, tmp_path: Path, public: Path, key: Ed25519PrivateKey | None) -> None:
        forged = written(tmp_path / "a", key)
        assert run("verify", *forged.paths()).exit_code == 0, "by itself it holds"
        result = verified(forged, public)
        assert result.exit_code == 1
        assert "the file may be forged whole" in result.output

    @pytest.mark.parametrize(
        "tamper",
        [
            lambda lines: [*lines[:3], lines[3].replace(b'"lines":1', b'"lines":7'), *lines[4:]],
            lambda lines: [*lines[:3], *lines[4:]],
            lambda lines: [*lines[:2], *lines[4:]],
            lambda lines: [lines[0].replace(b"us-east-1", b"eu-west-1"), *lines[1:]],
            lambda lines: [line for line in lines if not line.startswith(b'{"kind":"head"')],
            lambda lines: [*lines, lines[3]],
        ],
    )
    def test_lines_that_were_chained_anew_are_found(
        self, tmp_path: Path, public: Path, tamper: Callable[[list[bytes]], list[bytes]]
    ) -> None:
        gateway = written(tmp_path / "a")
        (path,) = gateway.paths()
        path.write_bytes(rechained(tamper(path.read_bytes().splitlines())))
        assert run("verify", path).exit_code == 0, "by itself it holds"
        assert verified(gateway, public).exit_code == 1

    def test_an_end_that_was_cut_off_is_told_as_not_closed(self, tmp_path: Path, public: Path) -> None:
        gateway = written(tmp_path / "a")
        (path,) = gateway.paths()
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:5]))
        result = verified(gateway, public)
        assert f"note: {path}: it was not closed" in result.output
        assert f"note: {path}: its last 3 lines are not signed" in result.output

    def test_lines_that_should_have_been_signed_by_then_are_found(self, tmp_path: Path, public: Path) -> None:
        gateway = Gateway(tmp_path / "a")
        gateway.write(121)
        assert verified(gateway, public).exit_code == 0
        gateway.write(1)
        result = verified(gateway, public)
        assert (result.exit_code, "should be within 60 s" in result.output) == (1, True)

    def test_a_head_is_of_its_place_only(self, tmp_path: Path, public: Path) -> None:
        """A forger cannot use the signatures of other files."""
        first, second = written(tmp_path / "a"), Gateway(tmp_path / "a")
        second.files.close()
        stolen = first.paths()[0].read_bytes().splitlines()[1]
        path = first.paths()[1]
        path.write_bytes(rechained([path.read_bytes().splitlines()[0], stolen]))
        result = run("verify", path, "--public-key", public)
        assert (result.exit_code, "of another place" in result.output) == (1, True)


class TestNotedHeads:
    def noted(self, folder: Path, gateway: Gateway) -> Path:
        path = folder / "noted"
        path.write_text("a line of something else\n" + run("heads", *gateway.paths()).output)
        assert read_noted(path)
        return path

    def test_what_is_as_it_was_fits(self, tmp_path: Path) -> None:
        gateway = Gateway(tmp_path / "a", None)
        gateway.write(3)
        noted = self.noted(tmp_path, gateway)
        gateway.write(3)
        assert run("verify", *gateway.paths(), "--noted", noted).exit_code == 0

    def test_what_was_cut_off_is_named(self, tmp_path: Path) -> None:
        gateway = Gateway(tmp_path / "a", None)
        gateway.write(8)
        noted = self.noted(tmp_path, gateway)
        (path,) = gateway.paths()
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:5]))
        assert run("verify", path).exit_code == 0, "by itself it holds"
        result = run("verify", path, "--noted", noted)
        assert result.exit_code == 1
        assert f"broken: {path}:5: cut off after this line: lines 6 to 9 had been written" in result.output

    def test_what_was_written_anew_is_found(self, tmp_path: Path) -> None:
        gateway = Gateway(tmp_path / "a", None)
        gateway.write(3)
        noted = self.noted(tmp_path, gateway)
        (path,) = gateway.paths()
        lines = path.read_bytes().splitlines()
        path.write_bytes(rechained([lines[0], lines[1].replace(b'"lines":1', b'"lines":2'), *lines[2:]]))
        result = run("verify", path, "--noted", noted)
        assert (result.exit_code, "written anew" in result.output) == (1, True)

    def test_a_whole_file_that_is_gone_from_the_end_is_missed(self, tmp_path: Path) -> None:
        gateway = Gateway(tmp_path / "a", None, file_bytes_max=700)
        gateway.write(20)
        noted = self.noted(tmp_path, gateway)
        kept = gateway.paths()[:-1]
        assert len(kept) > 1
        assert run("verify", *kept).exit_code == 0
        assert run("verify", *kept, "--noted", noted).exit_code == 1
        later = run("verify", *gateway.paths()[1:], "--noted", noted)
        assert (later.exit_code, "note: file 1 of us-1" in later.output) == (0, True)

    def test_broken_files_are_not_to_be_noted(self, tmp_path: Path) -> None:
        gateway = written(tmp_path / "a")
        (path,) = gateway.paths()
        path.write_bytes(path.read_bytes().replace(b'"lines":1', b'"lines":2', 1))
        assert run("heads", path).exit_code == 1


class TestKeyFiles:
    @pytest.mark.parametrize("content", [b"", b"nonsense", None])
    def test_what_is_no_key_is_told(self, tmp_path: Path, content: bytes | None) -> None:
        path = tmp_path / "key"
        if content is not None:
            path.write_bytes(content)
        for read in (read_public_key, read_noted, lambda each: HeadSigner.read(each, 1)):
            with pytest.raises(ConfigError, match=str(path)):
                read(path)
        gateway = written(tmp_path / "a")
        assert run("verify", *gateway.paths(), "--public-key", path).exit_code == 2

    def test_another_kind_of_key_is_none_either(self, tmp_path: Path) -> None:
        path = tmp_path / "key"
        key = generate_private_key(SECP256R1())
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        with pytest.raises(ConfigError, match="holds no Ed25519 key"):
            HeadSigner.read(path, 1)

    def test_the_one_of_openssl_is_read(self, tmp_path: Path) -> None:
        path = tmp_path / "key"
        path.write_bytes(OURS.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        assert isinstance(HeadSigner.read(path, 1), HeadSigner)
