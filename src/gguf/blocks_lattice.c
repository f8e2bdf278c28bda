/* blocks_lattice.c - blocks of 256 weights, whose groups of eight or four are points of a list (codebook.h).
 *
 * A block (numbers are bytes; d is a half; words are little-endian; b is a sub-block of 32 weights, 0 to 7):
 *
 *     IQ2_XXS   d:2  8 x { index:4  word:4 }             index of 8 weights: 8 bits; the word has four times 7 bits of
 *                                                        signs, then 4 of the scale of the 32 weights
 *     IQ2_XS    d:2  32 x word:2  scale:8                a word: 9 bits of the index of 8 weights, 7 of their signs;
 *                                                        scale[b]: weights 0-15 low nibble, weights 16-31 high nibble
 *     IQ2_S     d:2  index:32  sign:32  high:8  scale:8  bits 8 and 9 of index 4b + j are bits 2j, 2j+1 of high[b]
 *     IQ3_XXS   d:2  index:64  8 x word:4                index of 4 weights: 8 bits; words as those of IQ2_XXS
 *     IQ3_S     d:2  index:64  high:8  sign:32  scale:4  bit 8 of index 8b + j is bit j of high[b]; scale[b/2] has two
 *     IQ1_S     d:2  index:32  8 x word:2                a word: bits 8-10 of four indices, 3 bits of scale, the shift
 *     IQ1_M     index:32  high:16  4 x word:2            half a byte of `high`: bits 8-10 of an index, and its shift; a
 *                                                        word: four 3-bit scales of 16 weights each, and 4 bits of d
 *
 * Seven bits of signs belong to the first seven of eight weights; the last weight is negative where that makes the
 * number of negative weights even. In eight bits of signs, bit i belongs to weight i.
 *
 * IQ1: a coordinate means -1, 0 or 1, and all weights of a group are shifted by 1/8 or, where the bit is set, -1/8.
 * `values` are eight times that.
 *
 * Every x = d (2s + 1) unit value is exact in a float: 11 bits of d, 5 of the scale, 7 of the value at most.
 * Proof: tests/gguf/test_lattice.c; tests/gguf/test_blocks.c has blocks that ggml read. */
#include "gguf/blocks_internal.h"
#include "gguf/codebook.h"

enum { SUBS = 8 };

