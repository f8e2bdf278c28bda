#!/usr/bin/env python3
"""make_published.py FOLDER: writes the inputs eagle3, eagle3-blocks, eagle3-heads, dflash, dflash-markov, dflash-own and dflash-2 of the fuzzer drafter_file, and each cut short: small
files of random weights in the layouts of llama.cpp's architectures eagle3 and dflash, for tests/fuzz/target.gguf, after the byte that chooses the
method."""
import random
import struct
import sys

H, KV, FF, VOCABULARY, TOKENS = 32, 32, 16, 270, 40
U32, F32, ARRAY, STRING, I32 = 4, 6, 9, 8, 5
SHAPE = [("block_count", 1), ("context_length", 64), ("embedding_length", H), ("feed_forward_length", FF),
         ("attention.head_count", 2), ("attention.head_count_kv", 2), ("target_hidden_size", H)]
rng = random.Random()


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def key(name, kind, payload):
    return text(name) + struct.pack("<I", kind) + payload


def number(name, value):
    return key(name, U32, struct.pack("<I", value))


def numbers(name, values):
    return key(name, ARRAY, struct.pack(f"<IQ{len(values)}i", I32, len(values), *values))


def vector(name, n):
    return name, [n], 1, struct.pack(f"<{n}e", *[rng.gauss(0, 1) for _ in range(n)])


def matrix(name, n_in, n_out, deviation):
    return name, [n_in, n_out], 1, struct.pack(f"<{n_in * n_out}e", *[rng.gauss(0, deviation) for _ in range(n_in * n_out)])


def eagle3():
    yield matrix("fc.weight", 2 * H, H, 0.1)
    for name in ("attn_norm", "attn_norm_2", "ffn_norm"):
        yield vector(f"blk.0.{name}.weight", H)
    for name, n_in, n_out in (("attn_q", 2 * H, H), ("attn_k", 2 * H, KV), ("attn_v", 2 * H, KV), ("attn_output", H, H),
                              ("ffn_gate", H, FF), ("ffn_up", H, FF), ("ffn_down", FF, H)):
        yield matrix(f"blk.0.{name}.weight", n_in, n_out, 0.15)
    yield vector("output_norm.weight", H)
    yield matrix("output.weight", H, TOKENS, 0.3)
    yield "d2t", [TOKENS], 27, struct.pack(f"<{TOKENS}q", *range(5, VOCABULARY, 6)[:TOKENS])


def heads():
    yield from eagle3()
    for name, n in (("attn_q", H), ("attn_k", KV), ("attn_v", KV), ("attn_output", H)):
        yield vector(f"blk.0.{name}.bias", n)
    for name in ("attn_q_norm", "attn_k_norm"):
        yield vector(f"blk.0.{name}.weight", 16)


def blocks():
    yield from eagle3()
    yield vector("mask_hidden.weight", 2 * H)
    for name in ("attn_norm", "ffn_norm"):
        yield vector(f"blk.1.{name}.weight", H)
    for name, n_in, n_out in (("attn_q", H, H), ("attn_k", H, KV), ("attn_v", H, KV), ("attn_output", H, H),
                              ("ffn_gate", H, FF), ("ffn_up", H, FF), ("ffn_down", FF, H)):
        yield matrix(f"blk.1.{name}.weight", n_in, n_out, 0.15)


def dflash():
    yield matrix("fc.weight", 2 * H, H, 0.1)
    for name, n in (("enc.output_norm", H), ("output_norm", H), ("blk.0.attn_norm", H), ("blk.0.ffn_norm", H), ("blk.0.attn_q_norm", 16),
                    ("blk.0.attn_k_norm", 16)):
        yield vector(f"{name}.weight", n)
    for name, n_in, n_out in (("attn_q", H, H), ("attn_k", H, KV), ("attn_v", H, KV), ("attn_output", H, H), ("ffn_gate", H, FF),
                              ("ffn_up", H, FF), ("ffn_down", FF, H)):
        yield matrix(f"blk.0.{name}.weight", n_in, n_out, 0.15)


