#!/usr/bin/env python3
"""make_blocks.py LIBGGML - random blocks of every quantised type and what ggml makes of them, for test_blocks.c.

LIBGGML is libggml-base.so of node-llama-cpp. Writes tests/golden/data/blocks.txt: a line for each type with its name, the
bytes of some blocks, and the numbers as 32-bit floats, little-endian, in hexadecimal. Scales are finite and not huge."""
import ctypes
import random
import struct
import sys

# name, function, elements and bytes of a block, where its halves are, blocks
TYPES = [("Q8_0", "q8_0", 32, 34, [0], 3), ("Q4_0", "q4_0", 32, 18, [0], 3), ("Q4_1", "q4_1", 32, 20, [0, 2], 3),
         ("Q5_0", "q5_0", 32, 22, [0], 3), ("Q5_1", "q5_1", 32, 24, [0, 2], 3), ("Q4_K", "q4_K", 256, 144, [0, 2], 1),
         ("Q5_K", "q5_K", 256, 176, [0, 2], 1), ("Q6_K", "q6_K", 256, 210, [208], 1),
         ("Q2_K", "q2_K", 256, 84, [80, 82], 1), ("Q3_K", "q3_K", 256, 110, [108], 1),
         ("IQ4_NL", "iq4_nl", 32, 18, [0], 3), ("IQ4_XS", "iq4_xs", 256, 136, [0], 1), ("MXFP4", "mxfp4", 32, 17, [], 6)]


def main():
    ggml = ctypes.CDLL(sys.argv[1])
    source = random.Random(20261122)
    with open("tests/golden/data/blocks.txt", "w", encoding="ascii") as out:
        for name, function, n, size, halves, count in TYPES:
            data = bytearray(source.randbytes(size * count))
            for block in range(count):
                for at in halves:
                    struct.pack_into("<e", data, block * size + at, source.choice([-1, 1]) * source.uniform(1e-4, 2))
                if name == "MXFP4":  # ordinary exponents, the smallest two, and the largest whose numbers are finite
                    data[block * size] = [120, 127, 133, 0, 1, 252][block]
            numbers = (ctypes.c_float * (n * count))()
            getattr(ggml, "dequantize_row_" + function)(bytes(data), numbers, ctypes.c_int64(n * count))
            out.write(f"{name} {data.hex()} {bytes(numbers).hex()}\n")


main()
