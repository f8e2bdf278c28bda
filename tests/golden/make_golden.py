#!/usr/bin/env python3
"""make_golden.py - makes the golden values in tests/golden/data. No test needs it; Python 3 without packages suffices.

    build/release/tests/test_golden_own --write FOLDER       # the models
    tests/golden/make_golden.py logits FOLDER NODE           # -> data/NAME.json
    build/release/tests/test_golden_long --write FOLDER
    tests/golden/make_golden.py long FOLDER NODE             # -> data/llama4-long.json
    tests/golden/make_golden.py merges                       # -> data/merges.txt
    build/release/tests/test_tokenizer_own --write FOLDER    # the vocabularies of data/merges.txt
    tests/golden/make_golden.py tokens FOLDER NODE           # -> data/tokens.json, data/tokens_random.json

NODE is a folder where `npm install node-llama-cpp` was run: llama.cpp, through llama_cpp.mjs.

The forward below is written from the papers and the GGUF specification, in double precision and as plainly as can be, and shares
nothing with forerun. It reads weights exactly as they are stored (those of the types with lists of points by ggml's own
dequantisation) and rounds nothing on the way. Before its values are stored, they
are held against llama.cpp's.
"""
import ctypes
import json
import math
import os
import struct
import subprocess
import sys
from operator import mul

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "data")