def markov():
    yield from dflash()
    yield matrix("markov_w1.weight", 8, VOCABULARY, 1)
    yield matrix("markov_w2.weight", 8, VOCABULARY, 0.5)
    yield matrix("markov_gate.weight", H + 8, 8, 0.1)
    yield vector("markov_gate.bias", 8)
    yield matrix("conf_proj.weight", H + 8, 1, 0.1)
    yield vector("conf_proj.bias", 1)


def own_head():
    yield from dflash()
    yield vector("blk.0.attn_sinks.weight", 2)
    for name, n in (("attn_q", H), ("attn_k", KV), ("attn_v", KV), ("attn_output", H)):
        yield vector(f"blk.0.{name}.bias", n)
    yield matrix("token_embd.weight", H, VOCABULARY, 0.5)
    yield matrix("output.weight", H, TOKENS, 0.3)
    yield "d2t", [TOKENS], 27, struct.pack(f"<{TOKENS}q", *range(5, VOCABULARY, 6)[:TOKENS])


def selection():
    yield from dflash()
    for part in ("attn", "ffn"):
        yield matrix(f"blk.0.{part}_conv_proj.weight", H, 2 * 2 * H // 16, 0.1)
        yield f"blk.0.{part}_conv_base", [H, 2, 2], 1, vector("", 4 * H)[3]
    yield matrix("selector_predecessor.weight", 8, VOCABULARY, 0.5)
    yield matrix("selector_successor.weight", 8, VOCABULARY, 0.5)
    yield matrix("selector_hidden.weight", H, 8, 0.1)


def write(file_name, name, method, seed, keys, tensors, n_layer=1):
    rng.seed(seed)
    keys = [key("general.architecture", STRING, text(name)), numbers(f"{name}.target_layers", [0, 1]),
            key(f"{name}.attention.layer_norm_rms_epsilon", F32, struct.pack("<f", 1e-5))] + keys
    keys += [number(f"{name}.{what}", n_layer if what == "block_count" else value) for what, value in SHAPE]
    infos, data = [], b""
    for tensor, dims, kind, rows in tensors():
        infos.append(text(tensor) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims) +
                     struct.pack("<IQ", kind, len(data)))
        data += rows + bytes(-len(rows) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(keys)) + b"".join(keys) + b"".join(infos)
    file = bytes([method]) + head + bytes(-len(head) % 32) + data
    for path, n in ((file_name, len(file)), (f"{file_name}-cut", len(file) * 2 // 3)):
        with open(f"{sys.argv[1]}/{path}", "wb") as out:
            out.write(file[:n])


BLOCK = [number("dflash.block_size", 5), number("tokenizer.ggml.mask_token_id", 4)]
write("eagle3", "eagle3", 6, 3, [], eagle3)
write("eagle3-blocks", "eagle3", 6, 7, [number("eagle3.block_size", 4), number("eagle3.mask_token_id", 4)], blocks, 2)
write("eagle3-heads", "eagle3", 6, 9, [], heads)
write("dflash", "dflash", 7, 4, BLOCK, dflash)
write("dflash-markov", "dflash", 7, 5, BLOCK, markov)
LOGITS = [key("dflash.logit_scale", F32, struct.pack("<f", 1.5)), key("dflash.final_logit_softcapping", F32, struct.pack("<f", 4))]
write("dflash-own", "dflash", 7, 8, BLOCK + LOGITS, own_head)
DFLASH_2 = [("conv_kernel_size", 2), ("conv_group_size", 16), ("selector_rank", 8), ("selector_top_k", 7)]
WINDOW = [number("dflash.attention.sliding_window", 7), numbers("dflash.attention.sliding_window_pattern", [1])]
YARN = [key("dflash.rope.scaling.type", STRING, text("yarn")), key("dflash.rope.scaling.factor", F32, struct.pack("<f", 4)),
        number("dflash.rope.scaling.original_context_length", 16)]
write("dflash-2", "dflash", 7, 6, BLOCK + [number(f"dflash.{name}", value) for name, value in DFLASH_2] + WINDOW + YARN, selection)
