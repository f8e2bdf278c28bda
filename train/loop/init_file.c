/* init_file.c - goes on from a trained drafter (`forerun train --init`).
 *
 * The file must be one that this run could have written itself: the same method and target, the same keys (the width of
 * the feed-forward, the rank and the hot tokens of token info, the number of heads), and the same tensors. Only what a
 * file does not depend on may differ, such as the number of steps ahead of a layer that continues from its own
 * predictions, which is how a curriculum is trained. Matrices are read in whatever type the file has; the optimiser
 * begins anew, because a drafter's file does not have its means.
 *
 * Test: test_train_init_cli.c. */
#include "train/loop/init_file.h"

#include "base/hash.h"
#include "gguf/tensor_type.h"

#include <stdio.h>
#include <string.h>

/* The command that trained the file, for messages. */
static void get_command(const Gguf *g, char out[200]) {
    GgufString s = {"an unknown command", 18};
    gguf_get_string(g, DRAFTER_KEY("training.command"), &s);
    size_t n = s.n < 199 ? s.n : 199;
    for (size_t i = 0; i < n; i++) out[i] = s.data[i] >= ' ' && s.data[i] <= '~' ? s.data[i] : '?';
    out[n] = '\0';
}

static int check_keys(const Gguf *g, const NetClass *class, const void *net, fr_error *err) {
    char prefix[96], command[200];
    GgufWriter *w = gguf_writer_new();
    if (!w) return error_memory(err, "a drafter's keys", 0);
    class->set_keys(net, w);
    snprintf(prefix, sizeof prefix, DRAFTER_KEY("%s."), class->method);
    const char *key = gguf_writer_differs(w, g, prefix);
    int status = FR_OK;
    if (key && !*key) status = error_memory(err, "a drafter's keys", 0);
    else if (key) {
        get_command(g, command);
        status = error_set(err, FR_ERR_MISMATCH,
                           "%.100s: cannot be continued with these options: its %.60s differs; pass those that it was "
                           "trained with: %s",
                           gguf_path(g), key + strlen(DRAFTER_KEY("")), command);
    }
    gguf_writer_free(w);
    return status;
}

/* Every tensor of the file is a parameter, or the accuracy that was measured with them. */
static int check_no_others(const Gguf *g, Trainer *t, const NetClass *class, fr_error *err) {
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const char *name = gguf_tensor(g, i)->name;
        bool is_known = class->accuracy && strcmp(name, class->accuracy) == 0;
        for (int32_t k = 0; k < t->class->n_params(t) && !is_known; k++)
            is_known = strcmp(name, t->class->param(t, k)->name) == 0;
        if (!is_known)
            return error_set(err, FR_ERR_MISMATCH, "%s: holds the tensor %s, which these options do not train",
                             gguf_path(g), name);
    }
    return FR_OK;
}

static int read_params(DrafterFile *f, Trainer *t, const NetClass *class, const void *net, uint64_t *fingerprint,
                       fr_error *err) {
    *fingerprint = 0;
    for (int32_t i = 0; i < t->class->n_params(t); i++) {
        NetTensor x = class->tensor(net, i);
        Param *p = t->class->param(t, i);
        const GgufTensor *from;
        if (x.is_addition && !drafter_file_has(f, x.name)) continue;
        int status = drafter_file_matrix(f, x.name, x.n, x.n_rows, &from, err);
        if (status) return status;
        blocks_dequantize(from->type, from->data, p->n, p->value);
        *fingerprint = hash64(p->value, (size_t)p->n * sizeof *p->value, *fingerprint);
    }
    return FR_OK;
}

int init_file_read(Trainer *t, const NetClass *class, const void *net, const Model *target, const char *path,
                   uint64_t *fingerprint, fr_error *err) {
    DrafterFile f;
    int status = drafter_file_open(&f, path, class->method, target, err);
    if (!status) status = check_keys(f.gguf, class, net, err);
    if (!status) status = check_no_others(f.gguf, t, class, err);
    if (!status) status = read_params(&f, t, class, net, fingerprint, err);
    if (!status) status = gguf_check(f.gguf, err); /* the file has not changed meanwhile */
    drafter_file_close(&f);
    return status;
}
