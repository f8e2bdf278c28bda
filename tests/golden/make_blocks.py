#!/usr/bin/env python3
"""make_blocks.py LIBGGML - random blocks of every quantised type and the numbers that ggml reads in them, for test_blocks.c; checksums of
every point of the types with lists of points, for test_lattice.c.

LIBGGML is libggml-base.so of node-llama-cpp. Writes tests/golden/data/blocks.txt: a line for each type with its name, the
bytes of some blocks, and the numbers as 32-bit floats, little-endian, in hexadecimal. Scales are finite and not huge. And
tests/golden/data/lattice.txt: a line for each type with its name and the FNV-1a hash of the floats that ggml reads in the
first eight places of a block for each point, and for each combination of signs."""
import ctypes
import random
import struct
import sys

# name, function, elements and bytes of a block, offsets of its halves, number of blocks
TYPES = [("Q8_0", "q8_0", 32, 34, [0], 3), ("Q4_0", "q4_0", 32, 18, [0], 3), ("Q4_1", "q4_1", 32, 20, [0, 2], 3),
         ("Q5_0", "q5_0", 32, 22, [0], 3), ("Q5_1", "q5_1", 32, 24, [0, 2], 3), ("Q4_K", "q4_K", 256, 144, [0, 2], 1),
         ("Q5_K", "q5_K", 256, 176, [0, 2], 1), ("Q6_K", "q6_K", 256, 210, [208], 1),
         ("Q2_K", "q2_K", 256, 84, [80, 82], 1), ("Q3_K", "q3_K", 256, 110, [108], 1),
         ("IQ4_NL", "iq4_nl", 32, 18, [0], 3), ("IQ4_XS", "iq4_xs", 256, 136, [0], 1), ("MXFP4", "mxfp4", 32, 17, [], 6),
         ("IQ2_XXS", "iq2_xxs", 256, 66, [0], 1), ("IQ2_XS", "iq2_xs", 256, 74, [0], 1), ("IQ2_S", "iq2_s", 256, 82, [0], 1),
         ("IQ3_XXS", "iq3_xxs", 256, 98, [0], 1), ("IQ3_S", "iq3_s", 256, 110, [0], 1), ("IQ1_S", "iq1_s", 256, 50, [0], 1),
         ("IQ1_M", "iq1_m", 256, 56, [], 1), ("NVFP4", "nvfp4", 64, 36, [], 3)]

# name, points, bytes of a block, and the offsets of: the low bits of the first index, its high bits (byte, shift), signs
LATTICES = [("IQ2_XXS", 256, 66, 2, None, (6, 0)), ("IQ2_XS", 512, 74, 2, (3, 0), (3, 1)), ("IQ2_S", 1024, 82, 2, (66, 0), (34, 0)),
            ("IQ3_XXS", 256, 98, 2, None, (66, 0)), ("IQ3_S", 512, 110, 2, (66, 0), (74, 0)),
            ("IQ1_S", 2048, 50, 2, (34, 0), (35, 7)), ("IQ1_M", 2048, 56, 0, (32, 0), (32, 3))]


def read(ggml, function, data, n):
    numbers = (ctypes.c_float * n)()
    getattr(ggml, "dequantize_row_" + function)(bytes(data), numbers, ctypes.c_int64(n))
    return numbers


def lattice_hash(ggml, name, n_points, size, low, high, sign):
    def first_eight(changes):
        data = bytearray(size)
        if name == "IQ1_M":  # 0x3c00, a half of 1, in the upper nibbles of four words
            data[53], data[55] = 0xc0, 0x30
        else:
            struct.pack_into("<e", data, 0, 1.0)
        for at, bits in changes:
            data[at] |= bits
        return bytes(read(ggml, name.lower(), data, 256))[:32]

    value = 0xCBF29CE484222325
    blocks = [[(low, p & 255)] + ([(high[0], p >> 8 << high[1])] if high else []) for p in range(n_points)]
    n_signs = {"IQ2_S": 256, "IQ3_S": 256, "IQ1_S": 2, "IQ1_M": 2}.get(name, 128)
    blocks += [[(sign[0], s << sign[1])] for s in range(n_signs)]
    for changes in blocks:
        for byte in first_eight(changes):
            value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


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
                if name == "IQ1_M":  # its half is about 1
                    data[53], data[55] = 0xC0 | data[53] & 15, 0x30 | data[55] & 0x8F
                if name == "NVFP4":  # ordinary scales, the smallest, and the largest
                    data[block * size : block * size + 4] = [[0x38, 0x41, 0x07, 0x08], [0, 1, 0x7E, 0x77], [0x20, 0x2B, 0x33, 0x55]][block]
            numbers = read(ggml, function, data, n * count)
            out.write(f"{name} {data.hex()} {bytes(numbers).hex()}\n")
    with open("tests/golden/data/lattice.txt", "w", encoding="ascii") as out:
        for lattice in LATTICES:
            out.write(f"{lattice[0]} {lattice_hash(ggml, *lattice):016x}\n")


main()
