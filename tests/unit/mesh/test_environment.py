from __future__ import annotations

from mesh.environment import keep_grpc_quiet


def test_grpc_says_nothing_by_itself_unless_an_operator_asks_for_it() -> None:
    environ: dict[str, str] = {}
    keep_grpc_quiet(environ)
    assert environ == {"GRPC_VERBOSITY": "NONE"}
    environ = {"GRPC_VERBOSITY": "DEBUG"}
    keep_grpc_quiet(environ)
    assert environ == {"GRPC_VERBOSITY": "DEBUG"}