int lattice_find(const Lattice *l, uint32_t key) {
    int low = 0, high = l->n_points - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (l->points[middle] < key) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* ---- bytes ------------------------------------------------------------------------------------------- */

static unsigned word_at(const uint8_t *p) { return (unsigned)p[0] | (unsigned)p[1] << 8; }
static uint32_t long_at(const uint8_t *p) { return word_at(p) | (uint32_t)word_at(p + 2) << 16; }
static void put_word(uint8_t *p, unsigned v) { p[0] = (uint8_t)v, p[1] = (uint8_t)(v >> 8); }
static void put_long(uint8_t *p, uint32_t v) { put_word(p, v & 0xffff), put_word(p + 2, v >> 16); }

/* Eight signs from seven, where the number of negative ones is even. */
static uint8_t even_signs(unsigned seven) { return (uint8_t)(seven | (__builtin_parity(seven) ? 0x80u : 0)); }

/* Reads the word of sub-block i of IQ2_XXS and IQ3_XXS. */
static void read_signs_and_scale(const uint8_t *p, int i, LatticeBlock *b) {
    uint32_t word = long_at(p);
    for (int j = 0; j < 4; j++) b->sign[4 * i + j] = even_signs(word >> 7 * j & 127);
    b->scale[i] = (uint8_t)(word >> 28);
}

static void write_signs_and_scale(const LatticeBlock *b, int i, uint8_t *p) {
    uint32_t word = (uint32_t)b->scale[i] << 28;
    for (int j = 0; j < 4; j++) word |= (uint32_t)(b->sign[4 * i + j] & 127) << 7 * j;
    put_long(p, word);
}

/* ---- two and three bits ------------------------------------------------------------------------------ */

static void read_iq2_xxs(const uint8_t *p, LatticeBlock *b) {
    for (int i = 0; i < SUBS; i++) {
        for (int j = 0; j < 4; j++) b->point[4 * i + j] = p[8 * i + j];
        read_signs_and_scale(p + 8 * i + 4, i, b);
    }
}

static void write_iq2_xxs(const LatticeBlock *b, uint8_t *p) {
    for (int i = 0; i < SUBS; i++) {
        for (int j = 0; j < 4; j++) p[8 * i + j] = (uint8_t)b->point[4 * i + j];
        write_signs_and_scale(b, i, p + 8 * i + 4);
    }
}

static void read_nibbles(const uint8_t *p, int n, LatticeBlock *b) {
    for (int i = 0; i < n; i++) b->scale[i] = p[i / 2] >> i % 2 * 4 & 15;
}

static void write_nibbles(const LatticeBlock *b, int n, uint8_t *p) {
    for (int i = 0; i < n; i += 2) p[i / 2] = (uint8_t)(b->scale[i] | b->scale[i + 1] << 4);
}

static void read_iq2_xs(const uint8_t *p, LatticeBlock *b) {
    for (int i = 0; i < 32; i++) {
        unsigned word = word_at(p + 2 * i);
        b->point[i] = word & 511;
        b->sign[i] = even_signs(word >> 9);
    }
    read_nibbles(p + 64, 16, b);
}

static void write_iq2_xs(const LatticeBlock *b, uint8_t *p) {
    for (int i = 0; i < 32; i++) put_word(p + 2 * i, b->point[i] | (b->sign[i] & 127u) << 9);
    write_nibbles(b, 16, p + 64);
}

static void read_iq2_s(const uint8_t *p, LatticeBlock *b) {
    for (int i = 0; i < 32; i++) b->point[i] = (uint16_t)(p[i] | (p[64 + i / 4] >> i % 4 * 2 & 3) << 8);
    memcpy(b->sign, p + 32, 32);
    read_nibbles(p + 72, 16, b);
}

static void write_iq2_s(const LatticeBlock *b, uint8_t *p) {
    memset(p + 64, 0, 8);
    for (int i = 0; i < 32; i++) {
        p[i] = (uint8_t)b->point[i];
        p[64 + i / 4] = (uint8_t)(p[64 + i / 4] | b->point[i] >> 8 << i % 4 * 2);
    }
    memcpy(p + 32, b->sign, 32);
    write_nibbles(b, 16, p + 72);
}

static void read_iq3_xxs(const uint8_t *p, LatticeBlock *b) {
    for (int i = 0; i < 64; i++) b->point[i] = p[i];
    for (int i = 0; i < SUBS; i++) read_signs_and_scale(p + 64 + 4 * i, i, b);
}

static void write_iq3_xxs(const LatticeBlock *b, uint8_t *p) {
    for (int i = 0; i < 64; i++) p[i] = (uint8_t)b->point[i];
    for (int i = 0; i < SUBS; i++) write_signs_and_scale(b, i, p + 64 + 4 * i);
}

static void read_iq3_s(const uint8_t *p, LatticeBlock *b) {
    for (int i = 0; i < 64; i++) b->point[i] = (uint16_t)(p[i] | (p[64 + i / 8] >> i % 8 & 1) << 8);
    memcpy(b->sign, p + 72, 32);
    read_nibbles(p + 104, 8, b);
}

static void write_iq3_s(const LatticeBlock *b, uint8_t *p) {
    memset(p + 64, 0, 8);
    for (int i = 0; i < 64; i++) {
        p[i] = (uint8_t)b->point[i];
        p[64 + i / 8] = (uint8_t)(p[64 + i / 8] | b->point[i] >> 8 << i % 8);
    }
    memcpy(p + 72, b->sign, 32);
    write_nibbles(b, 8, p + 104);
}

/* ---- less than two bits ------------------------------------------------------------------------------ */

static void read_iq1_s(const uint8_t *p, LatticeBlock *b) {
    for (int i = 0; i < SUBS; i++) {
        unsigned word = word_at(p + 32 + 2 * i);
        for (int j = 0; j < 4; j++) b->point[4 * i + j] = (uint16_t)(p[4 * i + j] | (word >> 3 * j & 7) << 8);
        memset(b->sign + 4 * i, word >> 15 ? 0xff : 0, 4);
        b->scale[i] = word >> 12 & 7;
    }
}

static void write_iq1_s(const LatticeBlock *b, uint8_t *p) {
    for (int i = 0; i < SUBS; i++) {
        unsigned word = (unsigned)b->scale[i] << 12 | (b->sign[4 * i] & 1u) << 15;
        for (int j = 0; j < 4; j++) {
            p[4 * i + j] = (uint8_t)b->point[4 * i + j];
            word |= (unsigned)(b->point[4 * i + j] >> 8) << 3 * j;
        }
        put_word(p + 32 + 2 * i, word);
    }
}

static void read_iq1_m(const uint8_t *p, LatticeBlock *b) {
    for (int i = 0; i < 32; i++) {
        int high = p[32 + i / 2] >> i % 2 * 4 & 15;
        b->point[i] = (uint16_t)(p[i] | (high & 7) << 8);
        b->sign[i] = high & 8 ? 0xff : 0;
    }
    b->d = 0;
    for (int i = 0; i < 4; i++) {
        unsigned word = word_at(p + 48 + 2 * i);
        b->d = (uint16_t)(b->d | word >> 12 << 4 * i);
        for (int j = 0; j < 4; j++) b->scale[4 * i + j] = word >> 3 * j & 7;
    }
}

static void write_iq1_m(const LatticeBlock *b, uint8_t *p) {
    memset(p + 32, 0, 16);
    for (int i = 0; i < 32; i++) {
        p[i] = (uint8_t)b->point[i];
        p[32 + i / 2] = (uint8_t)(p[32 + i / 2] | (b->point[i] >> 8 | (b->sign[i] & 1) << 3) << i % 2 * 4);
    }
    for (int i = 0; i < 4; i++) {
        unsigned word = (b->d >> 4 * i & 15u) << 12;
        for (int j = 0; j < 4; j++) word |= (unsigned)b->scale[4 * i + j] << 3 * j;
        put_word(p + 48 + 2 * i, word);
    }
}

/* ---- the types --------------------------------------------------------------------------------------- */

#define EIGHTS(list) .points = (list), .n_points = (int16_t)(sizeof(list) / sizeof *(list)), .dim = 8, .bits = 2
#define FOURS(list) .points = (list), .n_points = (int16_t)(sizeof(list) / sizeof *(list)), .dim = 4, .bits = 3
#define BYTES(type) .read = read_##type, .write = write_##type
#define IQ2_VALUES \
    { 8, 25, 43, 0, -8, -25, -43, 0 }
#define IQ1_VALUES \
    { -7, 1, 9, 0, -9, -1, 7, 0 }

/* clang-format off */
static const Lattice iq2_xxs = {EIGHTS(lattice_iq2_xxs), .sub = 32, .s_max = 15, .d_bytes = 2, .even_signs = true,
                                .unit = 0.125f, .values = IQ2_VALUES, BYTES(iq2_xxs)};
static const Lattice iq2_xs = {EIGHTS(lattice_iq2_xs), .sub = 16, .s_max = 15, .d_bytes = 2, .even_signs = true,
                               .unit = 0.125f, .values = IQ2_VALUES, BYTES(iq2_xs)};
static const Lattice iq2_s = {EIGHTS(lattice_iq2_s), .sub = 16, .s_max = 15, .d_bytes = 2,
                              .unit = 0.125f, .values = IQ2_VALUES, BYTES(iq2_s)};
static const Lattice iq3_xxs = {FOURS(lattice_iq3_xxs), .sub = 32, .s_max = 15, .d_bytes = 2, .even_signs = true,
                                .unit = 0.25f,
                                .values = {4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62},
                                BYTES(iq3_xxs)};
static const Lattice iq3_s = {FOURS(lattice_iq3_s), .sub = 32, .s_max = 15, .d_bytes = 2,
                              .unit = 1,
                              .values = {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15},
                              BYTES(iq3_s)};
static const Lattice iq1_s = {EIGHTS(lattice_iq1), .sub = 32, .s_max = 7, .d_bytes = 2, .shift_n = 32,
                              .unit = 0.125f, .values = IQ1_VALUES, BYTES(iq1_s)};
static const Lattice iq1_m = {EIGHTS(lattice_iq1), .sub = 16, .s_max = 7, .d_bytes = 0, .shift_n = 8,
                              .unit = 0.125f, .values = IQ1_VALUES, BYTES(iq1_m)};
/* clang-format on */

const Lattice *lattice_of(TensorType type) {
    static const Lattice *const lattices[TYPE_COUNT] = {
        [TYPE_IQ2_XXS] = &iq2_xxs, [TYPE_IQ2_XS] = &iq2_xs, [TYPE_IQ2_S] = &iq2_s, [TYPE_IQ3_XXS] = &iq3_xxs,
        [TYPE_IQ3_S] = &iq3_s,     [TYPE_IQ1_S] = &iq1_s,   [TYPE_IQ1_M] = &iq1_m,
    };
    return lattices[type];
}

void lattice_read(const Lattice *l, const uint8_t *src, LatticeBlock *b) {
    if (l->d_bytes) b->d = (uint16_t)word_at(src);
    l->read(src + l->d_bytes, b);
}

void lattice_write(const Lattice *l, const LatticeBlock *b, uint8_t *dst) {
    if (l->d_bytes) put_word(dst, b->d);
    l->write(b, dst + l->d_bytes);
}

/* ---- decode and encode ------------------------------------------------------------------------------- */

static void decode(const Lattice *l, const uint8_t *src, float *dst) {
    LatticeBlock b;
    lattice_read(l, src, &b);
    float d = half_to_float(b.d);
    for (int i = 0; i < LATTICE_N; i++) {
        int sub = i / l->sub, odd = 2 * b.scale[sub] + 1;
        dst[i] = d * (float)odd * l->unit * (float)l->values[lattice_code(l, &b, i)];
    }
}

/* Returns the best scale of a sub-block. Only those are tried that give its extreme weight one of the values;
 * lattice_search finds better ones. */
static float scale_of(const Lattice *l, const float *x, const float *ones, int sub, LatticeBlock *b) {
    float extreme = fabsf(extreme_of(x + sub * l->sub, l->sub)), best = 0;
    double least = INFINITY;
    for (int v = 0; v < 1 << l->bits; v++) {
        if (l->values[v] == 0) continue;
        float scale = extreme / fabsf((float)l->values[v]);
        double error = lattice_choose_points(l, x, ones, sub, scale, b);
        if (!(error < least)) continue;
        least = error;
        best = scale;
    }
    return best;
}

static void encode(const Lattice *l, const float *src, uint8_t *dst) {
    LatticeBlock b;
    float ones[LATTICE_N], scale[LATTICE_SCALES_MAX], most = 0;
    for (int i = 0; i < LATTICE_N; i++) ones[i] = 1;
    lattice_choose_signs(l, src, ones, &b);
    for (int i = 0; i < LATTICE_N / l->sub; i++) {
        scale[i] = scale_of(l, src, ones, i, &b);
        if (scale[i] > most) most = scale[i];
    }
    uint8_t half[2];
    float d = store_half(half, most / ((float)(2 * l->s_max + 1) * l->unit)), inv = inverse(d * l->unit);
    b.d = (uint16_t)(half[0] | half[1] << 8);
    for (int i = 0; i < LATTICE_N / l->sub; i++) {
        int s = nearest((scale[i] * inv - 1) / 2, 0, l->s_max);
        b.scale[i] = (uint8_t)s;
        (void)lattice_choose_points(l, src, ones, i, d * (float)(2 * s + 1) * l->unit, &b);
    }
    lattice_write(l, &b, dst);
}

#define DEFINE(type) \
    void type##_decode(const uint8_t *src, float *dst) { decode(&type, src, dst); } \
    void type##_encode(const float *src, uint8_t *dst) { encode(&type, src, dst); } \
    void type##_search(const float *x, const float *w, uint8_t *dst) { lattice_search(&type, x, w, dst); }
DEFINE(iq2_xxs)
DEFINE(iq2_xs)
DEFINE(iq2_s)
DEFINE(iq3_xxs)
DEFINE(iq3_s)
DEFINE(iq1_s)
DEFINE(iq1_m)
