/* ranks_compare.c - what ranks must have in common before they compute together: the version and the program, the model
 * file, the options, and the results of products.
 *
 * The last is a test: each rank multiplies the same small matrices with its kernels and compares the bits with rank 0.
 * A processor or a library that computes otherwise would give other logits without any error. */
#include "compute/ranks/ranks.h"

#include "base/hash.h"
#include "base/os.h"
#include "gguf/tensor_type.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct Loaded {
    uint64_t fingerprint, products;
    int64_t activations;
} Loaded;

/* ---- the program ------------------------------------------------------------------------------------------- */

/* Returns a fingerprint of the file that this code was loaded from, or 0 if it cannot be read. */
static uint64_t program_hash(void) {
    char buffer[1 << 16];
    uint64_t hash = 0;
    int fd = os_open_own_file();
    for (ssize_t n; fd >= 0 && (n = read(fd, buffer, sizeof buffer)) > 0;) hash = hash64(buffer, (size_t)n, hash);
    if (fd >= 0) close(fd);
    return hash;
}

/* ---- the test ---------------------------------------------------------------------------------------------- */

enum { N_IN = 256, N_OUT = 32, N_ROWS = 3 };

/* Returns numbers between -1 and 1 that look random. */
static float number(uint32_t i) { return (float)(int32_t)(i * 2654435761u) * 0x1p-31f; }

/* Multiplies a matrix of a type with rows, and adds the bits of the results to *hash. */
static int test_product(Device *d, const Weights *w, TensorType type, uint64_t *hash, fr_error *err) {
    const TensorTypeInfo *info = tensor_type_info(type);
    float row[N_IN];
    uint8_t matrix[N_OUT * N_IN * sizeof(float)], *at = matrix;
    Linear *product = NULL;
    Buffer *x = NULL, *y = NULL;
    for (uint32_t o = 0; o < N_OUT; o++) {
        for (uint32_t i = 0; i < N_IN; i++) row[i] = number(o * N_IN + i + 1);
        for (uint32_t i = 0; i < N_IN; i += info->block_n, at += info->block_bytes) info->encode(row + i, at);
    }
    const GgufTensor tensor = {.name = "test of products",
                               .type = type,
                               .n_dims = 2,
                               .dims = {N_IN, N_OUT, 1, 1},
                               .data = matrix,
                               .bytes = (size_t)(at - matrix)};
    int status = backend_cpu.linear_open(&product, d, w, &tensor, NULL, N_ROWS, err);
    if (!status) status = backend_cpu.buffer_open(&x, d, N_ROWS * N_IN, err);
    if (!status) status = backend_cpu.buffer_open(&y, d, N_ROWS * N_OUT, err);
    if (!status) {
        for (uint32_t i = 0; i < N_ROWS * N_IN; i++) x->floats[i] = 3 * number(i * 7 + 5);
        backend_cpu.linear(d, product, LINEAR_SET, (Slice){x, 0}, N_ROWS, (Slice){y, 0});
        *hash = hash64(y->floats, N_ROWS * N_OUT * sizeof(float), *hash);
    }
    buffer_close(x);
    buffer_close(y);
    if (product) backend_cpu.linear_close(product);
    return status;
}

static int test_products(const Weights *w, uint64_t *hash, fr_error *err) {
    static const TensorType types[] = {TYPE_F32, TYPE_F16, TYPE_BF16, TYPE_Q8_0, TYPE_Q4_K, TYPE_MXFP4};
    const DeviceOptions options = {.kernels = w->options.kernels, .n_threads = 1};
    Device *d;
    *hash = 0;
    int status = backend_cpu.device_open(&d, &options, err);
    for (size_t i = 0; i < sizeof types / sizeof *types && !status; i++)
        status = test_product(d, w, types[i], hash, err);
    device_close(d);
    return status;
}

/* ---- the comparison ---------------------------------------------------------------------------------------- */

typedef struct Program {
    uint64_t file; /* a hash of it */
    char version[32];
} Program;

int ranks_compare_programs(Ranks *r, fr_error *err) {
    Program own = {.file = program_hash()}, first;
    fr_error why;
    int status = FR_OK;
    strncpy(own.version, fr_version(), sizeof own.version - 1);
    first = own;
    comm_broadcast(r->comm, &first, sizeof first);
    if (strcmp(own.version, first.version) != 0) status = rank_refuse("version of forerun", &why);
    else if (own.file != first.file) status = rank_refuse("build of forerun", &why);
    status = ranks_agree(r, status, &why);
    return status ? (int)error_set(err, status, "%s", why.message) : (int)FR_OK;
}

int rank_refuse(const char *what, fr_error *err) {
    if (what) return error_set(err, FR_ERR_MISMATCH, "another %s than rank 0", what);
    return error_set(err, FR_ERR_MISMATCH, "products have other results than on rank 0");
}

/* Returns an error if this rank has loaded something else than rank 0. */
static int compare(const Loaded *own, const Loaded *first, fr_error *err) {
    const char *what = own->fingerprint != first->fingerprint ? "model file" : NULL;
    if (!what && own->activations != first->activations) what = "precision of activations";
    return what || own->products != first->products ? rank_refuse(what, err) : (int)FR_OK;
}

int ranks_compare(Ranks *r, Weights *w, int status, uint64_t fingerprint, fr_error *err) {
    fr_error why = {.code = FR_OK};
    Loaded own = {.fingerprint = fingerprint}, first;
    if (status && err) why = *err;
    if (!status) status = test_products(w, &own.products, &why);
    if (w) own.activations = (int64_t)w->options.activations;
    first = own;
    comm_broadcast(r->comm, &first, sizeof first);
    if (!status && first.fingerprint) status = compare(&own, &first, &why);
    status = ranks_agree(r, status, &why);
    if (status) return error_set(err, status, "%s", why.message);
    fr_assert(w);
    CommPrice price = comm_measure(r->comm);
    w->exchange_s = price.latency_s, w->exchange_bytes_per_s = price.bytes_per_s;
    r->weights = w;
    return comm_check(r->comm, err);
}
