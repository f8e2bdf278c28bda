/* convert_tensors.c - the names of tensors, and the order of the elements in published tensors that differ from a GGUF
 * file's.
 *
 * Names. Qwen publishes the layer for multi-token prediction under "mtp.": a layer with attention like all others,
 * "mtp.layers.0.", and the matrix and the norms around it. A GGUF file has it after the other layers (Nextn in
 * src/model/model.h).
 *
 * Recurrent layers. Qwen3-Next publishes queries, keys, values and z as one matrix, ordered by key head:
 *
 *     published   q0 k0 v0 v1 z0 z1 | q1 k1 v2 v3 z2 z3          two key heads with two value heads each
 *     GGUF        attn_qkv q0 q1 k0 k1 v0 v1 v2 v3               attn_gate z0 z1 z2 z3
 *
 * Qwen 3.5 publishes them as separate tensors, but in its GGUF files value head h belongs to key head h modulo the
 * number of key heads, which makes the order here v0 v2 v1 v3. The same holds for all tensors with rows, elements or
 * columns of value heads.
 *
 * Decay. Both publish log(-a); a GGUF file stores a.
 *
 * Latent attention. kv_b_proj has, for each head, the rows of its keys and then the rows of its values
 * (convert_deepseek.c).
 *
 * Experts of gpt-oss. Rows of gate and up alternate. In MXFP4, a published block of 32 numbers is 16 bytes with
 * neighbours in the low and high half of a byte, and its scale is in another tensor. A block of a GGUF file begins with
 * the scale, and its byte i has number i in the low half and number i + 16 in the high half. In BF16, the matrices are
 * published transposed.
 *
 * Proof: tests/cli/test_convert_published.c takes models apart by code of its own. */
#include "cli/convert/convert_arch.h"

#include <stdio.h>
#include <string.h>

/* ---- names -------------------------------------------------------------------------------------------- */

const ConvertTensor convert_nextn_tensors[] = {
    {"mtp.fc.weight", TENSOR_NEXTN_EH_PROJ, false, FORM_SAME},
    {"mtp.pre_fc_norm_embedding.weight", TENSOR_NEXTN_ENORM, false, FORM_SAME},
    {"mtp.pre_fc_norm_hidden.weight", TENSOR_NEXTN_HNORM, false, FORM_SAME},
    {"mtp.norm.weight", TENSOR_NEXTN_HEAD_NORM, false, FORM_SAME},
    {"mtp.embed_tokens.weight", TENSOR_NEXTN_EMBD, true, FORM_SAME},
    {.from = NULL},
};

/* Replaces each "%d" of a name by a number: the first by the layer, the second by the expert. */
static void write_name(const char *form, int64_t layer, int64_t expert, char out[CONVERT_MAX_NAME]) {
    enum { LAST = CONVERT_MAX_NAME - 20 };
    int64_t numbers[2] = {layer, expert};
    size_t n = 0;
    out[0] = '\0';
    for (int i = 0; *form && n < LAST; form++) {
        bool is_number = i < 2 && form[0] == '%' && form[1] == 'd';
        if (is_number) n += (size_t)snprintf(out + n, CONVERT_MAX_NAME - n, "%lld", (long long)numbers[i++]), form++;
        else out[n++] = *form, out[n] = '\0';
    }
}

void convert_name_from(const ConvertTensor *t, const ConvertShape *s, int64_t layer, int64_t expert,
                       char out[CONVERT_MAX_NAME]) {
    static const char model[] = "model.";
    char form[CONVERT_MAX_NAME];
    bool is_nextn = layer >= s->n_layer && !s->nextn_in_layers && strncmp(t->from, model, sizeof model - 1) == 0;
    if (is_nextn) snprintf(form, sizeof form, "mtp.%s", t->from + sizeof model - 1);
    write_name(is_nextn ? form : t->from, is_nextn ? layer - s->n_layer : layer, expert, out);
}

void convert_name_to(const ConvertTensor *t, int64_t layer, char out[CONVERT_MAX_NAME]) {
    if (tensor_is_of_layer(t->to))
        snprintf(out, CONVERT_MAX_NAME, "blk.%lld.%s", (long long)layer, tensor_table[t->to].name);
    else snprintf(out, CONVERT_MAX_NAME, "%s", tensor_table[t->to].name);
}

bool convert_is_of_experts(const ConvertTensor *t) {
    const char *first = strstr(t->from, "%d");
    return first && strstr(first + 1, "%d");
}

/* ---- kinds of forms ----------------------------------------------------------------------------------- */

