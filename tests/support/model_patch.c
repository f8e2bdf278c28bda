/* model_patch.c - changes the numbers of a GGUF file in memory. */
#include "model_patch.h"

#include "testing.h"

#include <stdio.h>
#include <stdlib.h>

void model_patch_open(ModelPatch *p, const char *path) {
    fr_error err;
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    p->n = (size_t)ftell(f);
    rewind(f);
    p->bytes = aligned_alloc(64, (p->n + 63) / 64 * 64);
    assert_non_null(p->bytes);
    assert_int_equal(fread(p->bytes, 1, p->n, f), p->n);
    fclose(f);
    if (gguf_open_memory(&p->gguf, p->bytes, p->n, path, &err)) fail_msg("%s", err.message);
}

void *model_patch_tensor(ModelPatch *p, const char *name) {
    const GgufTensor *t = gguf_find_tensor(p->gguf, name);
    if (!t) fail_msg("there is no tensor %s", name);
    return p->bytes + ((const char *)t->data - p->bytes);
}

void model_patch_write(const ModelPatch *p, const char *path) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p->bytes, 1, p->n, f), p->n);
    assert_int_equal(fclose(f), 0);
}

void model_patch_close(ModelPatch *p) {
    gguf_close(p->gguf);
    free(p->bytes);
}
