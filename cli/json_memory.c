/* json_memory.c - what happens when jansson finds no memory: the program ends, or one request of the server does.
 *
 * When an allocation fails inside jansson, its parser and its containers crash or leave out what did not fit, and
 * report success: `index` and `train` ended with status 0 and another output. Nothing that the callers check can
 * prevent that, so the failure must not reach jansson. The process ends at once with a sentence, by _exit: handlers of
 * exit and buffers of files could need memory too, and what was to be written is incomplete: temporary files are removed.
 *
 * A server must not end because one request was too large: a megabyte of "[1,1,1,...]" is 24 megabytes of values. So
 * json_memory_limit gives the thread a region with a limit, jansson's blocks are cut from it, and where it does not
 * suffice a longjmp leaves jansson in the middle; nothing of its state is used again, because all of it is in the
 * region. */
#include "cli/json_memory.h"

#include "cli/command.h"
#include "base/files.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdint.h>
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
    RegionBlock *blocks; /* the first is being filled */
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
