/* pair_body.h - passes over block types that take two tiles at a time; a part of matmul_body.h for tables with 32 vectors.
 *
 * The problem. With one tile, each byte product reads its four activations from memory: 16 reads and 16 products for 32 inputs
 * of two planes. A CPU that does two products a cycle also reads twice a cycle, so reads and products are both at the
 * limit, and whatever else is read (accumulators, scales) makes the loop slower.
 *
 * The idea. Four activations, once in all lanes of a register, are multiplied with the codes of two tiles: half of the reads.
 * The codes of both take 16 registers, the sums of PAIR_CHAINS eight.
 *
 * Each output's operations and their order are those of one tile. Proof: test_kernels_matmul.c.
 */

enum { PAIR_CHAINS = 8 };

/* Rows whose products take turns: as many as there are chains for, of two tiles and one or two planes. */
INLINE int pair_rows(ActForm form) { return PAIR_CHAINS / 2 / act_planes(form); }

/* t[row][tile] = as dot_codes has it, for both tiles. */
INLINE void dot_pair(TensorType type, ActForm form, int n_rows, const Unpacked u[2], const unsigned char *x,
                     size_t x_stride, int first, int n, Vi t[PAIR_CHAINS / 2][2]) {
    int last = act_planes(form) - 1;
    Vi high[PAIR_CHAINS / 2][2];
    UNROLL for (int r = 0; r < n_rows; r++) {
        const ActBlock *b = (const void *)(x + (size_t)r * x_stride);
        int32_t minus_sum = n == 2 ? b->minus_sum : first == 0 ? b->minus_sum_low : b->minus_sum - b->minus_sum_low;
        t[r][0] = t[r][1] = bias_times(type, v_set_int(minus_sum));
        high[r][0] = high[r][1] = v_set_int(0);
    }
    UNROLL for (int g = 4 * first; g < 4 * (first + n); g++) UNROLL for (int r = 0; r < n_rows; r++) {
        const ActBlock *b = (const void *)(x + (size_t)r * x_stride);
        Vi q = v_set_4_bytes(b->plane[last] + 4 * g);
        UNROLL for (int c = 0; c < 2; c++) t[r][c] = v_dot_bytes(u[c].w[g], q, t[r][c]);
        if (!last) continue;
        q = v_set_4_bytes(b->plane[0] + 4 * g);
        UNROLL for (int c = 0; c < 2; c++) high[r][c] = v_dot_bytes(u[c].w[g], q, high[r][c]);
    }
    if (last)
        UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int c = 0; c < 2; c++)
            t[r][c] = v_add_int(v_shift_left(high[r][c], 8), t[r][c]);
}

/* acc[row] += the slice's share of both tiles */
INLINE void add_rows_to_pair(TensorType type, ActForm form, int n_rows, const Unpacked u[2], const unsigned char *x,
                             size_t x_stride, Vf (*acc)[2]) {
    int n_parts = scale_parts(type);
    Vi t[2][PAIR_CHAINS / 2][2];
    UNROLL for (int i = 0; i < n_parts; i++) dot_pair(type, form, n_rows, u, x, x_stride, i, 3 - n_parts, t[i]);
    UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int c = 0; c < 2; c++) {
        const ActBlock *b = (const void *)(x + (size_t)r * x_stride);
        acc[r][c] = add_sums(type, &u[c], b, t[0][r][c], t[n_parts - 1][r][c], acc[r][c]);
    }
}

/* Keeps the compiler from reading Q8_0 codes anew for each row, and from computing others anew: it takes codes out of here into
 * registers in front of the loop over rows. */
INLINE void keep_in_memory(Unpacked *u) { __asm__("" : "+m"(*u)); }

/* Two tiles, up to BLOCK_ROWS_MAX rows. */
INLINE void pass_pair(TensorType type, ActForm form, const Pass *p) {
    const SliceForm *f = &slice_forms[type];
    const int record_slices = (int)f->record_slices, n_lines = (int)record_bytes(type) / 64, together = pair_rows(form);
    const unsigned char *record = p->tile, *x = p->x;
    int64_t n_slices = tile_n_slices(type, p->n_in), n_rows = p->n_rows;
    Vf acc[BLOCK_ROWS_MAX][2];
    for (int64_t r = 0; r < n_rows; r++) acc[r][0] = acc[r][1] = v_zero();
    for (int64_t i = 0; i < n_slices; i += record_slices, record += record_bytes(type))
        for (int s = 0; s < record_slices && i + s < n_slices; s++, x += act_block_bytes(form)) {
            Unpacked u[2];
            UNROLL for (int c = 0; c < 2; c++) {
                const unsigned char *of_tile = record + (size_t)c * p->tile_bytes;
                for (int l = n_lines * s / record_slices; l < n_lines * (s + 1) / record_slices; l++)
                    ask_ahead(of_tile + 64 * l);
                unpack_codes(type, of_tile + codes_offset(type, s), u[c].w);
                unpack_scales(type, of_tile + scales_offset(type, s), s % (int)f->scale_slices, 0, &u[c]);
                keep_in_memory(&u[c]);
            }
            const unsigned char *row = x;
            int64_t r = 0;
            for (; r + together <= n_rows; r += together, row += (size_t)together * p->x_stride)
                add_rows_to_pair(type, form, together, u, row, p->x_stride, acc + r);
            for (; r < n_rows; r++, row += p->x_stride) add_rows_to_pair(type, form, 1, u, row, p->x_stride, acc + r);
        }
    for (int64_t r = 0; r < n_rows; r++)
        UNROLL for (int c = 0; c < 2; c++)
            v_store_n(p->y + r * p->y_stride + c * LANES, p->n_valid - c * LANES, acc[r][c]);
}

/* One row, two tiles that are far apart, in turns. One stream of bytes does not keep as many lines in flight as the memory
 * of Intel's CPUs could deliver, two do (bench/bench_one_row.c; next to each other, the first would prefetch what the second reads). */
INLINE void pass_streams(TensorType type, ActForm form, const Pass *p) {
    const SliceForm *f = &slice_forms[type];
    const int record_slices = (int)f->record_slices, n_lines = (int)record_bytes(type) / 64;
    const unsigned char *record = p->tile, *x = p->x;
    int64_t n_slices = tile_n_slices(type, p->n_in);
    Vf acc[2] = {v_zero(), v_zero()};
    for (int64_t i = 0; i < n_slices; i += record_slices, record += record_bytes(type))
        for (int s = 0; s < record_slices && i + s < n_slices; s++, x += act_block_bytes(form))
            UNROLL for (int c = 0; c < 2; c++) {
                const unsigned char *of_tile = record + (size_t)c * p->tile_bytes;
                for (int l = n_lines * s / record_slices; l < n_lines * (s + 1) / record_slices; l++)
                    ask_ahead(of_tile + 64 * l);
                Unpacked u;
                unpack_codes(type, of_tile + codes_offset(type, s), u.w);
                unpack_scales(type, of_tile + scales_offset(type, s), s % (int)f->scale_slices, 0, &u);
                add_rows(type, form, 1, &u, x, 0, &acc[c]);
            }
    UNROLL for (int c = 0; c < 2; c++) v_store_n(p->y + c * p->y_apart, p->n_valid - c * p->y_apart, acc[c]);
}
