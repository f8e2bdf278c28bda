/* json_memory.c - keeps allocation failures away from jansson, and writes JSON.
 *
 * When an allocation fails inside jansson, its parser and containers crash, or leave out values and report success,
 * which no caller can detect. So jansson must not see a failure. Instead the process prints an error and ends at once,
 * by _exit, because exit handlers and file buffers could need memory, too. Temporary files are removed, because their
 * content is incomplete.
 *
 * A server must not end because one request is too large: a megabyte of "[1,1,1,...]" becomes 24 megabytes of values.
 * So json_memory_limit gives the thread a region of limited size for jansson's memory. If it is too small, a longjmp
 * leaves jansson in the middle. None of jansson's state is used afterwards, because all of it is in the region. */
#include "base/files.h"
#include "cli/command.h"
#include "cli/json_memory.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BLOCK_BYTES = 256 << 10, BLOCK_ALIGN = 16 };

typedef struct RegionBlock RegionBlock;
struct RegionBlock {
    RegionBlock *next;
    size_t n_used, n_bytes;
    _Alignas(BLOCK_ALIGN) unsigned char bytes[];
};

typedef struct Region {
    RegionBlock *blocks; /* the first one is being filled */
    size_t n_bytes, max_bytes;
    jmp_buf out;
} Region;

static _Thread_local Region *region; /* NULL: memory comes from malloc */

static _Noreturn void end_process(void) {
    static const char text[] = "forerun: memory ran out while JSON was read or written\n";
    ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);
    (void)n; /* there is no other place to report to */
    replace_file_abandon_all();
    _exit(CLI_FAILED);
}

static RegionBlock *add_block(Region *r, size_t n) {
    size_t n_bytes = n > BLOCK_BYTES ? n : BLOCK_BYTES;
    if (n_bytes > r->max_bytes - r->n_bytes) return NULL;
    RegionBlock *b = malloc(sizeof *b + n_bytes);
    if (!b) return NULL;
    *b = (RegionBlock){.next = r->blocks, .n_bytes = n_bytes};
    r->blocks = b;
    r->n_bytes += n_bytes;
    return b;
}

static void *allocate_in_region(Region *r, size_t n) {
    if (n > SIZE_MAX - BLOCK_ALIGN) longjmp(r->out, 1);
    n = (n + BLOCK_ALIGN - 1) / BLOCK_ALIGN * BLOCK_ALIGN;
    RegionBlock *b = r->blocks;
    if (!b || b->n_bytes - b->n_used < n) b = add_block(r, n);
    if (!b) longjmp(r->out, 1);
    void *p = b->bytes + b->n_used;
    b->n_used += n;
    return p;
}

static void *allocate(size_t n) {
    if (region) return allocate_in_region(region, n);
    void *p = malloc(n);
    if (!p) end_process();
    return p;
}

static void release(void *p) {
    if (!region) free(p);
}

void json_memory_install(void) { json_set_alloc_funcs(allocate, release); }

bool json_memory_limit(size_t max_bytes, void (*work)(void *user), void *user) {
    Region own = {.max_bytes = max_bytes};
    volatile bool is_done = false;
    region = &own;
    if (!setjmp(own.out)) {
        work(user);
        is_done = true;
    }
    region = NULL;
    for (RegionBlock *b = own.blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    return is_done;
}

/* ---- writing JSON -------------------------------------------------------------------------------------- */

int json_file_write(const json_t *json, const char *path, size_t flags, fr_error *err) {
    if (!json)
        return error_set(err, FR_ERR_MEMORY, "%.200s: cannot be written: out of memory, or a text is not UTF-8", path);
    ReplaceFile out;
    int status = replace_file_begin(&out, path, err);
    if (status) return status;
    bool is_printed = json_dumpf(json, out.file, flags) == 0;
    if (!is_printed && !ferror(out.file)) status = error_memory(err, "JSON", 1);
    return replace_file_end(&out, status, err); /* fails if not everything was written */
}

json_t *json_real_or_null(double x) { return isfinite(x) ? json_real(x) : json_null(); }

json_t *json_string_or_null(const char *text) {
    json_t *j = json_string(text);
    return j ? j : json_null();
}

int json_print(json_t *value, size_t flags, fr_error *err) {
    int failed = !value || json_dumpf(value, stdout, flags) || putchar('\n') == EOF;
    json_decref(value);
    return failed ? error_set(err, FR_ERR_IO, "the JSON cannot be written to standard output") : FR_OK;
}
