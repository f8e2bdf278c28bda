/* gemm.c - chooses, once for the process, which kernel multiplies matrices: OpenBLAS in float, or for each of two BF16
 * precisions the CPU's kernel or plain C, with the same bits. The program chooses BF16 where the CPU multiplies it
 * faster than floats; docs/TRAINING.md compares the speed and the losses.
 *
 * OpenBLAS is loaded when float is chosen, not when the program starts. Linked to the program it would be loaded by
 * every command: 40 MB of address space, a thread that it starts, and an endless loop where it gets no memory. Without
 * memory it also loops in the middle of a product, so its buffers are allocated here, after a trial reservation. */
#include "base/os.h"
#include "base/threads.h"
#include "base/system.h"
#include "gguf/tensor_type.h"
#include "train/gemm.h"

#include <cblas.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifndef MAP_NORESERVE /* FreeBSD has no such flag */
#define MAP_NORESERVE 0
#endif

/* The address space that OpenBLAS takes: the library with those that it needs, and a buffer for each thread that
 * multiplies. */
static const size_t LIBRARY_BYTES = (size_t)64 << 20, BUFFER_BYTES = (size_t)128 << 20;

/* NULL: products in float. Written once, before any product, as is the next. */
static void (*multiply_bf16)(const Bf16Product *p);
static GemmPrecision precision_in_use;
static __typeof__(&cblas_sgemm) multiply_f32;
static char f32_description[80];

#if defined(__x86_64__)
static bool has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

static bool has_avx512_bf16(void) {
#if defined(__x86_64__)
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

/* ---- OpenBLAS ------------------------------------------------------------------------------------ */

static int try_reservation(int n_threads, fr_error *err) {
    size_t bytes = LIBRARY_BYTES + (size_t)n_threads * BUFFER_BYTES;
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return error_set(err, FR_ERR_MEMORY,
                         "training in f32 needs %zu MB of address space for OpenBLAS with %d threads, and the system "
                         "does not grant them; raise the limit (ulimit -v), use fewer threads (-t), or pass "
                         "--precision bf16",
                         bytes >> 20, n_threads);
    munmap(p, bytes);
    return FR_OK;
}

/* Makes OpenBLAS allocate the buffers of all threads now. Builds that do not export these two functions allocate a
 * buffer in a thread's first product. */
static void allocate_buffers(void *library, int n_threads) {
    void *(*allocate)(int) = (void *(*)(int))dlsym(library, "blas_memory_alloc");
    void (*release)(void *) = (void (*)(void *))dlsym(library, "blas_memory_free");
    void *buffers[THREADS_MAX];
    if (!allocate || !release) return;
    for (int i = 0; i < n_threads; i++) buffers[i] = allocate(0);
    for (int i = 0; i < n_threads; i++) release(buffers[i]);
}

/* The kernels that OpenBLAS runs. Its own choice goes by a list of models: a release does not know the processors that
 * came after it, and takes SSE kernels there (0.3.21 on Emerald Rapids: a quarter of the speed). What the processor can
 * do is a better guide. A user's OPENBLAS_CORETYPE stays. */
static void name_core_type(void) {
#if defined(__x86_64__)
    if (has_avx512()) setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) setenv("OPENBLAS_CORETYPE", "Haswell", 0);
#endif
}

/* The trainers run one sequence per thread themselves, so OpenBLAS gets one thread; it reads the variables when it is
 * loaded, and so starts none. The library stays loaded until the process ends. */
static int load_openblas(int n_threads, fr_error *err) {
    int status = try_reservation(n_threads, err);
    if (status) return status;
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    name_core_type();
    void *library = os_library_open("openblas", 0);
    if (!library)
        return error_set(
            err, FR_ERR_UNSUPPORTED,
            "training in f32 needs OpenBLAS, which cannot be loaded (%.300s); install libopenblas0-pthread, "
            "or pass --precision bf16",
            os_library_error());
    __typeof__(&cblas_sgemm) sgemm = (__typeof__(sgemm))dlsym(library, "cblas_sgemm");
    __typeof__(&openblas_get_parallel) parallel = (__typeof__(parallel))dlsym(library, "openblas_get_parallel");
    if (!sgemm || !parallel || parallel() == OPENBLAS_SEQUENTIAL)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "training in f32 needs an OpenBLAS that several threads may call, and the installed one is "
                         "none; install libopenblas0-pthread, or pass --precision bf16");
    allocate_buffers(library, n_threads);
    char *(*core)(void) = (char *(*)(void))dlsym(library, "openblas_get_corename");
    snprintf(f32_description, sizeof f32_description, "float (OpenBLAS%s%.40s)", core ? " " : "", core ? core() : "");
    multiply_f32 = sgemm;
    return FR_OK;
}

/* ---- the choice ---------------------------------------------------------------------------------- */

bool gemm_has_instructions(GemmPrecision precision) {
    return precision == GEMM_F32 || (has_avx512_bf16() && (precision == GEMM_BF16 || tiles_available()));
}

