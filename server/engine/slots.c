/* slots.c - which slot a request gets, and the saving of slots and of whole prefix caches. */
#include "server/engine/slots.h"

#include "base/files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the slots of requests ----------------------------------------------------------------------------- */

static int64_t count_common(const Slot *s, const fr_request_options *o) {
    int64_t n = 0;
    while (n < s->n_tokens && n < o->n_prompt && s->tokens[n] == o->prompt[n]) n++;
    return n;
}

static Slot *choose(ServedModel *m, const Generation *g) {
    int wanted = g->wanted_slot - m->first_slot;
    if (g->wanted_slot >= 0 && wanted >= 0 && wanted < m->max_requests && !m->slots[wanted].is_busy)
        return &m->slots[wanted];
    Slot *oldest = NULL, *similar = NULL;
    int64_t n_most = (g->options.n_prompt - 1) / 2;
    for (Slot *s = m->slots; s < m->slots + m->max_requests; s++) {
        if (s->is_busy) continue;
        int64_t n = count_common(s, &g->options);
        if (n > n_most) similar = s, n_most = n;
        if (!oldest || s->last_use < oldest->last_use) oldest = s;
    }
    return similar ? similar : oldest;
}

int slot_begin(ServedModel *m, const Generation *g) {
    Slot *s = choose(m, g);
    if (!s) return -1; /* never: at most max_requests run */
    s->is_busy = true;
    s->last_use = ++m->n_slot_uses;
    return m->first_slot + (int)(s - m->slots);
}

/* Makes a and then b the tokens of a slot, which is empty if memory runs out. */
static void set_tokens(Slot *s, const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b) {
    int32_t *tokens = malloc((size_t)(n_a + n_b + 1) * sizeof *tokens);
    free(s->tokens);
    s->tokens = tokens;
    s->n_tokens = tokens ? n_a + n_b : 0;
    if (!tokens) return;
    memcpy(tokens, a, (size_t)n_a * sizeof *tokens);
    if (n_b) memcpy(tokens + n_a, b, (size_t)n_b * sizeof *tokens);
}

void slot_end(ServedModel *m, const Generation *g) {
    if (g->slot < 0) return;
    Slot *s = &m->slots[g->slot - m->first_slot];
    int64_t n;
    const int32_t *answer = fr_request_tokens(g->request, &n);
    s->is_busy = false;
    set_tokens(s, g->options.prompt, g->options.n_prompt, answer, n);
}

/* ---- actions -------------------------------------------------------------------------------------------- */

static int restore(SlotAction *a, Slot *s) {
    const int32_t *tokens;
    int status = fr_engine_restore_prefix(a->model->engine, a->data, a->n_bytes, &tokens, &a->n_tokens, &a->error);
    if (!status) set_tokens(s, tokens, a->n_tokens, NULL, 0);
    return status;
}

static int save(SlotAction *a, const Slot *s) {
    if (s->n_tokens == 0) return error_set(&a->error, FR_ERR_ARGUMENT, "slot %d is empty", a->slot);
    return fr_engine_save_prefix(a->model->engine, s->tokens, s->n_tokens, &a->data, &a->n_bytes, &a->error);
}

void slot_action_run(void *action) {
    SlotAction *a = action;
    Slot *s = &a->model->slots[a->slot - a->model->first_slot];
    a->is_busy = s->is_busy;
    if (a->is_busy) return;
    if (a->kind != SLOT_RESTORE) a->n_tokens = s->n_tokens;
    if (a->kind == SLOT_SAVE) a->status = save(a, s);
    else if (a->kind == SLOT_RESTORE) a->status = restore(a, s);
    else if (s->n_tokens) a->status = fr_engine_forget_prefix(a->model->engine, s->tokens, s->n_tokens, &a->error);
    if (a->kind == SLOT_ERASE) s->n_tokens = 0;
    a->model->n_changes++;
}

/* ---- files ---------------------------------------------------------------------------------------------- */

int slot_file_write(const char *path, const void *data, size_t n, fr_error *err) {
    ReplaceFile out;
    int status = replace_file_begin(&out, path, err);
    if (status) return status;
    (void)fchmod(fileno(out.file), 0600); /* it contains texts of users */
    (void)!fwrite(data, 1, n, out.file);  /* replace_file_end reports errors of the stream */
    return replace_file_end(&out, FR_OK, err);
}

int slot_file_read(const char *path, void **data, size_t *n, fr_error *err) {
    int fd;
    struct stat st;
    *data = NULL;
    *n = 0;
    int status = input_file_open(path, &fd, &st, err);
    if (status) return status;
    size_t size = (size_t)st.st_size;
    char *bytes = malloc(size + 1);
    if (!bytes) status = error_memory(err, "a saved prefix", size);
    while (!status && *n < size) {
        ssize_t got = read(fd, bytes + *n, size - *n);
        if (got > 0) *n += (size_t)got;
        else if (got == 0) break; /* it was cut meanwhile, which the checksum shows */
        else if (errno != EINTR) status = error_set(err, FR_ERR_IO, "%.200s: %s", path, strerror(errno));
    }
    close(fd);
    if (status) free(bytes);
    else *data = bytes;
    return status;
}

/* ---- the folder of a prefix cache ------------------------------------------------------------------------- */

static bool path_of(char *out, size_t n, const ServedModel *m, const char *folder, int i) {
    return snprintf(out, n, "%s/%016" PRIx64 "-%d.prefix", folder, m->fingerprint, i) < (int)n;
}

void prefix_folder_restore(ServedModel *m, const char *folder) {
    char path[4096];
    for (int i = 0; path_of(path, sizeof path, m, folder, i) && access(path, F_OK) == 0; i++) {
        void *data;
        size_t n;
        fr_error err;
        int status = slot_file_read(path, &data, &n, &err);
        if (!status) status = fr_engine_restore_prefix(m->engine, data, n, NULL, NULL, &err);
        free(data);
        if (status) fprintf(stderr, "forerun: %s: is not used: %s\n", path, err.message);
    }
}

/* Writes prefix i. Returns 1, 0 if there is none, or a negative code. */
static int save_prefix(const ServedModel *m, int i, const char *path, fr_error *err) {
    const int32_t *tokens;
    int64_t n_tokens;
    void *data;
    size_t n;
    if (!fr_engine_get_prefix(m->engine, i, &tokens, &n_tokens)) return 0;
    int status = fr_engine_save_prefix(m->engine, tokens, n_tokens, &data, &n, err);
    if (!status) status = slot_file_write(path, data, n, err);
    fr_free(data);
    return status ? status : 1;
}

void prefix_folder_save(ServedModel *m, const char *folder) {
    char path[4096];
    fr_error err;
    int i = 0, status = 1;
    for (; status == 1 && path_of(path, sizeof path, m, folder, i); i++) status = save_prefix(m, i, path, &err);
    if (status < 0) fprintf(stderr, "forerun: the prefix cache is not saved: %s\n", err.message);
    for (i--; i >= 0 && path_of(path, sizeof path, m, folder, i) && unlink(path) == 0;)
        i++; /* those of an earlier run */
}
