#!/usr/bin/env python3
"""quantize_peer.py - the comparison with llama.cpp's quantiser in docs/MODELS.md.

    (cd FOLDER; npm install node-llama-cpp@3.22.1); bench/quantize_peer.py FOLDER [MODEL [CORPUS]]

Quantises MODEL (models/f16/target.gguf) by `forerun quantize` and by libllama of node-llama-cpp, checks that both chose the same
type for every tensor, and prints the mean KL divergence of each file from MODEL on 20 windows of 512 tokens of held-out stories;
"+" is with importances from other stories. In the root of the project, after `make`; takes minutes."""
import ctypes as c
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

# llama_ftype of llama.h
PLAIN = {"Q6_K": 18, "Q5_K_M": 17, "Q5_K_S": 16, "Q5_1": 9, "Q5_0": 8, "Q4_K_M": 15, "Q4_K_S": 14, "Q4_1": 3, "Q4_0": 2, "IQ4_NL": 25,
         "IQ4_XS": 30, "Q3_K_L": 13, "Q3_K_M": 12, "Q3_K_S": 11, "Q2_K": 10, "IQ3_M": 27, "IQ3_S": 26}
WITH_IMPORTANCES = {"Q4_K_M": 15, "Q4_0": 2, "IQ4_XS": 30, "Q3_K_M": 12, "IQ3_M": 27, "IQ3_S": 26, "IQ3_XXS": 23, "Q2_K": 10, "IQ2_M": 29,
                    "IQ2_S": 28, "IQ2_XS": 20, "IQ2_XXS": 19, "IQ1_M": 31, "IQ1_S": 24}


class Params(c.Structure):  # llama_model_quantize_params
    _fields_ = [("n_threads", c.c_int32), ("ftype", c.c_int32), ("types", c.c_int32 * 2), ("flags", c.c_bool * 8),
                ("imatrix", c.c_void_p), ("others", c.c_void_p * 4)]


class Importances(c.Structure):  # llama_model_imatrix_data; a name that is NULL ends an array of them
    _fields_ = [("name", c.c_char_p), ("data", c.POINTER(c.c_float)), ("size", c.c_size_t)]


class InitParams(c.Structure):  # gguf_init_params
    _fields_ = [("no_alloc", c.c_bool), ("context", c.POINTER(c.c_void_p))]


def run(*args):
    return subprocess.run(args, check=True, stdout=subprocess.PIPE, text=True).stdout


class Peer:
    def __init__(self, folder):
        base = glob.glob(os.path.join(folder, "node_modules/@node-llama-cpp/linux-x64/bins/linux-x64"))[0]
        self.ggml, _, self.llama = (c.CDLL(glob.glob(f"{base}/{name}*")[0], c.RTLD_GLOBAL) for name in ("libggml-base", "libggml.", "libllama."))
        self.silent = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)(lambda *_: None)
        self.llama.llama_log_set(self.silent, None)
        self.llama.llama_model_quantize_default_params.restype = Params

    def tensor(self, context, name):
        self.ggml.ggml_get_tensor.restype = self.ggml.ggml_get_data_f32.restype = c.c_void_p
        self.ggml.ggml_nelements.restype = c.c_int64
        t = c.c_void_p(self.ggml.ggml_get_tensor(context, name.encode()))
        return c.cast(self.ggml.ggml_get_data_f32(t), c.POINTER(c.c_float)), self.ggml.ggml_nelements(t)

    def importances(self, path):
        """Mean squares of inputs: sums divided by counts."""
        context = c.c_void_p()
        self.ggml.gguf_init_from_file.restype = c.c_void_p
        self.ggml.gguf_init_from_file(path.encode(), InitParams(False, c.pointer(context)))
        names = [t["name"][:-len(".in_sum2")] for t in tensors(path) if t["name"].endswith(".in_sum2")]
        array = (Importances * (len(names) + 1))()
        for i, name in enumerate(names):
            sums, n = self.tensor(context, name + ".in_sum2")
            count = self.tensor(context, name + ".counts")[0][0]
            array[i] = Importances(name.encode(), (c.c_float * n)(*(sums[k] / count for k in range(n))), n)
        return array

    def quantize(self, model, out, ftype, importances):
        params = self.llama.llama_model_quantize_default_params()
        params.ftype = ftype
        params.imatrix = c.addressof(importances) if importances else None
        if self.llama.llama_model_quantize(model.encode(), out.encode(), c.byref(params)):
            sys.exit(f"llama.cpp does not quantise {model} to {ftype}")


def tensors(path):
    return json.loads(run("build/forerun", "inspect", "--json", "--tensors", path))["tensors"]


def kl(path, model, text):
    return float(re.search(r"^mean KL\D*([\d.]+)", run("build/forerun", "perplexity", "-m", path, text, "--base", model, "--windows", "20"), re.M)[1])


def main(folder, model="models/f16/target.gguf", corpus="../shared/data/corpus"):
    peer = Peer(folder)
    with tempfile.TemporaryDirectory() as d:
        for part, n in (("train", 150), ("valid", 60)):
            lines = run("zstd", "-dc", f"{corpus}/story.{part}.jsonl.zst").splitlines()[:n]
            with open(f"{d}/{part}.txt", "w") as f:
                f.writelines(json.loads(line)["text"] + "\n" for line in lines)
        run("build/forerun", "imatrix", "-m", model, f"{d}/train.txt", "-o", f"{d}/imatrix")
        importances = peer.importances(f"{d}/imatrix")
        print("| type | forerun | llama.cpp | forerun / llama.cpp |\n|---|---|---|---|")
        for types, given in ((PLAIN, None), (WITH_IMPORTANCES, importances)):
            for name, ftype in types.items():
                run("build/forerun", "quantize", model, f"{d}/ours", "--type", name, *(["--imatrix", f"{d}/imatrix"] if given else []))
                peer.quantize(model, f"{d}/theirs", ftype, given)
                ours, theirs = ({t["name"]: t["type"] for t in tensors(f"{d}/{x}")} for x in ("ours", "theirs"))
                note = "" if ours == theirs else " other types: " + ", ".join(n for n in ours if ours[n] != theirs.get(n))
                a, b = kl(f"{d}/ours", model, f"{d}/valid.txt"), kl(f"{d}/theirs", model, f"{d}/valid.txt")
                print(f"| {name}{' +' if given else ''} | {a:.5f} | {b:.5f} | {a / b:.2f} |{note}", flush=True)


if not 2 <= len(sys.argv) <= 4:
    sys.exit(__doc__)
main(*sys.argv[1:])