enum { PACKED_BLOCK = 32, PACKED_BYTES = 16 };

bool convert_form_is_packed(ConvertForm form) { return form >= FORM_PACKED; }
int64_t convert_form_count(const ConvertShape *s, ConvertForm form) {
    if (form == FORM_KEYS_OF_LATENT || form == FORM_VALUES_OF_LATENT) return s->n_head;
    return convert_form_is_packed(form) || (form >= FORM_STACKED && form <= FORM_ODD_COLUMNS) ? s->n_expert : 0;
}
bool convert_form_is_decay(ConvertForm form) {
    return form == FORM_DECAY || form == FORM_HEADS_DECAY || form == FORM_CUT_DECAY;
}
bool convert_form_is_table(ConvertForm form) {
    return form == FORM_TABLE || form == FORM_CUT || form == FORM_CUT_DECAY || form == FORM_CONV ||
           form == FORM_QKV_CONV || form == FORM_EVEN || form == FORM_ODD;
}

/* ---- value heads ------------------------------------------------------------------------------------ */

static int64_t values_per_key(const ConvertShape *s) { return s->n_value_heads / s->n_key_heads; }

/* Returns the published index of element i of the GGUF tensor, where each value head has `width` elements. */
static int64_t place_in_heads(const ConvertShape *s, int64_t i, int64_t width) {
    int64_t head = i / width;
    return (head % s->n_key_heads * values_per_key(s) + head / s->n_key_heads) * width + i % width;
}

static int64_t row_of_qkv(const ConvertShape *s, int64_t o) {
    int64_t n_keys = 2 * s->n_key_heads * s->delta_dim;
    return o < n_keys ? o : n_keys + place_in_heads(s, o - n_keys, s->delta_dim);
}

/* Returns the published row of row o of the queries (part 0), keys (1), values (2) or z (3). */
static int64_t row_of_qkvz(const ConvertShape *s, int part, int64_t o) {
    int64_t d = s->delta_dim, r = values_per_key(s), head = o / d, group = (2 + 2 * r) * d;
    if (part < 2) return head * group + part * d + o % d;
    return head / r * group + (part == 2 ? 2 : 2 + r) * d + head % r * d + o % d;
}

static int64_t row_of_qkv_part(const ConvertShape *s, int64_t o) {
    int64_t n = s->n_key_heads * s->delta_dim;
    return o < n ? row_of_qkvz(s, 0, o) : o < 2 * n ? row_of_qkvz(s, 1, o - n) : row_of_qkvz(s, 2, o - 2 * n);
}

/* ---- places ------------------------------------------------------------------------------------------ */

RowPlaces convert_row_places(const ConvertShape *s, ConvertForm form, int64_t n_in, int64_t n_out, int64_t o) {
    int64_t expert = o / n_out, row = o % n_out, matrix = n_in * n_out;
    switch (form) {
    case FORM_QKV_OF_QKVZ: return (RowPlaces){row_of_qkv_part(s, o) * n_in, 1, 0};
    case FORM_Z_OF_QKVZ: return (RowPlaces){row_of_qkvz(s, 3, o) * n_in, 1, 0};
    case FORM_VALUES: return (RowPlaces){place_in_heads(s, o, s->delta_dim) * n_in, 1, 0};
    case FORM_QKV:
    case FORM_QKV_CONV: return (RowPlaces){row_of_qkv(s, o) * n_in, 1, 0};
    case FORM_VALUE_INPUTS: return (RowPlaces){o * n_in, 1, s->delta_dim};
    case FORM_HEADS:
    case FORM_HEADS_DECAY:
        if (n_out == 1) return (RowPlaces){0, 1, 1};
        return (RowPlaces){place_in_heads(s, o, 1) * n_in, 1, 0};
    case FORM_KEYS_OF_LATENT: return (RowPlaces){expert * (n_in + s->value_dim) * n_out + row, n_out, 0};
    case FORM_VALUES_OF_LATENT: return (RowPlaces){(expert * (s->plain_dim + n_out) + s->plain_dim + row) * n_in, 1, 0};
    case FORM_FIRST_HALF: return (RowPlaces){(expert * 2 * n_out + row) * n_in, 1, 0};
    case FORM_SECOND_HALF: return (RowPlaces){((expert * 2 + 1) * n_out + row) * n_in, 1, 0};
    case FORM_SECOND_ROWS: return (RowPlaces){(n_out + o) * n_in, 1, 0};
    case FORM_TRANSPOSED: return (RowPlaces){expert * matrix + row, n_out, 0};
    case FORM_FIRST_COLUMNS:
    case FORM_SECOND_COLUMNS:
        return (RowPlaces){2 * expert * matrix + row + (form == FORM_SECOND_COLUMNS ? n_out : 0), 2 * n_out, 0};
    case FORM_EVEN_COLUMNS:
    case FORM_ODD_COLUMNS: return (RowPlaces){2 * (expert * matrix + row) + (form == FORM_ODD_COLUMNS), 2 * n_out, 0};
    case FORM_EVEN:
    case FORM_ODD: return (RowPlaces){o * 2 * n_in + (form == FORM_ODD), 2, 0};
    default: return (RowPlaces){o * n_in, 1, 0};
    }
}

