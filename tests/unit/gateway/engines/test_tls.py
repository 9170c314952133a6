from __future__ import annotations

import ssl
from contextlib import closing
from pathlib import Path

import pytest

from gateway.config.targets import Dialect, EngineTlsConfig
from gateway.engines.endpoints import Engine
from gateway.engines.probe import get_page, probe_connections
from gateway.engines.tls import TlsContexts
from mesh.faults import ConfigError
from tests.fakes.engine_pages import PagesEngine, server_context, vllm_page
from tests.support.certificates import Files, clients_leaf, mesh_leaf, new_ca, roots_of
from tests.support.core import US

CA = new_ca()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """An engine's certificate for `localhost` and `127.0.0.1`, and its authority."""
    made = Files(tmp_path)
    made.put(clients_leaf(CA), roots=roots_of(CA))
    return made


async def ask(files: Files, config: EngineTlsConfig, *, asks_for_certificate: bool = False) -> int:
    pages = PagesEngine({"/metrics": vllm_page((0, 0))})
    async with pages.serving(tls=server_context(files, asks_for_certificate=asks_for_certificate)) as engine:
        asked = Engine(engine.url, Dialect.VLLM, tls=TlsContexts().get(config))
        with closing(probe_connections(1.0)) as connections:
            return (await get_page(connections, asked, "/metrics"))[0]


async def test_an_engine_is_believed_when_its_authority_vouches_for_it(files: Files) -> None:
    assert await ask(files, EngineTlsConfig(ca_file=files.roots)) == 200
    assert await ask(files, EngineTlsConfig(ca_file=files.roots, server_name="localhost")) == 200


async def test_strangers_and_other_names_are_refused(files: Files) -> None:
    with pytest.raises(ssl.SSLError):
        await ask(files, EngineTlsConfig())
    with pytest.raises(ssl.SSLError):
        await ask(files, EngineTlsConfig(ca_file=files.roots, server_name="other.example.net"))


async def test_checking_can_only_be_given_up_in_so_many_words(files: Files) -> None:
    assert await ask(files, EngineTlsConfig(insecure_skip_verify=True)) == 200


async def test_the_gateway_shows_its_own_certificate_where_one_is_asked_for(files: Files) -> None:
    own = Files(files.folder / "own")
    own.put(mesh_leaf(CA, "us-1", US))
    shown = EngineTlsConfig(files.roots, own.certificate, own.key)
    assert await ask(files, shown, asks_for_certificate=True) == 200
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await ask(files, EngineTlsConfig(files.roots), asks_for_certificate=True)


def test_what_has_not_changed_keeps_its_context(files: Files) -> None:
    config = EngineTlsConfig(ca_file=files.roots)
    first = TlsContexts()
    context = first.get(config).context
    assert first.get(EngineTlsConfig(ca_file=files.roots, server_name="x")).context is context
    assert TlsContexts(first).get(config).context is context
    files.put(roots=roots_of(new_ca()))
    assert first.get(config).context is context, "files are read when contexts are made, not in between"
    assert TlsContexts(first).get(config).context is not context


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_files_that_cannot_be_used_are_an_error(files: Files, content: bytes | None) -> None:
    broken = files.folder / "broken.pem"
    if content is not None:
        broken.write_bytes(content)
    for config in (EngineTlsConfig(ca_file=broken), EngineTlsConfig(files.roots, files.certificate, broken)):
        with pytest.raises(ConfigError, match=r"broken\.pem cannot be used"):
            TlsContexts().get(config)
