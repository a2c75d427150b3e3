"""Models with a byte vocabulary: two have random weights (real inference, no knowledge), one reads a count."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.cases import cases

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|im_start|>", "<|im_end|>"]
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *special]
    inner = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token=special[1],
        pad_token=special[1],
        additional_special_tokens=special[:1],
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def write_tiny_chat(folder: Path) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.2,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_count_reader(folder: Path, count: int, answer: int) -> Path:
    """A GPT-2 that says 1 where the digit at token ``count`` is 5 or more, and 0 where it is less.

    A digit's embedding holds it in dimension 0. Only the second block does anything: at token ``answer`` (marked in
    dimension 2) its head reads token ``count`` (marked in dimension 1) and writes what it holds to dimension 3, which
    is the difference of 1 and 0. So that no layer norm changes anything, dimensions 4 to 7 are those negated, and the
    last two are large and constant.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer, width, large = byte_tokenizer(), 10, 1000.0
    ends = tokenizer.eos_token_id
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=512,
        n_embd=width,
        n_layer=2,
        n_head=1,
        bos_token_id=ends,
        eos_token_id=ends,
    )
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for value in model.parameters():
            value.zero_()
        digits = [
            tokenizer(str(digit), add_special_tokens=False)["input_ids"][0] for digit in range(10)
        ]
        words, places = model.transformer.wte.weight, model.transformer.wpe.weight
        words[digits, 0] = (torch.arange(10.0) - 4.5) / 4.5
        words[digits[:2], 3] = torch.tensor([-1.0, 1.0])
        places[count, 1], places[answer, 2] = 1, 1
        places[:, 8], places[:, 9] = large, -large
        for norm in (model.transformer.h[1].ln_1, model.transformer.ln_f):
            norm.weight.fill_(large * (2 / width) ** 0.5)
        reads = model.transformer.h[1].attn
        reads.c_attn.weight[2, 0] = 100  # query
        reads.c_attn.weight[1, width] = 1  # key
        reads.c_attn.weight[0, 2 * width] = 1  # value
        reads.c_proj.weight[0, 3] = 1
        for weight in (words, places, reads.c_proj.weight):
            weight[:, 4:8] = -weight[:, :4]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_tiny_gguf(path: Path) -> Path:
    """A Qwen3-architecture model with random weights and a byte-level vocabulary: real inference, no knowledge."""
    import gguf

    rng = np.random.default_rng(0)
    settings = cases(__file__, "a tiny GGUF")
    sizes = ("embedding_length", "head_count", "key_length", "feed_forward_length", "block_count")
    d, heads, d_head, d_ff, layers = (settings[name] for name in sizes)
    # GPT-2's byte alphabet: printable bytes stand for themselves, the others are shifted above 255.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = iter(range(256, 512))
    alphabet = [chr(b) if b in printable else chr(next(shifted)) for b in range(256)]
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    tokens = [*alphabet, "Ġt", *special]
    writer = gguf.GGUFWriter(path, "qwen3")
    for name, value in settings.items():
        getattr(writer, f"add_{name}")(value)
    writer.add_token_list(tokens)
    normal, control = int(gguf.TokenType.NORMAL), int(gguf.TokenType.CONTROL)
    writer.add_token_types([normal] * (len(tokens) - len(special)) + [control] * len(special))
    writer.add_token_merges(["Ġ t"])
    writer.add_eos_token_id(len(tokens) - 2)
    writer.add_pad_token_id(len(tokens) - 1)
    writer.add_bos_token_id(len(tokens) - 1)
    writer.add_add_bos_token(False)

    def weights(name: str, *shape: int, ones: bool = False) -> None:
        data = np.ones(shape) if ones else rng.normal(0, 0.3, shape)
        writer.add_tensor(name, data.astype(np.float32))

    weights("token_embd.weight", len(tokens), d)
    weights("output_norm.weight", d, ones=True)
    weights("output.weight", len(tokens), d)
    for layer in range(layers):
        block = f"blk.{layer}"
        weights(f"{block}.attn_norm.weight", d, ones=True)
        weights(f"{block}.ffn_norm.weight", d, ones=True)
        for name in ("attn_q", "attn_k", "attn_v"):
            weights(f"{block}.{name}.weight", heads * d_head, d)
        weights(f"{block}.attn_q_norm.weight", d_head, ones=True)
        weights(f"{block}.attn_k_norm.weight", d_head, ones=True)
        weights(f"{block}.attn_output.weight", d, heads * d_head)
        weights(f"{block}.ffn_gate.weight", d_ff, d)
        weights(f"{block}.ffn_up.weight", d_ff, d)
        weights(f"{block}.ffn_down.weight", d, d_ff)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
