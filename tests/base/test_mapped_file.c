/* test_mapped_file.c - input files that are not regular files are refused at once; a file that changes while it is read
 * is noticed; and a file that is cut while it is read ends the program with a message. */
#include "testing.h"

#include "cli/signals.h"
#include "cli/command.h"
#include "base/files.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "engine_rig.h"
#include "gguf/gguf.h"
#include "gguf_build.h"
#include "train/safetensors.h"
#include "research/corpus_build.h"
#include "draft/text/corpus_index.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char folder[] = "build/mapped-XXXXXX", path[64];

static const char *in_folder(const char *name) {
    static char file[4][64];
    static int i;
    i = (i + 1) % 4;
    snprintf(file[i], sizeof file[i], "%s/%s", folder, name);
    return file[i];
}

static int begin(void **state) {
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/file", folder);
    return 0;
}

static int end(void **state) {
    (void)state;
    static const char *const names[] = {"file", "moved", "fifo", "socket", "model", "index", "said"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unlink(in_folder(names[i]));
    return rmdir(folder);
}

/* Writes a file with its times set back by an hour, so that the next change gives it another time. */
static void write_file(const char *to, const void *bytes, size_t n) {
    FILE *f = fopen(to, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    now.tv_sec -= 3600;
    assert_int_equal(utimensat(AT_FDCWD, to, (struct timespec[]){now, now}, 0), 0);
    usleep(20000); /* one clock tick later st_ctime differs, too */
}

static void copy_file(const char *from, const char *to) {
    FILE *f = fopen(from, "rb");
    assert_non_null(f);
    static char bytes[16 << 20];
    size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    write_file(to, bytes, n);
}

static void overwrite(const char *file, long at, const char *with) {
    FILE *f = fopen(file, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    assert_true(fputs(with, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* ---- files that are not regular files ------------------------------------------------------------------- */

static void make_socket(const char *at) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof name.sun_path, "%s", at);
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(s, (const struct sockaddr *)&name, sizeof name), 0);
    close(s);
}

static void pipes_devices_sockets_and_folders_are_refused_without_waiting(void **state) {
    (void)state;
    assert_int_equal(mkfifo(in_folder("fifo"), 0600), 0);
    make_socket(in_folder("socket"));
    const struct {
        const char *path, *kind;
    } cases[] = {{in_folder("fifo"), "a named pipe"},
                 {in_folder("socket"), "a socket"},
                 {folder, "a folder"},
                 {"/dev/zero", "a device"},
                 {"build/absent/file", "cannot be opened"}};
    alarm(20); /* waiting for a writer would last for ever */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fr_error err;
        Gguf *g;
        SafeTensors *s;
        CorpusIndex x;
        const char *p = cases[i].path;
        assert_int_equal(gguf_open(&g, p, &err), FR_ERR_IO);
        assert_non_null(strstr(err.message, cases[i].kind));
        assert_int_equal(safetensors_open(&s, p, &err), FR_ERR_IO);
        assert_non_null(strstr(err.message, cases[i].kind));
        assert_int_equal(corpus_open(&x, p, 10, NULL, &err), FR_ERR_IO);
        assert_non_null(strstr(err.message, cases[i].kind));
        assert_null(input_text_open(p, &err));
        assert_int_equal(err.code, FR_ERR_IO);
        assert_non_null(strstr(err.message, cases[i].kind));
        assert_int_equal(strncmp(err.message, p, strlen(p)), 0);
    }
    alarm(0);
}

static void a_text_may_come_from_a_descriptor_that_is_open(void **state) {
    (void)state;
    int ends[2];
    char name[32], got[16];
    fr_error err;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "text", 4), 4);
    close(ends[1]);
    snprintf(name, sizeof name, "/dev/fd/%d", ends[0]);
    FILE *f = input_text_open(name, &err);
    assert_non_null(f);
    assert_int_equal(fread(got, 1, sizeof got, f), 4);
    assert_memory_equal(got, "text", 4);
    fclose(f);
    close(ends[0]);
    assert_null(input_text_open(name, &err)); /* no longer open */
    assert_null(input_text_open("/dev/fd/1/2", &err));
    assert_null(input_text_open("/dev/fd/99999999999999999999", &err));
    assert_non_null(f = input_text_open("/dev/null", &err));
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
}

/* ---- files that change ----------------------------------------------------------------------------------- */

