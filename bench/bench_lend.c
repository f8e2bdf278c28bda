/* bench_lend.c - makes a drafter usable for a target that grow_model made from the one that it was trained for.
 *
 *   bench_lend DRAFTER.gguf GROWN.gguf OUT.gguf
 *
 * A target that only became deeper, or wider in its feed-forward, has the same hidden states and generates the same
 * text (tools/grow_model/grow.c), so a drafter for the one is a drafter for the other. The output is the same file
 * with the name and fingerprint of the grown target; the caller has to make sure that it was grown from the right
 * one. It serves to measure the gain of drafting where weights are read from memory: research/LEARNED.md.
 *
 * A drafter in a published layout (eagle3, dflash) becomes what others publish: a file without forerun's record of its
 * training, which is for any target that it fits (research/drafters_table.sh). */
#include "gguf/gguf.h"
#include "draft/drafter_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *why) {
    fprintf(stderr, "bench_lend: %s\n", why);
    exit(1);
}

/* Copies the keys of the method's shape. */
static void copy_method_keys(GgufWriter *w, const Gguf *g, const char *method) {
    char prefix[96];
    snprintf(prefix, sizeof prefix, DRAFTER_KEY("%s."), method);
    for (int64_t i = 0; i < gguf_n_kv(g); i++)
        if (strncmp(gguf_key(g, i), prefix, strlen(prefix)) == 0) gguf_copy_kv(w, g, i);
}

int main(int argc, char **argv) {
    fr_error err;
    Gguf *drafter, *grown;
    Model *target;
    uint32_t width = 0, n_vocab = 0;
    GgufString method, architecture = {"", 0};
    char name[48];
    if (argc != 4) die("usage: bench_lend DRAFTER.gguf GROWN.gguf OUT.gguf");
    if (gguf_open(&drafter, argv[1], &err) || gguf_open(&grown, argv[2], &err)) die(err.message);
    if (model_open(&target, grown, &err)) die(err.message);
    if (!gguf_get_string(drafter, DRAFTER_KEY("method"), &method)) die("the first file is not a learned drafter");
    gguf_get_u32(drafter, DRAFTER_KEY("target.embedding_length"), &width);
    gguf_get_u32(drafter, DRAFTER_KEY("target.vocabulary_size"), &n_vocab);
    if ((int32_t)width != target->hparams.n_embd || (int32_t)n_vocab != target->hparams.n_vocab)
        die("the target has another width or vocabulary than the drafter's");
    snprintf(name, sizeof name, "%.*s", (int)method.n, method.data);
    gguf_get_string(drafter, "general.architecture", &architecture);
    bool is_own = architecture.n == strlen(DRAFTER_ARCHITECTURE) &&
                  memcmp(architecture.data, DRAFTER_ARCHITECTURE, architecture.n) == 0;
    GgufWriter *w = is_own ? drafter_file_writer(name, target, NULL) : gguf_writer_new();
    if (!w) die("out of memory");
    if (is_own) copy_method_keys(w, drafter, name);
    else gguf_copy_kvs(w, drafter, DRAFTER_KEY(""));
    for (int64_t i = 0; i < gguf_n_tensors(drafter); i++) {
        const GgufTensor *t = gguf_tensor(drafter, i);
        if (t->is_i64) gguf_add_map(w, t->data, t->dims[0]); /* d2t */
        else gguf_add_tensor(w, t->name, t->type, t->n_dims, t->dims, t->data);
    }
    if (gguf_writer_finish(w, argv[3], &err)) die(err.message);
    gguf_writer_free(w);
    model_close(target);
    gguf_close(grown);
    gguf_close(drafter);
    return 0;
}
