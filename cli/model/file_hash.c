/* file_hash.c - SHA-256 and git's SHA-1 by libcrypto, which is loaded when it is needed (http.c says why). */
#include "cli/model/file_hash.h"

#include "base/mem.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

enum { SHA1_DIGITS = 40, SHA256_DIGITS = 64 };

struct FileHash {
    EVP_MD_CTX *context;
};

#define CRYPTO_FUNCTIONS(X) \
    X(EVP_MD_CTX_new) \
    X(EVP_MD_CTX_free) \
    X(EVP_sha1) \
    X(EVP_sha256) \
    X(EVP_DigestInit_ex) \
    X(EVP_DigestUpdate) \
    X(EVP_DigestFinal_ex)
static struct {
#define DECLARE(name) __typeof__(&(name)) name;
    CRYPTO_FUNCTIONS(DECLARE)
} lib;

static int load_library(fr_error *err) {
    static bool is_loaded;
    if (is_loaded) return FR_OK;
    void *library = dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL);
    is_loaded = library != NULL;
#define LOAD(name) is_loaded = is_loaded && (*(void **)(void *)&lib.name = dlsym(library, #name)) != NULL;
    CRYPTO_FUNCTIONS(LOAD)
    if (is_loaded) return FR_OK;
    return error_set(
        err, FR_ERR_UNSUPPORTED,
        "checking the hash of a file needs OpenSSL 3, which cannot be loaded (%.200s); install the package "
        "libssl3",
        dlerror());
}

bool file_hash_is_valid(const char *text) {
    size_t n = strlen(text);
    return (n == SHA1_DIGITS || n == SHA256_DIGITS) && strspn(text, "0123456789abcdef") == n;
}

int file_hash_open(FileHash **out, const char *expected, int64_t bytes, fr_error *err) {
    *out = NULL;
    int status = load_library(err);
    if (status) return status;
    bool is_git = strlen(expected) == SHA1_DIGITS;
    FileHash *h = mem_calloc(1, sizeof *h);
    if (h) h->context = lib.EVP_MD_CTX_new();
    if (!h || !h->context || !lib.EVP_DigestInit_ex(h->context, is_git ? lib.EVP_sha1() : lib.EVP_sha256(), NULL)) {
        if (h && h->context) lib.EVP_MD_CTX_free(h->context);
        mem_free(h);
        return error_memory(err, "a hash", sizeof *h);
    }
    char head[40];
    int n = snprintf(head, sizeof head, "blob %" PRId64, bytes) + 1; /* with its '\0' */
    if (is_git) file_hash_add(h, head, (size_t)n);
    *out = h;
    return FR_OK;
}

void file_hash_add(FileHash *h, const void *bytes, size_t n) { fr_assert(lib.EVP_DigestUpdate(h->context, bytes, n)); }

void file_hash_end(FileHash *h, char text[FILE_HASH_TEXT]) {
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    text[0] = '\0';
    if (!h) return;
    fr_assert(lib.EVP_DigestFinal_ex(h->context, bytes, &n));
    for (unsigned i = 0; i < n && 2 * i + 3 <= FILE_HASH_TEXT; i++) snprintf(text + 2 * (size_t)i, 3, "%02x", bytes[i]);
    lib.EVP_MD_CTX_free(h->context);
    mem_free(h);
}
