/* test_pull_cli.c - `forerun pull` against a server that answers as the hub does, also with answers that are cut,
 * wrong, redirected or refused; and other commands that use the fetched models by name. */
#include "cli_rig.h"
#include "hub_server.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define TARGET "models/target.gguf"
#define DRAFT "models/draft.gguf"
#define NO_HASH "00000000000000000000000000000000000000000000000000000000000000ff"

static char cache[600], log_path[700], got[1 << 16];

static const HubServerFile files[] = {
    {.repo = "good", .path = "tiny.Q4_K_M.gguf", .content = DRAFT},
    {.repo = "good", .path = "tiny.Q8_0.gguf", .content = TARGET},
    {.repo = "good", .path = "mmproj-tiny.Q5_0.gguf", .content = TARGET},
    {.repo = "cut", .path = "cut.gguf", .content = TARGET},
    {.repo = "norange", .path = "cut.gguf", .content = TARGET},
    {.repo = "changed", .path = "cut.gguf", .content = TARGET},
    {.repo = "badrange", .path = "cut.gguf", .content = TARGET},
    {.repo = "trickle", .path = "tiny.gguf", .content = TARGET},
    {.repo = "resume", .path = "tiny.gguf", .content = TARGET},
    {.repo = "moved", .path = "tiny.gguf", .content = DRAFT},
    {.repo = "loop", .path = "tiny.gguf", .content = DRAFT},
    {.repo = "scheme", .path = "tiny.gguf", .content = DRAFT},
    {.repo = "flaky", .path = "tiny.gguf", .content = DRAFT},
    {.repo = "down", .path = "tiny.gguf", .content = DRAFT},
    {.repo = "long", .path = "tiny.gguf", .content = DRAFT},
    {.repo = "short", .path = "tiny.gguf", .content = DRAFT, .wrong_size = 10},
    {.repo = "hash", .path = "tiny.gguf", .content = DRAFT, .wrong_hash = NO_HASH},
    {.repo = "badhash", .path = "tiny.gguf", .content = DRAFT, .wrong_hash = "../../x"},
    {.repo = "badsize", .path = "tiny.gguf", .content = DRAFT, .wrong_size = -2000000},
    {.repo = "small", .path = "sub/tiny.gguf", .content = DRAFT, .is_small = true},
    {.repo = "split", .path = "Q8_0/a-00001-of-00002.gguf", .content = DRAFT},
    {.repo = "split", .path = "Q8_0/a-00002-of-00002.gguf", .content = TARGET},
    {.repo = "torn", .path = "a-00001-of-00002.gguf", .content = DRAFT},
    {.repo = "many", .path = "a.Q5_0.gguf", .content = DRAFT},
    {.repo = "many", .path = "b.Q5_0.gguf", .content = DRAFT},
    {.repo = "up", .path = "../../../up.gguf", .content = DRAFT},
    {.repo = "root", .path = "/tmp/root.gguf", .content = DRAFT},
    {.repo = "escape", .path = "\\u001b[31m.gguf", .content = DRAFT},
    {.repo = "locked", .path = "tiny.gguf", .content = DRAFT},
};

static int begin(void **state) {
    (void)state;
    char command[1400], endpoint[64];
    snprintf(cache, sizeof cache, "%s/pull-cache", cli_rig_folder());
    snprintf(log_path, sizeof log_path, "%s/pull-log.txt", cli_rig_folder());
    snprintf(command, sizeof command, "rm -rf '%s' '%s'", cache, log_path);
    if (system(command) != 0 || mkdir(cache, 0700) != 0) return -1;
    char *whole = realpath(cache, NULL);
    setenv("XDG_CACHE_HOME", whole, 1);
    snprintf(cache, sizeof cache, "%s/forerun/models", whole);
    free(whole);
    static const char *const others[] = {"http_proxy",  "https_proxy", "all_proxy",
                                         "HTTPS_PROXY", "ALL_PROXY",   "HF_TOKEN"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) unsetenv(others[i]);
    hub_server_start(files, sizeof files / sizeof *files, log_path);
    snprintf(endpoint, sizeof endpoint, "http://127.0.0.1:%d/", hub_server_port());
    return setenv("HF_ENDPOINT", endpoint, 1);
}

static int end(void **state) {
    (void)state;
    hub_server_stop();
    return 0;
}

static const char *cached(const char *name) {
    static char path[900];
    snprintf(path, sizeof path, "%s/test/%s", cache, name);
    return path;
}

static void expect_same(const char *name, const char *original) {
    char one[65], other[65];
    hub_server_sha256(cached(name), one);
    hub_server_sha256(original, other);
    assert_string_equal(one, other);
}

static void expect_absent(const char *name) { assert_int_not_equal(access(cached(name), F_OK), 0); }

