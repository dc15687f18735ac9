#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a GGUF file of Qwen3-0.6B's shape with random BF16 weights, for timing only.

    bench/peers/random-gguf.py OUT.gguf [LAYERS [VOCABULARY]]

llama.cpp's llama-quantize makes the block-quantised ones of it.  The vocabulary is made up.
"""
import array
import random
import struct
import sys

LAYERS = int(sys.argv[2]) if len(sys.argv) > 2 else 28
VOCAB = int(sys.argv[3]) if len(sys.argv) > 3 else 151936
HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM = 1024, 3072, 16, 8, 128
U32, F32, STRING, ARRAY, I32 = 4, 6, 8, 9, 5
TYPE_F32, TYPE_BF16, ALIGN = 0, 30, 32


def text(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def scalar(key, kind, value):
    return text(key) + struct.pack("<I", kind) + (text(value) if kind == STRING else
                                                  struct.pack("<f" if kind == F32 else "<I", value))


def listing(key, kind, values):
    items = b"".join(map(text, values)) if kind == STRING else struct.pack(f"<{len(values)}i", *values)
    return text(key) + struct.pack("<IIQ", ARRAY, kind, len(values)) + items


def byte_letters():
    """The 256 letters of byte-level BPE."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return [chr(b) for b in plain] + [chr(256 + i) for i in range(len(rest))]


def tensors():
    yield "token_embd.weight", (HIDDEN, VOCAB)
    yield "output_norm.weight", (HIDDEN,)
    for i in range(LAYERS):
        for name, shape in (("attn_norm", (HIDDEN,)), ("attn_q", (HIDDEN, HEADS * HEAD_DIM)),
                            ("attn_k", (HIDDEN, KV_HEADS * HEAD_DIM)),
                            ("attn_v", (HIDDEN, KV_HEADS * HEAD_DIM)),
                            ("attn_output", (HEADS * HEAD_DIM, HIDDEN)),
                            ("attn_q_norm", (HEAD_DIM,)), ("attn_k_norm", (HEAD_DIM,)),
                            ("ffn_norm", (HIDDEN,)), ("ffn_gate", (HIDDEN, FFN)),
                            ("ffn_up", (HIDDEN, FFN)), ("ffn_down", (FFN, HIDDEN))):
            yield f"blk.{i}.{name}.weight", shape


def main():
    letters = byte_letters()
    tokens = letters + [letters[0] + letters[1]]
    tokens += [f"<{i}>" for i in range(len(tokens), VOCAB)]
    meta = [
        scalar("general.architecture", STRING, "qwen3"),
        scalar("general.name", STRING, "random qwen3-0.6b"),
        scalar("qwen3.block_count", U32, LAYERS),
        scalar("qwen3.context_length", U32, 8192),
        scalar("qwen3.embedding_length", U32, HIDDEN),
        scalar("qwen3.feed_forward_length", U32, FFN),
        scalar("qwen3.attention.head_count", U32, HEADS),
        scalar("qwen3.attention.head_count_kv", U32, KV_HEADS),
        scalar("qwen3.attention.key_length", U32, HEAD_DIM),
        scalar("qwen3.attention.value_length", U32, HEAD_DIM),
        scalar("qwen3.attention.layer_norm_rms_epsilon", F32, 1e-6),
        scalar("qwen3.rope.freq_base", F32, 1e6),
        scalar("general.file_type", U32, 32),
        scalar("tokenizer.ggml.model", STRING, "gpt2"),
        scalar("tokenizer.ggml.pre", STRING, "qwen2"),
        listing("tokenizer.ggml.tokens", STRING, tokens),
        listing("tokenizer.ggml.token_type", I32, [1] * VOCAB),
        listing("tokenizer.ggml.merges", STRING, [f"{letters[0]} {letters[1]}"]),
        scalar("tokenizer.ggml.eos_token_id", U32, VOCAB - 1),
    ]
    random.seed(1)
    weights = array.array("H", (struct.unpack("<HH", struct.pack("<f", random.gauss(0, 0.02)))[1]
                                for _ in range(1 << 18)))
    infos, parts, offset = b"", [], 0
    for name, shape in tensors():
        kind = TYPE_F32 if len(shape) == 1 else TYPE_BF16
        elems = shape[0] * (shape[1] if len(shape) > 1 else 1)
        size = elems * (4 if kind == TYPE_F32 else 2)
        infos += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        parts.append((kind, elems))
        offset += (size + ALIGN - 1) // ALIGN * ALIGN
    with open(sys.argv[1], "wb") as out:
        out.write(struct.pack("<4sIQQ", b"GGUF", 3, len(parts), len(meta)) + b"".join(meta) + infos)
        for kind, elems in parts:
            out.write(bytes(-out.tell() % ALIGN))
            if kind == TYPE_F32:
                out.write(struct.pack("<f", 1.0) * elems)
                continue
            while elems:
                at = random.randrange(1 << 16)
                n = min(elems, len(weights) - at)
                out.write(weights[at:at + n].tobytes())
                elems -= n


if len(sys.argv) not in (2, 3, 4):
    sys.exit(__doc__)
main()
