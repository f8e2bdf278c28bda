/* convert_rows.h - where the numbers of a row lie in the published tensor, which may have them in another order, together with
 * those of other tensors, or packed. */
#ifndef CONVERT_CONVERT_ROWS_H
#define CONVERT_CONVERT_ROWS_H

#include "cli/convert/convert_shape.h"

/* How a published tensor has the rows of a tensor [n_out][n_in], or of one for each of E experts. nk, nv: key and value heads of a
 * recurrent layer, d: their width. */
typedef enum ConvertForm {
    FORM_SAME,       /* [n_out][n_in] */
    FORM_ROTATED,    /* queries and keys: where the architecture rotates neighbours, rows are put together in pairs */
    FORM_CONV,       /* [n_out][1][n_in] */
    FORM_ONE_ROW,    /* [1][n_in], which becomes a vector */
    FORM_TABLE,      /* as FORM_SAME; the tensor stays F32 */
    FORM_CUT,        /* a vector [n_out n_in]; the tensor stays F32 */
    FORM_CUT_DECAY,  /* likewise, as FORM_DECAY */
    FORM_FIRST_ROWS, /* of [2 n_out][n_in] */
    FORM_SECOND_ROWS,
    FORM_DECAY,       /* a vector a as log(-a) */
    FORM_QKV_OF_QKVZ, /* by key head its queries and keys [d], then of its value heads all values, then all z */
    FORM_Z_OF_QKVZ,
    FORM_HEADS, /* a number of each value head, a row or an element; here and below the value heads of a key head stand side
                        * by side, in the GGUF file the first ones of all key heads, then the second ones, ... */
    FORM_HEADS_DECAY,    /* likewise, as FORM_DECAY */
    FORM_VALUES,         /* d rows of each value head */
    FORM_QKV,            /* queries and keys, then d rows of each value head */
    FORM_QKV_CONV,       /* the same as FORM_CONV */
    FORM_VALUE_INPUTS,   /* d columns of each value head */
    FORM_KEYS_OF_LATENT, /* of each head the transpose of its first rows; a head has those and FORM_VALUES_OF_LATENT's */
    FORM_VALUES_OF_LATENT, /* of each head its other rows */
    FORM_STACKED,          /* [E][n_out][n_in] */
    FORM_FIRST_HALF,       /* of [E][2 n_out][n_in] */
    FORM_SECOND_HALF,
    FORM_TRANSPOSED,    /* [E][n_in][n_out] */
    FORM_FIRST_COLUMNS, /* of [E][n_in][2 n_out] */
    FORM_SECOND_COLUMNS,
    FORM_EVEN_COLUMNS, /* of [E][n_in][2 n_out] */
    FORM_ODD_COLUMNS,
    FORM_EVEN, /* of [n_out][2 n_in] */
    FORM_ODD,
    FORM_PACKED,      /* MXFP4: NAME_blocks [E][n_out][n_in / 32][16] and NAME_scales [E][n_out][n_in / 32] */
    FORM_PACKED_EVEN, /* the same with [E][2 n_out] rows */
    FORM_PACKED_ODD,
} ConvertForm;

/* Number i of a row is at first + stride * i, or with `heads` at first + stride * (place of i among the heads, each `width`). */
typedef struct RowPlaces {
    int64_t first, stride, width; /* width 0: no heads */
} RowPlaces;

/* Row o of [n_experts * n_out] rows; FORM_ROTATED is convert.c's. */
RowPlaces convert_row_places(const ConvertShape *s, ConvertForm form, int64_t n_in, int64_t n_out, int64_t o);
/* The published place of number i of such a row. */
int64_t convert_place(const ConvertShape *s, const RowPlaces *p, int64_t i);
/* The published shape; returns the number of dimensions. */
int convert_form_dims(const ConvertShape *s, ConvertForm form, int64_t n_in, int64_t n_out, int64_t dims[4]);

/* Of experts, or of heads: how many matrices the tensor has; 0: it is one matrix, or a vector. */
int64_t convert_form_count(const ConvertShape *s, ConvertForm form);
bool convert_form_is_packed(ConvertForm form);
bool convert_form_is_decay(ConvertForm form);
/* Whether the tensor stays F32, whatever type matrices get. */
bool convert_form_is_table(ConvertForm form);

/* Row o of a packed tensor as blocks of MXFP4. */
void convert_packed_row(ConvertForm form, const void *blocks, const void *scales, int64_t n_in, int64_t o, void *out);

#endif