/* Returns the number of requests in the log that contain both texts. */
static int n_logged_both(const char *text, const char *other) {
    int n = 0;
    char line[2000];
    FILE *f = fopen(log_path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) n += strstr(line, text) && strstr(line, other);
    fclose(f);
    return n;
}
static int n_logged(const char *text) { return n_logged_both(text, ""); }

/* Returns the name of the part that an interrupted transfer left. */
static const char *part_of(const char *name, const char *content) {
    static char path[200];
    char hash[65];
    hub_server_sha256(content, hash);
    snprintf(path, sizeof path, "%s.%.12s.part", name, hash);
    return path;
}

/* ---- fetching ----------------------------------------------------------------------------------------- */

static void a_model_is_fetched_by_type_and_found_by_name(void **state) {
    (void)state;
    cli_expect("pull test/good", 0, "test/good/tiny.Q4_K_M.gguf");
    expect_same("good/tiny.Q4_K_M.gguf", DRAFT);
    expect_absent("good/tiny.Q8_0.gguf");
    cli_expect("pull test/good", 0, "is there already");
    cli_expect("pull test/good:q8_0", 0, "good/tiny.Q8_0.gguf");
    expect_same("good/tiny.Q8_0.gguf", TARGET);
    assert_int_equal(n_logged("/test/good/resolve/"), 2);

    cli_expect("inspect test/good:Q8_0", 0, "tiny.Q8_0.gguf");
    cli_expect("inspect test/good", 0, "tiny.Q4_K_M.gguf");
    cli_expect("inspect test/good:tiny.Q8_0.gguf", 0, "tiny.Q8_0.gguf");
    cli_expect("run -m test/good:Q8_0 -p Once -n 2", 0, "");
    cli_expect("tokenize -m test/good -p Once", 0, "");
    cli_expect("logits -m test/good --tokens 1 -o /nonexistent/x", 1, "folder does not exist");
    cli_expect("inspect test/good:Q6_K", 2, "holds no file of type Q6_K; it has tiny.Q4_K_M.gguf, tiny.Q8_0.gguf");
    cli_expect("inspect test/absent", 1, "(forerun pull test/absent)");
    cli_expect("inspect nowhere/absent.gguf", 1, "nowhere/absent.gguf: cannot be opened: No such file");
    cli_expect("pull --list", 0, "test/good:tiny.Q8_0.gguf");
}

static void all_parts_of_a_split_file_are_fetched(void **state) {
    (void)state;
    cli_expect("pull test/split", 0, "test/split/Q8_0/a-00001-of-00002.gguf");
    expect_same("split/Q8_0/a-00001-of-00002.gguf", DRAFT);
    expect_same("split/Q8_0/a-00002-of-00002.gguf", TARGET);
    cli_expect("inspect test/split:Q8_0", 0, "a-00001-of-00002.gguf");
    unlink(cached("split/Q8_0/a-00002-of-00002.gguf"));
    cli_expect("inspect test/split", 1, "part 2 of 2");
    cli_expect("pull test/torn", 1, "part 2 of 2");
}

static void a_file_without_lfs_is_checked_by_its_git_id(void **state) {
    (void)state;
    cli_expect("pull test/small", 0, "small/sub/tiny.gguf");
    expect_same("small/sub/tiny.gguf", DRAFT);
}

/* ---- interruptions ------------------------------------------------------------------------------------- */

static void a_transfer_that_breaks_off_goes_on_where_it_stopped(void **state) {
    (void)state;
    cli_expect("pull test/cut", 0, "trying again");
    expect_same("cut/cut.gguf", TARGET);
    assert_int_equal(n_logged("/test/cut/resolve/"), 2);
    assert_int_equal(n_logged("cut.gguf range=bytes="), 1);
    assert_int_equal(n_logged("if-range=\"one\""), 1);
}

static void servers_that_answer_ranges_otherwise_are_believed_as_far_as_they_go(void **state) {
    (void)state;
    static const char *const repos[] = {"norange", "changed", "badrange"};
    for (int i = 0; i < 3; i++) {
        char command[64], name[64];
        snprintf(command, sizeof command, "pull test/%s", repos[i]);
        snprintf(name, sizeof name, "%s/cut.gguf", repos[i]);
        cli_expect(command, 0, "trying again");
        expect_same(name, TARGET);
    }
}

/* Copies the first n bytes of a file to the part of another. */
static void leave_part(const char *name, const char *content, const char *from, int n) {
    char command[2500], folder[900]; /* cached() has room for one path */
    snprintf(folder, sizeof folder, "%s", cached("resume"));
    snprintf(command, sizeof command, "mkdir -p '%s' && head -c %d '%s' > '%s'", folder, n, from,
             cached(part_of(name, content)));
    assert_int_equal(system(command), 0);
}

