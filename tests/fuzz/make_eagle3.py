#!/usr/bin/env python3
"""make_eagle3.py FOLDER: writes the inputs eagle3 and eagle3-cut of the fuzzer drafter_file: a small file of random weights in the layout
of llama.cpp's architecture eagle3, for tests/fuzz/target.gguf, after the byte that chooses the method."""
import random
import struct
import sys

METHOD, H, KV, FF, VOCABULARY, TOKENS = 6, 32, 32, 16, 270, 40
U32, F32, ARRAY, STRING, I32 = 4, 6, 9, 8, 5
rng = random.Random(3)


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def key(name, kind, payload):
    return text(name) + struct.pack("<I", kind) + payload


def number(name, value):
    return key("eagle3." + name, U32, struct.pack("<I", value))


def floats(n, deviation):
    return struct.pack(f"<{n}e", *[rng.gauss(0, deviation) for _ in range(n)])


def tensors():
    yield "fc.weight", [2 * H, H], 1, floats(2 * H * H, 0.1)
    for name in ("attn_norm", "attn_norm_2", "ffn_norm"):
        yield f"blk.0.{name}.weight", [H], 1, floats(H, 1)
    for name, n_in, n_out in (("attn_q", 2 * H, H), ("attn_k", 2 * H, KV), ("attn_v", 2 * H, KV), ("attn_output", H, H),
                              ("ffn_gate", H, FF), ("ffn_up", H, FF), ("ffn_down", FF, H)):
        yield f"blk.0.{name}.weight", [n_in, n_out], 1, floats(n_in * n_out, 0.15)
    yield "output_norm.weight", [H], 1, floats(H, 1)
    yield "output.weight", [H, TOKENS], 1, floats(H * TOKENS, 0.3)
    yield "d2t", [TOKENS], 27, struct.pack(f"<{TOKENS}q", *range(5, VOCABULARY, 6)[:TOKENS])


keys = [key("general.architecture", STRING, text("eagle3")),
        key("eagle3.target_layers", ARRAY, struct.pack("<IQii", I32, 2, 0, 1)),
        key("eagle3.attention.layer_norm_rms_epsilon", F32, struct.pack("<f", 1e-5))]
for name, value in (("block_count", 1), ("context_length", 64), ("embedding_length", H), ("feed_forward_length", FF),
                    ("attention.head_count", 2), ("attention.head_count_kv", 2), ("target_hidden_size", H)):
    keys.append(number(name, value))
infos, data = [], b""
for name, dims, kind, rows in tensors():
    infos.append(text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims) +
                 struct.pack("<IQ", kind, len(data)))
    data += rows + bytes(-len(rows) % 32)
head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(keys)) + b"".join(keys) + b"".join(infos)
file = bytes([METHOD]) + head + bytes(-len(head) % 32) + data
for name, n in (("eagle3", len(file)), ("eagle3-cut", len(file) * 2 // 3)):
    with open(f"{sys.argv[1]}/{name}", "wb") as out:
        out.write(file[:n])