static MappedFile *open_fresh(void) {
    MappedFile *f;
    fr_error err;
    size_t n;
    write_file(path, "0123456789", 10);
    if (mapped_file_open(&f, path, &err)) fail_msg("%s", err.message);
    assert_memory_equal(mapped_file_bytes(f, &n), "0123456789", 10);
    assert_int_equal(n, 10);
    assert_int_equal(mapped_file_check(f, &err), FR_OK);
    return f;
}

static void expect_changed(MappedFile *f) {
    fr_error err;
    assert_int_equal(mapped_file_check(f, &err), FR_ERR_IO);
    assert_non_null(strstr(err.message, "changed while it was being read"));
    mapped_file_close(f);
}

static void writes_of_every_kind_are_detected(void **state) {
    (void)state;
    MappedFile *f = open_fresh();
    overwrite(path, 3, "x");
    expect_changed(f);
    f = open_fresh();
    assert_int_equal(truncate(path, 4), 0);
    expect_changed(f);
    f = open_fresh();
    assert_int_equal(truncate(path, 20), 0);
    expect_changed(f);
    f = open_fresh();
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    overwrite(path, 3, "x");
    assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[]){st.st_atim, st.st_mtim}, 0), 0);
    expect_changed(f); /* noticed by st_ctime */
}

static void a_file_that_gets_another_name_mode_or_successor_has_not_changed(void **state) {
    (void)state;
    fr_error err = {.message = ""};
    MappedFile *f = open_fresh();
    assert_int_equal(chmod(path, 0400), 0);
    assert_int_equal(mapped_file_check(f, &err), FR_OK);
    mapped_file_close(f);
    unlink(path);
    f = open_fresh();
    assert_int_equal(rename(path, in_folder("moved")), 0);
    write_file(path, "another", 7);
    assert_int_equal(mapped_file_check(f, &err), FR_OK);
    mapped_file_close(f);
    f = open_fresh();
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mapped_file_check(f, &err), FR_OK);
    mapped_file_close(f);
}

static void addresses_are_found_while_a_file_is_open(void **state) {
    (void)state;
    MappedFile *files[100];
    size_t n;
    for (int i = 0; i < 100; i++) files[i] = open_fresh();
    const char *bytes = mapped_file_bytes(files[7], &n);
    assert_string_equal(mapped_file_at(bytes), path);
    assert_string_equal(mapped_file_at(bytes + 9), path);
    assert_null(mapped_file_at(bytes - 1));
    assert_null(mapped_file_at(&n));
    assert_null(mapped_file_at(mapped_file_bytes(files[99], &n))); /* the table holds 64 */
    for (int i = 0; i < 100; i++) mapped_file_close(files[i]);
    assert_null(mapped_file_at(bytes));
}

static void values_of_a_gguf_file_are_copies(void **state) {
    (void)state;
    Buf b = {.max_bytes = 1 << 20};
    put_header(&b, 3, 0, 2);
    put_kv_string(&b, "name", "a string");
    put_string(&b, "list");
    put_u32(&b, GGUF_ARRAY), put_u32(&b, GGUF_STRING), put_u64(&b, 2);
    put_string(&b, "one"), put_string(&b, "");
    put_padding(&b, 32);
    Gguf *g;
    GgufString s;
    fr_error err = {.message = ""};
    gguf_open_memory(&g, b.data, b.n, "copies", &err);
    assert_string_equal(err.message, "");
    memset(b.data, 0xff, b.n); /* also the lengths, which must not be read again */
    assert_true(gguf_get_string(g, "name", &s) && s.n == 8);
    assert_memory_equal(s.data, "a string", 8);
    assert_true(gguf_array_string(g, 1, 0, &s) && s.n == 3);
    assert_memory_equal(s.data, "one", 3);
    assert_true(gguf_array_string(g, 1, 1, &s) && s.n == 0);
    gguf_close(g);
    buf_free(&b);
}

/* ---- models and indexes -------------------------------------------------------------------------------- */

static void overwrite_model(void *user, double part) {
    bool *done = user;
    if (part > 0 && !*done) overwrite(in_folder("model"), 7 << 20, "changed");
    *done = true;
}