static void a_later_command_continues_from_the_existing_part(void **state) {
    (void)state;
    leave_part("resume/tiny.gguf", TARGET, TARGET, 5000000);
    cli_expect("pull --list", 0, "test/resume:tiny.gguf (incomplete)");
    cli_expect("pull test/resume", 0, "resume/tiny.gguf");
    expect_same("resume/tiny.gguf", TARGET);
    assert_int_equal(n_logged("range=bytes=5000000- if-range= "), 1);
    unlink(cached("resume/tiny.gguf"));
    leave_part("resume/tiny.gguf", TARGET, TARGET, 100000000); /* it is complete, so nothing is requested */
    cli_expect("pull test/resume", 0, "resume/tiny.gguf");
    assert_int_equal(n_logged("/test/resume/resolve/"), 1);
    unlink(cached("resume/tiny.gguf"));
    leave_part("resume/tiny.gguf", TARGET, DRAFT, 1000000); /* a part of a different file */
    cli_expect("pull test/resume", 1, "has the hash");
    cli_expect("pull test/resume", 0, "resume/tiny.gguf");
    expect_same("resume/tiny.gguf", TARGET);
}

static void errors_of_the_server_are_tried_again_while_that_may_help(void **state) {
    (void)state;
    cli_expect("pull test/flaky", 0, "HTTP status 500");
    expect_same("flaky/tiny.gguf", DRAFT);
    cli_expect("pull test/down", 1, "HTTP status 503; try again later");
    assert_int_equal(n_logged("/test/down/resolve/"), 1);
}

/* The server sends 1,000 bytes, then bytes of another place, so that the program begins the part anew, and so on. */
static void a_server_that_gets_nowhere_is_not_asked_for_ever(void **state) {
    (void)state;
    cli_expect("pull test/trickle", 1, "tiny.gguf: cannot be fetched from http://127.0.0.1");
    assert_int_equal(n_logged("/test/trickle/resolve/"), 6);
}

/* ---- what is refused ------------------------------------------------------------------------------------ */

static void wrong_contents_are_removed_and_the_earlier_file_stays(void **state) {
    (void)state;
    cli_expect("pull test/hash", 1, "has the hash");
    expect_absent("hash/tiny.gguf");
    expect_absent("hash/tiny.gguf.000000000000.part");
    FILE *f = fopen(cached("hash/tiny.gguf"), "w");
    assert_non_null(f);
    fputs("mine", f);
    fclose(f);
    cli_expect("pull test/hash", 1, "the earlier file stays as it was");
    f = fopen(cached("hash/tiny.gguf"), "r");
    assert_non_null(f);
    assert_string_equal(fgets(got, sizeof got, f), "mine");
    fclose(f);
    cli_expect("pull test/long", 1, "more than the");
    expect_absent("long/tiny.gguf");
    cli_expect("pull test/short", 1, "fewer than the");
    expect_absent("short/tiny.gguf");
}

static void answers_of_the_hub_become_sentences(void **state) {
    (void)state;
    cli_expect("pull test/nothing", 1, "test/nothing: does not exist at http://127.0.0.1");
    cli_expect("pull test/private", 1, "or it is private; to fetch a private one set HF_TOKEN");
    cli_expect("pull test/gated", 1, "accept the conditions");
    cli_expect("pull test/notjson", 1, "it is not JSON");
    cli_expect("pull test/noform", 1, "not in the hub's form");
    cli_expect("pull test/nosha", 1, "it does not give the commit");
    cli_expect("pull test/empty", 2, "holds no GGUF file");
    cli_expect("pull test/badhash", 1, "does not give the hash");
    cli_expect("pull test/badsize", 1, "does not give the size");
    cli_expect("pull test/many", 2, "say which type you want");
    cli_expect("pull test/many:Q5_0", 2, "several files of that type");
    cli_expect("pull test/many:b.Q5_0.gguf", 0, "many/b.Q5_0.gguf");
    cli_expect("pull test/loop", 1, "redirect");
    cli_expect("pull test/scheme", 1, "not secure");
    cli_expect("pull test/garbage", 1, "test/garbage: cannot be fetched from http://127.0.0.1");
    cli_expect("pull test/garbage", 1, "the answer cannot be understood");
    cli_expect("pull test/astray", 1, "the answer cannot be understood");
}

static void file_names_cannot_leave_the_folder(void **state) {
    (void)state;
    cli_expect("pull test/up", 1, "outside the folder");
    cli_expect("pull test/root", 1, "outside the folder");
    cli_expect("pull test/escape", 1, "\\x1b[31m.gguf, which would be outside");
    expect_absent("../../../up.gguf");
}