int64_t convert_place(const ConvertShape *s, const RowPlaces *p, int64_t i) {
    return p->first + p->stride * (p->width ? place_in_heads(s, i, p->width) : i);
}

static int set_dims(int64_t dims[4], int n, int64_t a, int64_t b, int64_t c) {
    dims[0] = a, dims[1] = b, dims[2] = c, dims[3] = PACKED_BYTES;
    return n;
}

int convert_form_dims(const ConvertShape *s, ConvertForm form, int64_t n_in, int64_t n_out, int64_t dims[4]) {
    int64_t n_values = s->n_value_heads * s->delta_dim, n_keys = s->n_key_heads * s->delta_dim;
    switch (form) {
    case FORM_CONV:
    case FORM_QKV_CONV: return set_dims(dims, 3, n_out, 1, n_in);
    case FORM_QKV_OF_QKVZ:
    case FORM_Z_OF_QKVZ: return set_dims(dims, 2, 2 * (n_keys + n_values), n_in, 1);
    case FORM_ONE_ROW: return set_dims(dims, 2, 1, n_in, 1);
    case FORM_CUT:
    case FORM_CUT_DECAY: return set_dims(dims, 1, n_out * n_in, 1, 1);
    case FORM_FIRST_ROWS:
    case FORM_SECOND_ROWS: return set_dims(dims, 2, 2 * n_out, n_in, 1);
    case FORM_KEYS_OF_LATENT:
    case FORM_VALUES_OF_LATENT: return set_dims(dims, 2, s->n_head * (s->plain_dim + s->value_dim), s->kv_rank, 1);
    case FORM_STACKED: return set_dims(dims, 3, s->n_expert, n_out, n_in);
    case FORM_FIRST_HALF:
    case FORM_SECOND_HALF: return set_dims(dims, 3, s->n_expert, 2 * n_out, n_in);
    case FORM_TRANSPOSED: return set_dims(dims, 3, s->n_expert, n_in, n_out);
    case FORM_FIRST_COLUMNS:
    case FORM_SECOND_COLUMNS:
    case FORM_EVEN_COLUMNS:
    case FORM_ODD_COLUMNS: return set_dims(dims, 3, s->n_expert, n_in, 2 * n_out);
    case FORM_EVEN:
    case FORM_ODD: return set_dims(dims, 2, n_out, 2 * n_in, 1);
    case FORM_PACKED: return set_dims(dims, 4, s->n_expert, n_out, n_in / PACKED_BLOCK);
    case FORM_PACKED_EVEN:
    case FORM_PACKED_ODD: return set_dims(dims, 4, s->n_expert, 2 * n_out, n_in / PACKED_BLOCK);
    default: return n_out ? set_dims(dims, 2, n_out, n_in, 1) : set_dims(dims, 1, n_in, 1, 1);
    }
}

/* ---- packed experts ---------------------------------------------------------------------------------- */

/* Returns number k of a published block. */
static unsigned nibble(const unsigned char *block, int k) { return k % 2 ? block[k / 2] >> 4 : block[k / 2] & 15u; }

void convert_packed_row(ConvertForm form, const void *blocks, const void *scales, int64_t n_in, int64_t o, void *out) {
    int64_t n = n_in / PACKED_BLOCK, row = form == FORM_PACKED ? o : 2 * o + (form == FORM_PACKED_ODD);
    const unsigned char *from = (const unsigned char *)blocks + row * n * PACKED_BYTES,
                        *scale = (const unsigned char *)scales + row * n;
    unsigned char *to = out;
    for (int64_t b = 0; b < n; b++, from += PACKED_BYTES, to += 1 + PACKED_BYTES) {
        to[0] = scale[b];
        for (int i = 0; i < PACKED_BYTES; i++)
            to[1 + i] = (unsigned char)(nibble(from, i) | nibble(from, i + PACKED_BYTES) << 4);
    }
}