static void a_model_that_is_overwritten_while_it_is_packed_is_refused(void **state) {
    (void)state;
    fr_model *m;
    fr_error err;
    bool done = false;
    copy_file("models/target.gguf", in_folder("model"));
    const fr_model_options options = {.struct_size = sizeof options,
                                      .n_threads = 1,
                                      .progress = overwrite_model,
                                      .progress_user = &done};
    assert_int_equal(fr_model_open(&m, in_folder("model"), &options, &err), FR_ERR_IO);
    assert_true(done);
    assert_non_null(strstr(err.message, "changed while it was being read"));
    assert_null(m);
}

static void cut_model(void *user, double part) {
    (void)user, (void)part;
    if (truncate(in_folder("model"), 4096) != 0) _exit(9);
}

static void a_model_that_is_cut_while_it_is_packed_ends_with_a_sentence(void **state) {
    (void)state;
    copy_file("models/target.gguf", in_folder("model"));
    pid_t child = fork();
    if (child == 0) {
        fr_model *m;
        fr_error err;
        int said = open(in_folder("said"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (dup2(said, STDERR_FILENO) < 0) _exit(8);
        bus_error_install();
        const fr_model_options options = {.struct_size = sizeof options, .n_threads = 1, .progress = cut_model};
        fr_model_open(&m, in_folder("model"), &options, &err);
        _exit(7);
    }
    int status;
    char said[600] = "";
    assert_int_equal(waitpid(child, &status, 0), child);
    FILE *f = fopen(in_folder("said"), "r");
    assert_non_null(f);
    said[fread(said, 1, sizeof said - 1, f)] = '\0';
    fclose(f);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != CLI_BUS_ERROR) fail_msg("status %x: %s", (unsigned)status, said);
    assert_non_null(strstr(said, "/model: a part of the file can no longer be read"));
}

/* After loading, nothing is read from the file: when it is cut to nothing, the model still generates the same text. */
static void a_loaded_model_does_not_need_its_file(void **state) {
    (void)state;
    static Stream before, after;
    copy_file("models/target.gguf", in_folder("model"));
    fr_model *m = rig_open_model(in_folder("model"), "ref");
    fr_engine *e = rig_open_engine(m, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_threads = 1});
    const int32_t prompt[] = {1, 300, 301, 302};
    const fr_request_options o = {.struct_size = sizeof o,
                                  .prompt = prompt,
                                  .n_prompt = 4,
                                  .max_tokens = 20,
                                  .sampling = fr_sampling_default(),
                                  .ignore_eos = 1};
    rig_run_request(e, &o, &before);
    assert_int_equal(truncate(in_folder("model"), 0), 0);
    rig_run_request(e, &o, &after);
    rig_assert_same(&before, &after, "after its file was cut");
    fr_error err;
    assert_int_equal(fr_engine_open_draft(e, "lyanna:file=models/lyanna.gguf", &err), FR_ERR_IO);
    assert_non_null(strstr(err.message, "/model: changed while it was being read"));
    fr_engine_close(e);
    fr_model_close(m);
}

static int cut_index(void *user, const fr_token_event *event) {
    (void)event;
    int *n = user;
    if (++*n == 5 && truncate(in_folder("index"), 200) != 0) _exit(9);
    return 0;
}

static void an_index_that_is_cut_switches_its_drafter_off(void **state) {
    (void)state;
    static Stream plain, drafted;
    int n_tokens = 0;
    fr_error err;
    const int32_t prompt[] = {1, 300, 301, 302};
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = 4,
                            .max_tokens = 20,
                            .sampling = fr_sampling_default(),
                            .ignore_eos = 1};
    fr_model *m = rig_open_model("models/target.gguf", "ref");
    fr_engine *e = rig_open_engine(m, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_threads = 1});
    rig_run_request(e, &o, &plain);
    CorpusBuild b = {.n_vocab = m->model->hparams.n_vocab};
    for (int i = 0; i < 300; i++) assert_int_equal(corpus_build_add(&b, plain.tokens, plain.n, NULL), FR_OK);
    assert_int_equal(corpus_build_end(&b, NULL), FR_OK);
    if (corpus_build_write(&b, in_folder("index"), m->gguf, &err)) fail_msg("%s", err.message);
    corpus_build_free(&b);
    char spec[96];
    snprintf(spec, sizeof spec, "rest:index=%s,min_match=1", in_folder("index"));
    o.drafts = (const char *const[]){spec}, o.n_drafts = 1;
    rig_run_request(e, &o, &drafted);
    assert_string_equal(drafted.draft_error, "");
    o.on_token = cut_index, o.user = &n_tokens;
    rig_run_request(e, &o, &drafted);
    assert_true(n_tokens >= 5);
    assert_non_null(strstr(drafted.draft_error, "/index: changed while it was being read"));
    drafted.stats.logits_hash = plain.stats.logits_hash;
    rig_assert_same(&plain, &drafted, "plain decoding");
    fr_engine_close(e);
    fr_model_close(m);
}