static void wrong_usage_gives_an_error(void **state) {
    (void)state;
    cli_expect("pull", 2, "missing model: pass OWNER/NAME");
    cli_expect("pull tiny", 2, "is not the name of a model");
    cli_expect("pull a/b/c", 2, "is not the name of a model");
    cli_expect("pull ../x", 2, "is not the name of a model");
    cli_expect("pull a/..", 2, "is not the name of a model");
    cli_expect("pull a/b:", 2, "is not the name of a model");
    cli_expect("pull https://example.org/a/b", 2, "is not the name of a model");
    cli_expect("pull --list a/b", 2, "--list takes no name");
    setenv("HF_TOKEN", "a\nb", 1);
    cli_expect("pull test/good", 2, "HF_TOKEN contains a character");
    unsetenv("HF_TOKEN");
}

static void bad_endpoints_are_refused(void **state) {
    (void)state;
    char *endpoint = strdup(getenv("HF_ENDPOINT"));
    setenv("HF_ENDPOINT", "file:///etc", 1);
    cli_expect("pull test/good", 2, "HF_ENDPOINT must be");
    setenv("HF_ENDPOINT", "http://example.invalid", 1);
    setenv("HF_TOKEN", "hf_secret", 1);
    cli_expect("pull test/good", 2, "HF_TOKEN is not sent to http://example.invalid");
    unsetenv("HF_TOKEN");
    setenv("HF_ENDPOINT", endpoint, 1);
    free(endpoint);
}

/* ---- token, lock, disk ----------------------------------------------------------------------------------- */

static void the_token_goes_to_the_hub_and_to_no_other_host(void **state) {
    (void)state;
    setenv("HF_TOKEN", "hf_secret", 1);
    cli_expect("pull test/moved", 0, "moved/tiny.gguf");
    unsetenv("HF_TOKEN");
    expect_same("moved/tiny.gguf", DRAFT);
    assert_int_equal(n_logged_both("/models/test/moved?", "auth=Bearer hf_secret\n"), 1);
    assert_int_equal(n_logged_both("/test/moved/", "tiny.gguf range= if-range= auth=Bearer hf_secret\n"), 1);
    assert_int_equal(n_logged_both("/test/moved/", "tiny.gguf?signed=1 range= if-range= auth=\n"), 1);
}

static void two_transfers_of_a_model_exclude_each_other(void **state) {
    (void)state;
    cli_expect("pull test/locked:none", 2, "holds no file of type none"); /* this creates the folder */
    int fd = open(cached("locked/.lock"), O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0 && flock(fd, LOCK_EX) == 0);
    cli_expect("pull test/locked", 1, "another forerun is fetching this model");
    close(fd);
    cli_expect("pull test/locked", 0, "locked/tiny.gguf");
}

static void a_full_disk_keeps_what_has_arrived(void **state) {
    (void)state;
    char command[1500];
    unlink(cached("cut/cut.gguf"));
    unlink(cached("resume/tiny.gguf"));
    snprintf(command, sizeof command, "ulimit -f 4000; %s/../forerun pull test/resume 2>&1", cli_rig_folder());
    FILE *f = popen(command, "r");
    assert_non_null(f);
    got[fread(got, 1, sizeof got - 1, f)] = '\0';
    assert_int_not_equal(pclose(f), 0);
    assert_non_null(strstr(got, "what has arrived is kept"));
    struct stat st;
    assert_int_equal(stat(cached(part_of("resume/tiny.gguf", TARGET)), &st), 0);
    assert_true(st.st_size > 1000000);
    cli_expect("pull test/resume", 0, "resume/tiny.gguf");
    expect_same("resume/tiny.gguf", TARGET);
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_is_fetched_by_type_and_found_by_name),
        cmocka_unit_test(all_parts_of_a_split_file_are_fetched),
        cmocka_unit_test(a_file_without_lfs_is_checked_by_its_git_id),
        cmocka_unit_test(a_transfer_that_breaks_off_goes_on_where_it_stopped),
        cmocka_unit_test(servers_that_answer_ranges_otherwise_are_believed_as_far_as_they_go),
        cmocka_unit_test(a_later_command_continues_from_the_existing_part),
        cmocka_unit_test(errors_of_the_server_are_tried_again_while_that_may_help),
        cmocka_unit_test(a_server_that_gets_nowhere_is_not_asked_for_ever),
        cmocka_unit_test(wrong_contents_are_removed_and_the_earlier_file_stays),
        cmocka_unit_test(answers_of_the_hub_become_sentences),
        cmocka_unit_test(file_names_cannot_leave_the_folder),
        cmocka_unit_test(wrong_usage_gives_an_error),
        cmocka_unit_test(bad_endpoints_are_refused),
        cmocka_unit_test(the_token_goes_to_the_hub_and_to_no_other_host),
        cmocka_unit_test(two_transfers_of_a_model_exclude_each_other),
        cmocka_unit_test(a_full_disk_keeps_what_has_arrived),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
