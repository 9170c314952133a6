"""Makes tiny models with random weights and a tokenizer of their own: `.venv-engines/bin/python tiny_model.py FOLDER`
makes FOLDER/tiny, and FOLDER/tiny-moe, all of whose layers but one have experts.

Run by .ci/setup-engines with vLLM's own packages; nothing is downloaded. Generated text means nothing, but is the same
for the same prompt at temperature 0.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch  # type: ignore[import-not-found]
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # type: ignore[import-not-found]
from transformers import (  # type: ignore[import-not-found]
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCABULARY = 2048
TEXTS_MAX = 120
PADDING, TURN, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Tokenizer of byte pairs learnt from the source of Python's standard library, which every machine has."""
    library = Path(os.__file__).parent
    texts = [str(path) for path in sorted(library.glob("*.py"))[:TEXTS_MAX]]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PADDING, TURN, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=PADDING,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def shared_settings(tokenizer: PreTrainedTokenizerFast) -> dict[str, object]:
    """Settings with widely spread weights and an untied output layer: with the usual ones the model repeats a single
    token.
    """
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "initializer_range": 0.15,
        "bos_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def make_dense(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(num_hidden_layers=2, **shared_settings(tokenizer)))


def make_moe(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """MoE of four layers, the second of them dense, so that code that counts layers must tell those with
    experts apart.
    """
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        num_hidden_layers=4,
        mlp_only_layers=[1],
        head_dim=32,
        moe_intermediate_size=64,
        num_experts=32,
        num_experts_per_tok=4,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        **shared_settings(tokenizer),
    )
    return Qwen3MoeForCausalLM(config)


def main(folder: Path) -> None:
    tokenizer = make_tokenizer()
    for name, make in (("tiny", make_dense), ("tiny-moe", make_moe)):
        make(tokenizer).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