static void a_reference_model_that_is_cut_ends_the_request(void **state) {
    (void)state;
    fr_error err;
    int n_running;
    fr_request *r;
    copy_file("models/draft.gguf", in_folder("model"));
    fr_model *m = rig_open_model_in(in_folder("model"), "reference");
    fr_engine *e = rig_open_engine(m, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_threads = 1});
    const int32_t prompt[] = {1, 300};
    const fr_request_options o = {.struct_size = sizeof o,
                                  .prompt = prompt,
                                  .n_prompt = 2,
                                  .max_tokens = 8,
                                  .sampling = fr_sampling_default(),
                                  .ignore_eos = 1};
    assert_int_equal(rig_open_request(&r, e, &o, &err), FR_OK);
    assert_true(fr_engine_step(e, &err) > 0);
    assert_int_equal(truncate(in_folder("model"), 4096), 0);
    while ((n_running = fr_engine_step(e, &err)) > 0) {}
    assert_int_equal(n_running, FR_ERR_IO);
    assert_non_null(strstr(err.message, "/model: changed while it was being read"));
    fr_request_close(r);
    fr_engine_close(e);
    fr_model_close(m);
}

static size_t resident(const void *begin, size_t n_pages) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = 0;
    char line[256];
    unsigned long from, to;
    long kb = 0;
    FILE *f = fopen("/proc/self/smaps", "r"); /* the pages that this process has mapped, not those that the system
                                               * caches */
    assert_non_null(f);
    bool is_ours = false;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) is_ours = from == (unsigned long)(uintptr_t)begin;
        else if (is_ours && sscanf(line, "Rss: %ld", &kb) == 1) n = (size_t)kb * 1024 / page;
    }
    fclose(f);
    assert_true(n <= n_pages);
    return n;
}

static void released_pages_are_read_again_and_other_memory_stays(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    size_t n, page = (size_t)sysconf(_SC_PAGESIZE);
    char *own = mem_alloc(N);
    assert_non_null(own);
    for (size_t i = 0; i < N; i++) own[i] = (char)(i * 7 + i / page);
    write_file(path, own, N);
    MappedFile *f;
    assert_int_equal(mapped_file_open(&f, path, NULL), FR_OK);
    const char *bytes = mapped_file_bytes(f, &n);
    assert_memory_equal(bytes, own, N);
    assert_int_equal(resident(bytes, N / page), N / page);
    mapped_file_release(bytes + 10, N - 20); /* all pages but the first and the last */
    assert_true(resident(bytes, N / page) <= 2);
    assert_memory_equal(bytes, own, N);
    mapped_file_release(own, N); /* it lies in no mapped file */
    assert_memory_equal(bytes, own, N);
    mapped_file_release(bytes, 0);
    mapped_file_close(f);
    mem_free(own);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_pages_are_read_again_and_other_memory_stays),
        cmocka_unit_test(pipes_devices_sockets_and_folders_are_refused_without_waiting),
        cmocka_unit_test(a_text_may_come_from_a_descriptor_that_is_open),
        cmocka_unit_test(writes_of_every_kind_are_detected),
        cmocka_unit_test(a_file_that_gets_another_name_mode_or_successor_has_not_changed),
        cmocka_unit_test(addresses_are_found_while_a_file_is_open),
        cmocka_unit_test(values_of_a_gguf_file_are_copies),
        cmocka_unit_test(a_model_that_is_overwritten_while_it_is_packed_is_refused),
        cmocka_unit_test(a_model_that_is_cut_while_it_is_packed_ends_with_a_sentence),
        cmocka_unit_test(a_loaded_model_does_not_need_its_file),
        cmocka_unit_test(an_index_that_is_cut_switches_its_drafter_off),
        cmocka_unit_test(a_reference_model_that_is_cut_ends_the_request),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