#if defined(__x86_64__)
static bool fast_bf16(void) { return gemm_bf16_is_faster(); }
static void (*kernel_of(GemmPrecision precision))(const Bf16Product *) {
    if (precision == GEMM_F32) return NULL;
    if (precision == GEMM_BF16) return gemm_has_instructions(precision) ? gemm_bf16_avx512 : gemm_bf16_plain;
    return gemm_has_instructions(precision) ? gemm_bf16_tiles_amx : gemm_bf16_tiles_plain;
}
#else
static bool fast_bf16(void) { return false; }
static void (*kernel_of(GemmPrecision precision))(const Bf16Product *) {
    return precision == GEMM_F32 ? NULL : precision == GEMM_BF16 ? gemm_bf16_plain : gemm_bf16_tiles_plain;
}
#endif

int gemm_open(GemmPrecision precision, int n_threads, fr_error *err) {
    fr_assert(n_threads >= 1 && n_threads <= THREADS_MAX);
    if (precision == GEMM_F32) {
        int status = multiply_f32 ? FR_OK : load_openblas(n_threads, err);
        if (status) return status;
    }
    multiply_bf16 = kernel_of(precision);
    precision_in_use = precision;
    return FR_OK;
}

GemmPrecision gemm_precision(void) { return precision_in_use; }

GemmPrecision gemm_best_precision(void) {
    static int is_faster = -1; /* the program asks before it starts threads */
    if (is_faster < 0) is_faster = has_avx512_bf16() && fast_bf16();
    return is_faster ? GEMM_BF16 : GEMM_F32;
}

const char *gemm_precision_name(GemmPrecision precision) {
    static const char *const names[] = {[GEMM_F32] = "f32", [GEMM_BF16] = "bf16", [GEMM_BF16_TILES] = "bf16-tiles"};
    return names[precision];
}

const char *gemm_description(void) {
    bool is_fast = gemm_has_instructions(precision_in_use);
    if (precision_in_use == GEMM_F32) return f32_description;
    if (precision_in_use == GEMM_BF16) return is_fast ? "BF16 (AVX-512)" : "BF16 (plain C, slow)";
    return is_fast ? "BF16 tiles (AMX)" : "BF16 tiles (plain C, slow)";
}

void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
          int64_t a_stride, const float *b, int64_t b_stride, bool accumulate, float *c, int64_t c_stride) {
    if (multiply_bf16)
        multiply_bf16(&(Bf16Product){m,
                                     n,
                                     k,
                                     {a, a_stride, !transpose_a},
                                     {b, b_stride, transpose_b},
                                     alpha,
                                     accumulate,
                                     c,
                                     c_stride});
    else {
        fr_assert(multiply_f32); /* gemm_open was called */
        multiply_f32(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans,
                     (int)m, (int)n, (int)k, alpha, a, (int)a_stride, b, (int)b_stride, accumulate ? 1 : 0, c,
                     (int)c_stride);
    }
}

/* The specifications of the BF16 products (gemm.h) in plain C, one output after the other: slow, and what
 * gemm_avx512_bf16.c and gemm_amx.c must match bit by bit. */

static float input(const Bf16Operand *x, int64_t output, int64_t i) {
    float value = x->inputs_adjacent ? x->at[output * x->stride + i] : x->at[i * x->stride + output];
    return bf16_to_float(bf16_dot_operand(value));
}

/* Returns the sum over inputs begin .. end - 1, the odd one of each pair first. */
static float dot(const Bf16Product *p, int64_t i, int64_t j, int64_t begin, int64_t end) {
    float acc = 0;
    for (int64_t l = begin; l < end; l += 2) {
        float a = l + 1 < end ? input(&p->a, i, l + 1) : 0, b = l + 1 < end ? input(&p->b, j, l + 1) : 0;
        acc = bf16_dot_add(a, b, acc);
        acc = bf16_dot_add(input(&p->a, i, l), input(&p->b, j, l), acc);
    }
    return acc;
}

/* Input l of an output, or zero beyond the end. */
static float input_or_zero(const Bf16Operand *x, int64_t output, int64_t l, int64_t end) {
    return l < end ? input(x, output, l) : 0;
}

/* The same sum as tdpbf16ps computes it. */
static float dot_by_tiles(const Bf16Product *p, int64_t i, int64_t j, int64_t begin, int64_t end) {
    float acc = 0;
    for (int64_t step = begin; step < end; step += BF16_STEP) {
        float sum[2] = {0, 0}; /* the sums over the even and the odd inputs */
        for (int64_t l = step; l < step + BF16_STEP; l++)
            sum[l % 2] = bf16_dot_add(input_or_zero(&p->a, i, l, end), input_or_zero(&p->b, j, l, end), sum[l % 2]);
        acc = bf16_dot_add(acc, 1, bf16_dot_add(sum[1], 1, sum[0]));
    }
    return acc;
}

typedef float (*Dot)(const Bf16Product *p, int64_t i, int64_t j, int64_t begin, int64_t end);

static void multiply(const Bf16Product *p, Dot sum) {
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            float *c = &p->c[i * p->c_stride + j];
            if (!p->accumulate) *c = 0;
            for (int64_t begin = 0; begin < p->k; begin += BF16_DEPTH) {
                int64_t end = begin + BF16_DEPTH < p->k ? begin + BF16_DEPTH : p->k;
                float part = p->alpha * sum(p, i, j, begin, end);
                *c = p->accumulate || begin ? *c + part : part;
            }
        }
}

void gemm_bf16_plain(const Bf16Product *p) { multiply(p, dot); }

void gemm_bf16_tiles_plain(const Bf16Product *p) { multiply(p, dot_by_tiles); }