# ---- GGUF -----------------------------------------------------------------------------------------------------------

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class Gguf:
    """keys: {name: value}; tensors: {name: (dims, type, offset)}, dims[0] is the inner dimension."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.bytes = f.read()
        self.at = 0
        magic, version, n_tensors, n_keys = self.take("4sIQQ")
        assert magic == b"GGUF" and version == 3
        self.keys = {}
        for _ in range(n_keys):
            name = self.string()
            self.keys[name] = self.value(self.take("I")[0])
        self.tensors = {}
        for _ in range(n_tensors):
            name = self.string()
            dims = self.take(f"{self.take('I')[0]}Q")
            self.tensors[name] = (dims, *self.take("IQ"))
        alignment = self.keys.get("general.alignment", 32)
        self.data = -(-self.at // alignment) * alignment

    def take(self, form):
        out = struct.unpack_from("<" + form, self.bytes, self.at)
        self.at += struct.calcsize("<" + form)
        return out

    def string(self):
        n = self.take("Q")[0]
        self.at += n
        return self.bytes[self.at - n : self.at].decode("utf-8")

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            element, n = self.take("IQ")
            return [self.value(element) for _ in range(n)]
        return self.take(SCALARS[kind])[0]

    def rows(self, name, scaled=True):
        """The tensor as a list of rows of exact values; None where it is missing."""
        if name not in self.tensors:
            return None
        dims, kind, offset = self.tensors[name]
        n_in, n_out = dims[0], math.prod(dims[1:])
        n_block, n_bytes, decode = TYPES[kind]
        row_bytes, start = n_in // n_block * n_bytes, self.data + offset
        scales = self.rows(name[: -len("weight")] + "scale") if scaled and name.endswith(".weight") else None
        out = []
        for r in range(n_out):
            row = []
            for b in range(n_in // n_block):
                first = start + r * row_bytes + b * n_bytes
                row.extend(decode(self.bytes[first : first + n_bytes]))
            if scales:  # of NVFP4, and of Gemma 4's experts: a factor for each matrix
                row = [v * scales[0][r * len(scales[0]) // n_out] for v in row]
            out.append(row)
        return out


def half(b):
    return struct.unpack("<e", b)[0]


def nibbles(b):
    """The 32 values of 16 bytes: all low halves, then all high halves."""
    return [x & 15 for x in b] + [x >> 4 for x in b]


def with_fifth_bit(b, bits):
    word = int.from_bytes(bits, "little")
    return [q | (word >> i & 1) << 4 for i, q in enumerate(nibbles(b))]


def q4_0(b):
    d = half(b[:2])
    return [d * (q - 8) for q in nibbles(b[2:18])]


def q4_1(b):
    d, m = half(b[:2]), half(b[2:4])
    return [d * q + m for q in nibbles(b[4:20])]


def q5_0(b):
    d = half(b[:2])
    return [d * (q - 16) for q in with_fifth_bit(b[6:22], b[2:6])]


def q5_1(b):
    d, m = half(b[:2]), half(b[2:4])
    return [d * q + m for q in with_fifth_bit(b[8:24], b[4:8])]


def q8_0(b):
    d = half(b[:2])
    return [d * q for q in struct.unpack("<32b", b[2:34])]


def scales_of_k(b):
    """The eight 6-bit scales and the eight 6-bit minima in 12 bytes."""
    scales = [b[i] & 63 for i in range(4)] + [b[8 + i] & 15 | (b[i] >> 6) << 4 for i in range(4)]
    minima = [b[4 + i] & 63 for i in range(4)] + [b[8 + i] >> 4 | (b[4 + i] >> 6) << 4 for i in range(4)]
    return scales, minima


def q4_k(b):
    d, dmin = half(b[:2]), half(b[2:4])
    scales, minima = scales_of_k(b[4:16])
    out = []
    for g in range(4):
        for k, q in enumerate(nibbles(b[16 + 32 * g : 48 + 32 * g])):
            j = 2 * g + k // 32
            out.append(d * scales[j] * q - dmin * minima[j])
    return out


def q5_k(b):
    d, dmin = half(b[:2]), half(b[2:4])
    scales, minima = scales_of_k(b[4:16])
    high = b[16:48]
    out = []
    for g in range(4):
        for k, q in enumerate(nibbles(b[48 + 32 * g : 80 + 32 * g])):
            j = 2 * g + k // 32
            q |= (high[k % 32] >> j & 1) << 4
            out.append(d * scales[j] * q - dmin * minima[j])
    return out


def q6_k(b):
    low, high, scales, d = b[:128], b[128:192], struct.unpack("<16b", b[192:208]), half(b[208:210])
    out = []
    for i in range(256):
        part, k = i // 128, i % 128
        quarter, l = k // 32, k % 32
        q = low[64 * part + 32 * (quarter % 2) + l] >> 4 * (quarter // 2) & 15
        q |= (high[32 * part + l] >> 2 * quarter & 3) << 4
        out.append(d * scales[i // 16] * (q - 32))
    return out


def q2_k(b):
    d, dmin = half(b[80:82]), half(b[82:84])
    out = []
    for i in range(256):
        s, q = b[i // 16], b[16 + i // 128 * 32 + i % 32] >> i % 128 // 32 * 2 & 3
        out.append(d * (s & 15) * q - dmin * (s >> 4))
    return out


def q3_k(b):
    d, scales = half(b[108:110]), b[96:108]
    out = []
    for i in range(256):
        j = i // 16
        s = scales[j % 8] >> j // 8 * 4 & 15 | (scales[8 + j % 4] >> j // 4 * 2 & 3) << 4
        q = b[32 + i // 128 * 32 + i % 32] >> i % 128 // 32 * 2 & 3 | (b[i % 32] >> i // 32 & 1) << 2
        out.append(d * (s - 32) * (q - 4))
    return out


IQ4 = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]


def iq4_nl(b):
    return [half(b[:2]) * IQ4[q] for q in nibbles(b[2:18])]


def iq4_xs(b):
    d, high = half(b[:2]), int.from_bytes(b[2:4], "little")
    out = []
    for j in range(8):
        s = (b[4 + j // 2] >> j % 2 * 4 & 15 | (high >> 2 * j & 3) << 4) - 32
        out += [d * s * IQ4[q] for q in nibbles(b[8 + 16 * j : 24 + 16 * j])]
    return out


def mxfp4(b):
    return [2.0 ** (b[0] - 127) * FP4[q] for q in nibbles(b[1:17])]


def nvfp4(b):
    out = []
    for i, e in enumerate(b[:4]):
        scale = (e & 7) / 8 * 2.0**-6 if e < 8 else (1 + (e & 7) / 8) * 2.0 ** ((e >> 3) - 7)
        q = b[4 + 8 * i : 12 + 8 * i]
        out += [scale * FP4[x & 15] for x in q] + [scale * FP4[x >> 4] for x in q]
    return out


def by_ggml(name):
    def decode(b):
        numbers = (ctypes.c_float * 256)()
        getattr(by_ggml.library, "dequantize_row_" + name)(bytes(b), numbers, ctypes.c_int64(256))
        return list(numbers)

    return decode


TYPES = {
    16: (256, 66, by_ggml("iq2_xxs")),
    17: (256, 74, by_ggml("iq2_xs")),
    18: (256, 98, by_ggml("iq3_xxs")),
    19: (256, 50, by_ggml("iq1_s")),
    21: (256, 110, by_ggml("iq3_s")),
    22: (256, 82, by_ggml("iq2_s")),
    29: (256, 56, by_ggml("iq1_m")),
    40: (64, 36, nvfp4),
    10: (256, 84, q2_k),
    11: (256, 110, q3_k),
    20: (32, 18, iq4_nl),
    23: (256, 136, iq4_xs),
    39: (32, 17, mxfp4),
    0: (1, 4, lambda b: struct.unpack("<f", b)),
    1: (1, 2, lambda b: (half(b),)),
    2: (32, 18, q4_0),
    3: (32, 20, q4_1),
    6: (32, 22, q5_0),
    7: (32, 24, q5_1),
    8: (32, 34, q8_0),
    12: (256, 144, q4_k),
    13: (256, 176, q5_k),
    14: (256, 210, q6_k),
    30: (1, 2, lambda b: struct.unpack("<f", b"\0\0" + b)),
}

# ---- the forward ----------------------------------------------------------------------------------------------------


def dot(a, b):
    return math.fsum(map(mul, a, b))


def product(rows, x, bias=None):
    y = [dot(row, x) for row in rows]
    return [a + b for a, b in zip(y, bias[0] if len(bias) == 1 else [v for r in bias for v in r])] if bias else y


def rms_norm(x, weight, eps):
    scale = 1 / math.sqrt(dot(x, x) / len(x) + eps)
    return [v * scale * w for v, w in zip(x, weight)]


N_CTX = 256  # of llama_cpp.mjs
HYBRIDS = ("qwen35", "qwen35moe", "qwen3next")


class Rope:
    """Su et al. 2021; linear scaling (Chen et al. 2023); YaRN (Peng et al. 2023); Llama 3.1's factors as a tensor."""

    def __init__(self, g, arch, head_dim, local=False):
        key = lambda name, default: g.keys.get(f"{arch}.rope.{name}", default)
        self.n = key("dimension_count", head_dim)
        self.neox = arch in ("qwen2", "qwen3", "qwen2moe", "qwen3moe", "gemma2", "gemma3", "gemma4", "phi3", "gpt-oss", "lfm2", "lfm2moe", "glm4moe", *HYBRIDS)  # pairs (i, i + n/2), else (2i, 2i + 1)
        base, n = key("freq_base", 10000.0), self.n
        self.frequency = [base ** (-2 * i / n) for i in range(n // 2)]
        self.magnitude = 1.0
        kind, factor = key("scaling.type", "none"), key("scaling.factor", 1.0)
        if local:  # Gemma's layers with a window
            self.n = n = key("dimension_count_swa", n)
            self.frequency = [key("freq_base_swa", 10000.0) ** (-2 * i / n) for i in range(n // 2)]
            kind = "none"
        if kind == "linear":
            self.frequency = [f / factor for f in self.frequency]
        elif kind == "yarn":
            n_ctx = key("scaling.original_context_length", 0)
            pair = lambda turns: n * math.log(n_ctx / (turns * 2 * math.pi)) / (2 * math.log(base))
            low, high = max(0, math.floor(pair(32))), min(n - 1, math.ceil(pair(1)))
            for i in range(n // 2):
                keep = 1 - min(1, max(0, (i - low) / max(0.001, high - low)))
                self.frequency[i] *= keep + (1 - keep) / factor
            self.magnitude = 1 + 0.1 * math.log(factor)
            if arch == "mistral3":  # the key is mscale_all_dim
                self.magnitude /= 1 + 0.1 * key("scaling.yarn_log_multiplier", 0) * math.log(factor)
        factors = g.rows("rope_freqs.weight")
        if g.rows("rope_factors_long.weight"):  # LongRoPE (Ding et al. 2024), for a context of N_CTX
            kind = "long" if N_CTX > key("scaling.original_context_length", 0) else "short"
            factors = g.rows(f"rope_factors_{kind}.weight")
            self.magnitude = key("scaling.attn_factor", 1.0)
        if factors and not (local and arch == "gemma4"):
            self.frequency = [f / by for f, by in zip(self.frequency, factors[0])]

    def turn(self, x, position):
        x = list(x)
        for i, f in enumerate(self.frequency):
            a, b = (i, i + self.n // 2) if self.neox else (2 * i, 2 * i + 1)
            c, s = math.cos(position * f) * self.magnitude, math.sin(position * f) * self.magnitude
            x[a], x[b] = x[a] * c - x[b] * s, x[a] * s + x[b] * c
        return x


class DeltaNet:
    """Gated DeltaNet (Yang, Kautz, Hatamizadeh 2024) as Qwen3-Next has it: a short convolution, then S = decay S + k (beta (v - S'k))'."""

    def __init__(self, g, arch, i, eps):
        key = lambda name: g.keys[f"{arch}.ssm.{name}"]
        rows = lambda name: g.rows(f"blk.{i}.{name}")
        self.dim, self.n_keys, self.n_values, self.eps = key("state_size"), key("group_count"), key("time_step_rank"), eps
        self.qkv, self.z, self.out = rows("attn_qkv.weight"), rows("attn_gate.weight"), rows("ssm_out.weight")
        self.conv, self.dt, self.a = rows("ssm_conv1d.weight"), rows("ssm_dt.bias")[0], rows("ssm_a")[0]
        self.norm = rows("ssm_norm.weight")[0]
        self.adjacent = arch == "qwen3next"  # the value heads of a key head stand side by side
        if self.adjacent:
            both, n = rows("ssm_ba.weight"), self.n_values // self.n_keys
            self.beta = [both[2 * n * k + j] for k in range(self.n_keys) for j in range(n)]
            self.alpha = [both[2 * n * k + n + j] for k in range(self.n_keys) for j in range(n)]
        else:
            self.beta, self.alpha = rows("ssm_beta.weight"), rows("ssm_alpha.weight")
        self.past = [[0.0] * len(self.qkv)] * (len(self.conv[0]) - 1)
        self.state = [[[0.0] * self.dim for _ in range(self.dim)] for _ in range(self.n_values)]  # [head][value][key]

    def heads(self, x):
        return [x[i : i + self.dim] for i in range(0, len(x), self.dim)]

    def run(self, x):
        silu = lambda v: v / (1 + math.exp(-v))
        unit = lambda h: [v / math.sqrt(dot(h, h) + 1e-6) for v in h]
        window = self.past + [product(self.qkv, x)]
        self.past = window[1:]
        mixed = self.heads([silu(dot(taps, [w[c] for w in window])) for c, taps in enumerate(self.conv)])
        keys = [unit(h) for h in mixed[self.n_keys : 2 * self.n_keys]]
        queries = [[v / math.sqrt(self.dim) for v in unit(h)] for h in mixed[: self.n_keys]]
        betas, alphas, z = product(self.beta, x), product(self.alpha, x), self.heads(product(self.z, x))
        out = []
        for h, value in enumerate(mixed[2 * self.n_keys :]):
            k = h * self.n_keys // self.n_values if self.adjacent else h % self.n_keys
            beta = 1 / (1 + math.exp(-betas[h]))
            decay = math.exp(self.a[h] * math.log1p(math.exp(alphas[h] + self.dt[h])))
            state = [[decay * v for v in column] for column in self.state[h]]
            state = [[s + beta * (v - dot(column, keys[k])) * j for s, j in zip(column, keys[k])] for column, v in zip(state, value)]
            self.state[h] = state
            read = rms_norm([dot(column, queries[k]) for column in state], self.norm, self.eps)
            out += [r * silu(v) for r, v in zip(read, z[h])]
        return product(self.out, out)


class Temperature:
    """Scores that grow with the position of the query: Llama 4 (whose code counts positions from 1), Mistral 3."""

    def __init__(self, g, arch):
        key = lambda name, default: g.keys.get(f"{arch}.{name}", default)
        length = key("rope.scaling.original_context_length", 0) if arch == "mistral3" else 8192
        self.scale = key("attention.temperature_scale", 0.1 if arch == "llama4" else 0.0)
        self.length, self.first = key("attention.temperature_length", length), 1 if arch == "llama4" else 0

    def of(self, position):
        return 1 + self.scale * math.log(1 + (position + self.first) // self.length) if self.scale else 1.0


class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, equations 37 to 47) as written: keys and values of every head are
    made of the latents of all positions; nothing is absorbed."""

    def __init__(self, g, arch, i, eps):
        key = lambda name, default=None: g.keys.get(f"{arch}.{name}", default)
        rows = lambda name: g.rows(f"blk.{i}.{name}.weight")
        self.eps, self.n_head, self.rank = eps, key("attention.head_count"), key("attention.kv_lora_rank")
        self.rope = Rope(g, arch, None)
        self.n_rot = self.rope.n
        self.n_key = key("attention.key_length_mla") or key("attention.key_length")
        self.n_value = key("attention.value_length_mla") or key("attention.value_length")
        self.n_plain = self.n_key - self.n_rot
        self.q, self.q_a, self.kv_a, self.out = rows("attn_q_b") or rows("attn_q"), rows("attn_q_a"), rows("attn_kv_a_mqa"), rows("attn_output")
        self.q_norm, self.kv_norm = rows("attn_q_a_norm"), rows("attn_kv_a_norm")[0]
        both, n = rows("attn_kv_b"), self.n_plain + self.n_value
        if both:
            self.make_key = [both[h * n : h * n + self.n_plain] for h in range(self.n_head)]  # [plain][rank] of each head
            self.make_value = [both[h * n + self.n_plain : (h + 1) * n] for h in range(self.n_head)]
        else:
            k, v, r = rows("attn_k_b"), rows("attn_v_b"), self.rank
            self.make_key = [[list(column) for column in zip(*k[h * r : (h + 1) * r])] for h in range(self.n_head)]
            self.make_value = [v[h * self.n_value : (h + 1) * self.n_value] for h in range(self.n_head)]
        self.scale = 1 / math.sqrt(self.n_key)
        m = key("rope.scaling.yarn_log_multiplier")
        if m:  # mscale_all_dim of the models' config: rotation without a factor, scores with one
            self.rope.magnitude = 1.0
            self.scale *= (1 + m * math.log(key("rope.scaling.factor"))) ** 2
        self.temperature = Temperature(g, arch)
        self.past = []  # by position: the keys of all heads, the values of all heads

    def run(self, x, position):
        latent = product(self.kv_a, x)
        c, rotated = rms_norm(latent[: self.rank], self.kv_norm, self.eps), self.rope.turn(latent[self.rank :], position)
        self.past.append(([product(w, c) + rotated for w in self.make_key], [product(w, c) for w in self.make_value]))
        q = product(self.q, rms_norm(product(self.q_a, x), self.q_norm[0], self.eps) if self.q_a else x)
        out = []
        for h in range(self.n_head):
            query = q[h * self.n_key : (h + 1) * self.n_key]
            query = query[: self.n_plain] + self.rope.turn(query[self.n_plain :], position)
            scores = [self.temperature.of(position) * self.scale * dot(query, keys[h]) for keys, _ in self.past]
            weights = [math.exp(s - max(scores)) for s in scores]
            total = math.fsum(weights)
            out += [dot(weights, [values[h][d] for _, values in self.past]) / total for d in range(self.n_value)]
        return product(self.out, out)


class Mamba2:
    """Mamba-2 (Dao, Gu 2024) as its reference implementation has it: S = exp(A dt) S + dt x B', y = S C + D x; the norm of a group
    of heads follows the gate."""

    def __init__(self, g, arch, i, eps):
        key = lambda name: g.keys[f"{arch}.ssm.{name}"]
        rows = lambda name: g.rows(f"blk.{i}.{name}")
        self.n_heads, self.n_groups, self.n_state, self.n = key("time_step_rank"), key("group_count"), key("state_size"), key("inner_size")
        self.eps, self.dim = eps, self.n // self.n_heads
        self.ssm_in, self.out = rows("ssm_in.weight"), rows("ssm_out.weight")
        self.conv, self.conv_bias, self.dt = rows("ssm_conv1d.weight"), rows("ssm_conv1d.bias")[0], rows("ssm_dt.bias")[0]
        self.a, self.d, self.norm = [r[0] for r in rows("ssm_a")], [r[0] for r in rows("ssm_d")], rows("ssm_norm.weight")
        self.past = [[0.0] * len(self.conv)] * (len(self.conv[0]) - 1)
        self.state = [[[0.0] * self.n_state for _ in range(self.dim)] for _ in range(self.n_heads)]

    def run(self, x):
        silu = lambda v: v / (1 + math.exp(-v))
        y = product(self.ssm_in, x)
        z, u, dts = y[: self.n], y[self.n : -self.n_heads], y[-self.n_heads :]
        window = self.past + [u]
        self.past = window[1:]
        u = [silu(b + dot(taps, [w[c] for w in window])) for c, (taps, b) in enumerate(zip(self.conv, self.conv_bias))]
        xs, bc = u[: self.n], [u[i : i + self.n_state] for i in range(self.n, len(u), self.n_state)]
        out = []
        for h in range(self.n_heads):
            group = h * self.n_groups // self.n_heads
            b, c = bc[group], bc[self.n_groups + group]
            dt = math.log1p(math.exp(dts[h] + self.dt[h]))
            decay = math.exp(self.a[h] * dt)
            for i, value in enumerate(xs[h * self.dim : (h + 1) * self.dim]):
                self.state[h][i] = [decay * s + dt * value * k for s, k in zip(self.state[h][i], b)]
                out.append((dot(self.state[h][i], c) + self.d[h] * value) * silu(z[h * self.dim + i]))
        n = self.n // self.n_groups
        return product(self.out, [v for g in range(self.n_groups) for v in rms_norm(out[g * n : (g + 1) * n], self.norm[g], self.eps)])


class ShortConv:
    """LFM2 (Liquid AI 2025): out(c * conv(b * x)), where b, c and x are thirds of in(input)."""

    def __init__(self, g, i):
        rows = lambda name: g.rows(f"blk.{i}.shortconv.{name}.weight")
        self.bcx, self.conv, self.out = rows("in_proj"), rows("conv"), rows("out_proj")
        self.past = [[0.0] * len(self.conv)] * (len(self.conv[0]) - 1)

    def run(self, x):
        y, n = product(self.bcx, x), len(self.conv)
        window = self.past + [[b * v for b, v in zip(y[:n], y[2 * n :])]]
        self.past = window[1:]
        return product(self.out, [c * dot(taps, [w[k] for w in window]) for k, (c, taps) in enumerate(zip(y[n : 2 * n], self.conv))])


class Model:
    def __init__(self, path):
        g = Gguf(path)
        self.g, self.arch = g, g.keys["general.architecture"]
        key = lambda name: g.keys[f"{self.arch}.{name}"]
        self.n_head, n_embd = key("attention.head_count"), key("embedding_length")
        kv = g.keys.get(f"{self.arch}.attention.head_count_kv", 0)
        self.n_head_kv = max(kv) if isinstance(kv, list) else kv
        self.head_dim = g.keys.get(f"{self.arch}.attention.key_length", n_embd // (self.n_head or 1))
        self.eps = key("attention.layer_norm_rms_epsilon")
        self.rope = Rope(g, self.arch, self.head_dim)
        extra = lambda name, default: g.keys.get(f"{self.arch}.{name}", default)
        gemma = self.arch in ("gemma2", "gemma3", "gemma4")
        self.gelu = gemma
        self.embedding_scale = math.sqrt(n_embd) if gemma else extra("embedding_scale", 1.0)
        self.residual_scale = extra("residual_scale", 1.0)
        self.logit_scale = 1 / extra("logit_scale", 1.0)
        self.logit_cap = extra("final_logit_softcapping", 0)
        self.attn_cap = extra("attn_logit_softcapping", 0)
        self.attn_scale = 1.0 if self.arch == "gemma4" else extra("attention.scale", 0) or 1 / math.sqrt(self.head_dim)
        self.n_expert, self.n_expert_used = extra("expert_count", 0), extra("expert_used_count", 0)
        self.expert_scale, self.expert_norm = extra("expert_weights_scale", 1.0), extra("expert_weights_norm", False)
        self.n_groups, self.n_groups_used = extra("expert_group_count", 1), extra("expert_group_used_count", 1)
        self.has_sigmoid_router = extra("expert_gating_func", 1) == 2
        window, n_layer = extra("attention.sliding_window", 8192 if self.arch == "llama4" else 0), key("block_count")
        pattern, self.n_ple = extra("attention.sliding_window_pattern", []), extra("embedding_length_per_layer_input", 0)
        has_window = {"gemma4": lambda i: pattern[i], "gemma2": lambda i: i % 2 == 0, "gpt-oss": lambda i: i % 2 == 0, "gemma3": lambda i: i % 6 < 5, "phi3": lambda i: True, "llama4": lambda i: i % 4 < 3}.get(self.arch, lambda i: False)
        local_rope = Rope(g, self.arch, self.head_dim, local=True) if self.arch in ("gemma3", "gemma4") else self.rope
        self.embedding = g.rows("token_embd.weight")
        self.output = g.rows("output.weight") or self.embedding
        self.output_norm = self.vector("token_embd_norm.weight" if self.arch.startswith("lfm2") else "output_norm.weight")
        names = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
        self.layers = []
        if self.n_ple:
            names += ["inp_gate", "proj"]
            self.ple_table, ple_inputs = g.rows("per_layer_token_embd.weight"), g.rows("per_layer_model_proj.weight")
            self.ple_input_norm = self.vector("per_layer_proj_norm.weight")
        for i in range(key("block_count")):
            layer = {n: g.rows(f"blk.{i}.{n}.weight") for n in names}
            layer["ple"] = ple_inputs[i * self.n_ple : (i + 1) * self.n_ple] if self.n_ple else None
            layer["window"] = window if has_window(i) and window else None
            layer["temperature"] = Temperature(g, self.arch) if self.arch != "llama4" or i % 4 == 3 else None
            layer["rope"] = None if self.arch in ("smollm3", "llama4") and i % 4 == 3 else local_rope if layer["window"] else self.rope
            if not extra("rope.scaling.finetuned", True):
                layer["rope"] = None
            if g.rows(f"blk.{i}.ssm_in.weight"):
                layer["recurrent"] = Mamba2(g, self.arch, i, self.eps)
            elif g.rows(f"blk.{i}.ssm_a"):
                layer["recurrent"] = DeltaNet(g, self.arch, i, self.eps)
            elif g.rows(f"blk.{i}.shortconv.conv.weight"):
                layer["recurrent"] = ShortConv(g, i)
            if self.arch == "deepseek2":
                layer["latent"] = LatentAttention(g, self.arch, i, self.eps)
            fused = None if "recurrent" in layer else g.rows(f"blk.{i}.attn_qkv.weight")
            if fused:  # Phi-3: queries, keys and values; gate and up
                n_q, n_kv = self.n_head * self.head_dim, self.n_head_kv * self.head_dim
                layer["attn_q"], layer["attn_k"], layer["attn_v"] = fused[:n_q], fused[n_q : n_q + n_kv], fused[n_q + n_kv :]
                half_way = len(layer["ffn_up"]) // 2
                layer["ffn_gate"], layer["ffn_up"] = layer["ffn_up"][:half_way], layer["ffn_up"][half_way:]
            layer["router"] = g.rows(f"blk.{i}.ffn_gate_inp.weight", scaled=self.arch != "gemma4")
            layer["choice_bias"] = self.vector(f"blk.{i}.exp_probs_b.bias")
            if layer["router"]:
                n = len(layer["router"])
                for part in ("gate", "up", "down"):
                    rows = g.rows(f"blk.{i}.ffn_{part}_exps.weight")
                    layer[part + "_exps"] = [rows[e * len(rows) // n : (e + 1) * len(rows) // n] for e in range(n)]
                    layer[part + "_biases"] = g.rows(f"blk.{i}.ffn_{part}_exps.bias")
                    layer[part + "_shexp"] = g.rows(f"blk.{i}.ffn_{part}_shexp.weight")
                layer["shared_router"] = self.vector(f"blk.{i}.ffn_gate_inp_shexp.weight")
            for n in ["attn_norm.weight", "ffn_norm.weight", "attn_q.bias", "attn_k.bias", "attn_v.bias",
                      "attn_q_norm.weight", "attn_k_norm.weight", "post_attention_norm.weight", "post_ffw_norm.weight",
                      "attn_output.bias", "attn_sinks.weight", "ffn_gate_inp.bias", "post_norm.weight",
                      "layer_output_scale.weight", "ffn_gate_inp.scale", "pre_ffw_norm_2.weight", "post_ffw_norm_1.weight",
                      "post_ffw_norm_2.weight"]:
                layer[n] = self.vector(f"blk.{i}.{n}")
            if self.arch in (*HYBRIDS, "gpt-oss", "glm4moe"):  # the name that other architectures have for another norm
                layer["ffn_norm.weight"], layer["post_attention_norm.weight"] = layer["post_attention_norm.weight"], None
            layer["keys"], layer["values"] = [], []  # [position][head][head_dim]
            layer["head_dim"] = self.head_dim
            if self.arch == "gemma4":
                layer["head_dim"] = len(layer["attn_q_norm.weight"])
                layer["attn_v"] = layer["attn_v"] or layer["attn_k"]
                layer["attn_v_norm.weight"] = [1.0] * layer["head_dim"]
                if i >= n_layer - extra("attention.shared_kv_layers", 0):  # of the last layer of its kind that has its own
                    own = [l for l in self.layers if l["attn_k"] and bool(l["window"]) == bool(layer["window"])][-1]
                    layer["keys"], layer["values"] = own["keys"], own["values"]
            self.layers.append(layer)
        self.n_past = 0

    def vector(self, name):
        rows = self.g.rows(name)
        return rows[0] if rows else None

    def heads(self, layer, which, x, position):
        y = product(layer["attn_" + which], x)
        if layer[f"attn_{which}.bias"]:
            y = [a + b for a, b in zip(y, layer[f"attn_{which}.bias"])]
        heads = [y[i : i + layer["head_dim"]] for i in range(0, len(y), layer["head_dim"])]
        if which == "q" and self.arch in HYBRIDS:  # each head's queries, then its gates
            layer["gates"], heads = heads[1::2], heads[0::2]
        norm = layer.get(f"attn_{which}_norm.weight")
        if norm:
            heads = [rms_norm(h, norm, self.eps) for h in heads]
        if which == "v" or not layer["rope"]:
            return heads
        heads = [layer["rope"].turn(h, position) for h in heads]
        return [rms_norm(h, [1.0] * len(h), self.eps) for h in heads] if self.arch == "llama4" and self.n_expert != 128 else heads

    def attention(self, layer, x, position):
        q = self.heads(layer, "q", x, position)
        if layer["attn_k"]:
            layer["keys"].append(self.heads(layer, "k", x, position))
            layer["values"].append(self.heads(layer, "v", x, position))
        out = []
        for h, query in enumerate(q):
            kv = h * len(layer["keys"][0]) // len(q)
            first = max(0, position + 1 - layer["window"]) if layer["window"] else 0
            if self.arch == "llama4" and layer["window"]:  # chunks
                first = position // layer["window"] * layer["window"]
            factor = self.attn_scale * (layer["temperature"].of(position) if layer["temperature"] else 1)
            scores = [dot(query, k[kv]) * factor for k in layer["keys"][first:]]
            if self.attn_cap:
                scores = [self.attn_cap * math.tanh(s / self.attn_cap) for s in scores]
            top = max(scores)
            weights = [math.exp(s - top) for s in scores]
            sink = [math.exp(layer["attn_sinks.weight"][h] - top)] if layer["attn_sinks.weight"] else []
            total = math.fsum(weights + sink)
            out += [dot(weights, [v[kv][d] for v in layer["values"][first:]]) / total for d in range(layer["head_dim"])]
        if "gates" in layer:
            out = [v / (1 + math.exp(-g)) for v, g in zip(out, (g for head in layer["gates"] for g in head))]
        out = product(layer["attn_output"], out)
        return [a + b for a, b in zip(out, layer["attn_output.bias"])] if layer["attn_output.bias"] else out

    def activation(self, v):
        if self.gelu:
            return 0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))
        return v / (1 + math.exp(-v))

    def gated(self, gate, up, down, x):
        return product(down, [self.activation(g) * u for g, u in zip(product(gate, x), product(up, x))])

    def gated_expert(self, layer, e, x):
        return self.gated(layer["gate_exps"][e], layer["up_exps"][e], layer["down_exps"][e], x)

    def oss_expert(self, layer, e, x):
        """The model card of gpt-oss: SwiGLU with clamping, a factor of 1.702, and 1 added to the linear part."""
        part = lambda name, v: [a + b for a, b in zip(product(layer[name + "_exps"][e], v), layer[name + "_biases"][e])]
        gate, up = [min(v, 7.0) for v in part("gate", x)], [max(-7.0, min(v, 7.0)) for v in part("up", x)]
        return part("down", [g / (1 + math.exp(-1.702 * g)) * (u + 1) for g, u in zip(gate, up)])

    def deepseek_experts(self, layer, x):
        """DeepSeek-V2 (softmax; the groups with the greatest expert) and V3 (sigmoid and bias; the groups whose two greatest are); GLM-4.5."""
        logits = product(layer["router"], x)
        if self.has_sigmoid_router:
            p = [1 / (1 + math.exp(-v)) for v in logits]
        else:
            p = [math.exp(v - max(logits)) for v in logits]
            p = [v / math.fsum(p) for v in p]
        score = [a + b for a, b in zip(p, layer["choice_bias"] or [0.0] * len(p))]
        n = len(p) // self.n_groups
        groups = [sorted(score[g * n : (g + 1) * n], reverse=True)[: 2 if self.has_sigmoid_router else 1] for g in range(self.n_groups)]
        best = sorted(range(self.n_groups), key=lambda g: -sum(groups[g]))[: self.n_groups_used]
        chosen = sorted((e for e in range(len(p)) if e // n in best), key=lambda e: -score[e])[: self.n_expert_used]
        total = math.fsum(p[e] for e in chosen) if self.expert_norm else 1
        out = self.gated(layer["gate_shexp"], layer["up_shexp"], layer["down_shexp"], x)
        for e in chosen:
            out = [a + self.expert_scale * p[e] / total * b for a, b in zip(out, self.gated_expert(layer, e, x))]
        return out

    def llama4_experts(self, layer, x):
        p = [1 / (1 + math.exp(-v)) for v in product(layer["router"], x)]
        out = self.gated(layer["gate_shexp"], layer["up_shexp"], layer["down_shexp"], x)
        for e in sorted(range(len(p)), key=lambda e: -p[e])[: self.n_expert_used]:
            out = [a + b for a, b in zip(out, self.gated_expert(layer, e, [p[e] * v for v in x]))]
        return out

    def lfm2_experts(self, layer, x):
        """transformers adds 1e-6 to the sum of the chosen, llama.cpp does not."""
        p = [1 / (1 + math.exp(-v)) for v in product(layer["router"], x)]
        chosen = sorted(range(len(p)), key=lambda e: -p[e] - layer["choice_bias"][e])[: self.n_expert_used]
        out = [0.0] * len(x)
        for e in chosen:
            out = [a + p[e] / math.fsum(p[c] for c in chosen) * b for a, b in zip(out, self.gated_expert(layer, e, x))]
        return out

    def experts(self, layer, x):
        """Qwen2-MoE weights the chosen by their probabilities among all experts, the others by those among the chosen."""
        logits = product(layer["router"], x)
        if layer["ffn_gate_inp.bias"]:
            logits = [a + b for a, b in zip(logits, layer["ffn_gate_inp.bias"])]
        top = max(logits)
        p = [math.exp(v - top) for v in logits]
        chosen = sorted(range(len(p)), key=lambda e: -p[e])[: self.n_expert_used]
        total = math.fsum(p) if self.arch == "qwen2moe" else math.fsum(p[e] for e in chosen)
        out = [0.0] * len(x)
        for e in chosen:
            y = (self.oss_expert if self.arch == "gpt-oss" else self.gated_expert)(layer, e, x)
            out = [a + p[e] / total * b for a, b in zip(out, y)]
        if layer["gate_shexp"]:
            y = self.gated(layer["gate_shexp"], layer["up_shexp"], layer["down_shexp"], x)
            weight = 1 / (1 + math.exp(-dot(layer["shared_router"], x))) if layer["shared_router"] else 1
            out = [a + weight * b for a, b in zip(out, y)]
        return out

    def gemma4_experts(self, layer, x):
        """Beside the dense part; the router and the experts read norms of x of their own."""
        dense = self.gated(layer["ffn_gate"], layer["ffn_up"], layer["ffn_down"], rms_norm(x, layer["ffn_norm.weight"], self.eps))
        factors = [v / math.sqrt(len(x)) for v in layer["ffn_gate_inp.scale"]]
        logits = product(layer["router"], rms_norm(x, factors, self.eps))
        p = [math.exp(v - max(logits)) for v in logits]
        chosen = sorted(range(len(p)), key=lambda e: -p[e])[: self.n_expert_used]
        total, out = math.fsum(p[e] for e in chosen), [0.0] * len(x)
        for e in chosen:  # the rows of ffn_down_exps have the factor ffn_down_exps.scale already
            y = self.gated_expert(layer, e, rms_norm(x, layer["pre_ffw_norm_2.weight"], self.eps))
            out = [a + p[e] / total * b for a, b in zip(out, y)]
        both = rms_norm(dense, layer["post_ffw_norm_1.weight"], self.eps), rms_norm(out, layer["post_ffw_norm_2.weight"], self.eps)
        return [a + b for a, b in zip(*both)]

    def feed_forward(self, layer, x):
        if layer["router"] and self.arch in ("deepseek2", "glm4moe"):
            return self.deepseek_experts(layer, x)
        if layer["router"] and self.arch in ("llama4", "lfm2moe"):
            return self.llama4_experts(layer, x) if self.arch == "llama4" else self.lfm2_experts(layer, x)
        return self.experts(layer, x) if layer["router"] else self.gated(layer["ffn_gate"], layer["ffn_up"], layer["ffn_down"], x)

    def ple(self, i, layer, x, x0, token):
        """Gemma 4's per-layer embedding: one of the token, added after the feed-forward part."""
        n = self.n_ple
        of_input = rms_norm([v / math.sqrt(len(x0)) for v in product(layer["ple"], x0)], self.ple_input_norm, self.eps)
        of_token = [math.sqrt(n) * v for v in self.ple_table[token][i * n : (i + 1) * n]]
        gate = [self.activation(v) for v in product(layer["inp_gate"], x)]
        return product(layer["proj"], [g * (a + b) / math.sqrt(2) for g, a, b in zip(gate, of_input, of_token)])

    def add(self, x, y, norm):
        y = rms_norm(y, norm, self.eps) if norm else y
        return [a + self.residual_scale * b for a, b in zip(x, y)]

    def forward(self, token):
        """Returns the logits after one more token."""
        x = [self.embedding_scale * v for v in self.embedding[token]]
        x0 = x
        for i, layer in enumerate(self.layers):
            normed = rms_norm(x, layer["attn_norm.weight"], self.eps)
            if "recurrent" in layer:
                y = layer["recurrent"].run(normed)
            elif "latent" in layer:
                y = layer["latent"].run(normed, self.n_past)
            else:
                y = self.attention(layer, normed, self.n_past)
            x = self.add(x, y, layer["post_attention_norm.weight"])
            if not layer["ffn_norm.weight"]:
                continue
            if layer["router"] and self.arch == "gemma4":
                y = self.gemma4_experts(layer, x)
            else:
                y = self.feed_forward(layer, rms_norm(x, layer["ffn_norm.weight"], self.eps))
            x = self.add(x, y, layer["post_ffw_norm.weight"])
            if self.n_ple:
                x = self.add(x, self.ple(i, layer, x, x0, token), layer["post_norm.weight"])
            if layer["layer_output_scale.weight"]:
                x = [layer["layer_output_scale.weight"][0] * v for v in x]
        self.n_past += 1
        logits = [self.logit_scale * v for v in product(self.output, rms_norm(x, self.output_norm, self.eps))]
        return [self.logit_cap * math.tanh(v / self.logit_cap) for v in logits] if self.logit_cap else logits


# ---- llama.cpp ------------------------------------------------------------------------------------------------------


def llama_cpp(node, command, path, argument):
    script = os.path.join(HERE, "llama_cpp.mjs")
    out = subprocess.run(["node", script, node, command, path], input=json.dumps(argument), capture_output=True, text=True, check=True)
    return json.loads(out.stdout)


def log_softmax(row):
    top = max(row)
    total = top + math.log(math.fsum(math.exp(v - top) for v in row))
    return [v - total for v in row]


# ---- logits ---------------------------------------------------------------------------------------------------------

N_PROMPT, N_GREEDY, N_TOP = 24, 24, 8


def prompt_of(name, n_vocab, n=None):
    """Any tokens, the same ones for ever: a linear congruential generator that starts from the name."""
    state = sum(ord(c) * 31**i for i, c in enumerate(name)) % 2**32
    out = []
    for _ in range(n or N_PROMPT):
        state = (1664525 * state + 1013904223) % 2**32
        out.append(3 + (state >> 8) % (n_vocab - 3))
    return out


def make_logits(folder, node):
    by_ggml.library = ctypes.CDLL(os.path.join(node, "node_modules/@node-llama-cpp/linux-x64/bins/linux-x64/libggml-base.so"))
    for file in sorted(f for f in os.listdir(folder) if f.endswith(".gguf") and not f.startswith(("bpe-", "llama4-long"))):
        name, path = file[: -len(".gguf")], os.path.join(folder, file)
        model = Model(path)
        prompt = prompt_of(name, len(model.output))
        rows = [model.forward(t) for t in prompt]
        greedy, gap = [], math.inf
        for _ in range(N_GREEDY):
            first, second = sorted(rows[-1], reverse=True)[:2]
            gap = min(gap, first - second)
            greedy.append(rows[-1].index(first))
            rows.append(model.forward(greedy[-1]))
        peer = llama_cpp(node, "logits", path, prompt + greedy)
        worst = 0.0
        peer_rows = []
        for position in [N_PROMPT // 2, N_PROMPT - 1, N_PROMPT + N_GREEDY // 2, N_PROMPT + N_GREEDY - 1]:
            top = sorted(enumerate(peer[position]), key=lambda e: -e[1])[:N_TOP]
            exact = log_softmax(rows[position])
            worst = max(worst, max(abs(math.log(p) - exact[t]) for t, p in top))
            peer_rows.append({"position": position, "tokens": [t for t, _ in top], "logprobs": [round(math.log(p), 6) for _, p in top]})
        agrees = all(max(range(len(p)), key=p.__getitem__) == t for p, t in zip(peer[N_PROMPT - 1 :], greedy))
        print(f"{name}: smallest gap {gap:.3f}, llama.cpp differs by {worst:.1e}" + ("" if agrees else ", AND CHOOSES ANOTHER TEXT"))
        exact_rows = [{"position": p, "logits": [float(f"{v:.7g}") for v in rows[p]]} for p in (N_PROMPT - 1, N_PROMPT + N_GREEDY - 1)]
        out = {"prompt": prompt, "greedy": greedy, "exact": exact_rows, "llama_cpp": peer_rows}
        with open(os.path.join(DATA, name + ".json"), "w") as f:
            f.write("{\n" + ",\n".join(f' "{k}": ' + json.dumps(v, separators=(",", ":")) for k, v in out.items()) + "\n}\n")


def make_long(folder, node, name="llama4-long", n=8200, border=8192):
    """llama.cpp's values around a border that is too far for the forward above."""
    path = os.path.join(folder, name + ".gguf")
    prompt = prompt_of(name, Gguf(path).tensors["token_embd.weight"][0][1], n)
    peer = llama_cpp(node, "logits", path, {"tokens": prompt, "from": n - 16})
    rows = []
    for position in (border - 2, border - 1, border, n - 1):
        top = sorted(enumerate(peer[position - n + 16]), key=lambda e: -e[1])[:N_TOP]
        rows.append({"position": position, "tokens": [t for t, _ in top], "logprobs": [round(math.log(p), 6) for _, p in top]})
    with open(os.path.join(DATA, name + ".json"), "w") as f:
        f.write('{\n "llama_cpp": ' + json.dumps(rows, separators=(",", ":")) + "\n}\n")


# ---- tokens ---------------------------------------------------------------------------------------------------------

TEXTS = [
    "", " ", "  ", "   a", "a   b", "\n", "\n\n\n", " \n x", "\t\tx\t", "\r\n\r\n", "Once upon a time", " Once upon a time, there was",
    "The cat's hat isn't theirs; they'll say we've won, I'd guess, I'm sure.", "THE CAT'S HAT ISN'T THEIRS", "don’t",
    "1", "12", "123", "1234", "12345678901", "3.14159 and 2,718", "x1y22z333", "v1.0.2-beta+3", "abc123def", "100%", "$9.99!",
    "...", "!!!???", " !", "a!b?c.", "(a[b]{c})", "<s>hello</s>", "<|endoftext|>", "<0x41><0xFF>", "a_b__c", "foo->bar(x, y);\n    return x;\n",
    "def f(n):\n    if n < 2:\n        return n\n    return f(n - 1) + f(n - 2)\n", "{\"key\": [1, 2, null], \"k\": \"v\"}\n",
    "naïve café, coöperate; Ångström", "Größe Straße ÄÖÜ", "e\u0301 (decomposed)", "Привет, мир! Как дела?", "Γειά σου Κόσμε", "日本語のテスト。", "你好,世界!12点",
    "안녕하세요 세계", "مرحبا بالعالم ١٢٣", "नमस्ते दुनिया १२", "สวัสดี", "🙂🙃 👩‍👩‍👧 🇩🇪", "a\u00a0b\u2003c\u3000d", "▁ is U+2581", "½ ² Ⅷ", "zero\u200bwidth",
    "\u0001\u0002", "tab\there", "mixed CamelCaseWords andSnake_case", "https://example.org/a?b=c&d=e#f", "word " * 12, "aaaaaaaaaaaaaaaaaaaaaaaa",
    "- item\n- item 2\n\n1. one\n2. two\n", "\"quoted\" 'single' `code`", "end with space ", "end with newline\n",
]


def byte_alphabet():
    """The characters by which byte-level BPE (GPT-2) writes the 256 bytes."""
    printable = [b for b in range(256) if 33 <= b <= 126 or b >= 161 and b != 173]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def make_merges(n_merges=600):
    """BPE trained on the texts and this file, each as one word: nothing is split before. So merges cross every boundary that a
    pre-tokenizer draws, and ids show where it draws them."""
    spell = byte_alphabet()
    with open(__file__, encoding="utf-8") as f:
        words = [[spell[b] for b in t.encode()] for t in TEXTS + [f.read().split("# ---- tokens")[0]]]
    merges = []
    while len(merges) < n_merges:
        counts = {}
        for w in words:
            for pair in zip(w, w[1:]):
                if len(pair[0] + pair[1]) <= 16:
                    counts[pair] = counts.get(pair, 0) + 1
        pair = max(counts, key=lambda p: (counts[p], p))
        if any(a + b == pair[0] + pair[1] for a, b in merges):  # one token, one merge
            raise SystemExit("two merges make the same token")
        merges.append(pair)
        for k, w in enumerate(words):
            out, i = [], 0
            while i < len(w):
                joined = i + 1 < len(w) and (w[i], w[i + 1]) == pair
                out.append(w[i] + w[i + 1] if joined else w[i])
                i += 2 if joined else 1
            words[k] = out
    with open(os.path.join(DATA, "merges.txt"), "w", encoding="utf-8") as f:
        f.writelines(f"{a} {b}\n" for a, b in merges)


def spm_encode(g, text):
    """SentencePiece BPE: the neighbours whose union is the best-scoring piece are joined, the leftmost of equals first, until none
    is a piece; characters that are no piece become byte tokens."""
    if not text:
        return []
    pieces = g.keys["tokenizer.ggml.tokens"]
    kinds, scores = g.keys["tokenizer.ggml.token_type"], g.keys["tokenizer.ggml.scores"]
    ids = {p: i for i, p in enumerate(pieces) if kinds[i] not in (2, 3, 6)}
    symbols = list(" ".join(["", text]).replace(" ", "▁"))
    while True:
        best = None
        for i in range(len(symbols) - 1):
            joined = symbols[i] + symbols[i + 1]
            if joined in ids and (best is None or scores[ids[joined]] > scores[ids[symbols[best] + symbols[best + 1]]]):
                best = i
        if best is None:
            break
        symbols[best : best + 2] = [symbols[best] + symbols[best + 1]]
    out = []
    for s in symbols:
        out += [ids[s]] if s in ids else [pieces.index(f"<0x{b:02X}>") for b in s.encode()]
    return out


def make_tokens(folder, node):
    target = os.path.join(HERE, "..", "..", "models", "target.gguf")
    out = {"texts": TEXTS, "target": llama_cpp(node, "tokens", target, TEXTS)}
    g = Gguf(target)
    for text, ids in zip(TEXTS, out["target"]):
        if spm_encode(g, text) != ids:
            print(f"target: {text!r}: llama.cpp {ids}, this file {spm_encode(g, text)}")
    for file in sorted(f for f in os.listdir(folder) if f.startswith("bpe-")):
        out[file[4 : -len(".gguf")]] = llama_cpp(node, "tokens", os.path.join(folder, file), TEXTS)
    print({k: sum(map(len, v)) for k, v in out.items() if k != "texts"})
    with open(os.path.join(DATA, "tokens.json"), "w", encoding="utf-8") as f:
        lines = lambda v: "[\n  " + ",\n  ".join(json.dumps(e, ensure_ascii=False, separators=(",", ":")) for e in v) + "\n ]"
        f.write("{\n" + ",\n".join(f' "{k}": ' + lines(v) for k, v in out.items()) + "\n}\n")


def make_random_tokens(folder, node):
    """Hashes of the ids of 20 random texts each, by the names of pre-tokenizers that have the same ids."""
    with open(os.path.join(folder, "random.json"), encoding="utf-8") as f:
        texts = json.load(f)
    names = {}
    for file in sorted(f for f in os.listdir(folder) if f.startswith("random-")):
        name, hashes = file[len("random-") : -len(".gguf")], ""
        ids = llama_cpp(node, "tokens", os.path.join(folder, file), texts)
        for i in range(0, len(texts), 20):
            h = 2166136261
            for token in [t for text in ids[i : i + 20] for t in (*text, 0xFFFFFFFF)]:
                h = ((h ^ token) * 16777619) & 0xFFFFFFFF
            hashes += f"{h:08x}"
        names.setdefault(hashes, []).append(name)
    with open(os.path.join(DATA, "tokens_random.json"), "w", encoding="utf-8") as f:
        f.write("{\n" + ",\n".join(f' "{" ".join(n)}": "{h}"' for h, n in names.items()) + "\n}\n")


if __name__ == "__main__":
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command == "logits" and len(sys.argv) == 4:
        make_logits(*sys.argv[2:])
    elif command == "long" and len(sys.argv) == 4:
        make_long(*sys.argv[2:])
    elif command == "merges" and len(sys.argv) == 2:
        make_merges()
    elif command == "tokens" and len(sys.argv) == 4:
        make_tokens(*sys.argv[2:])
        make_random_tokens(*sys.argv[2:])
    else:
        sys.exit(__doc__)
