/* test_serve_clients.c - other people's clients against the server, where they are installed: node with the modules of
 * FORERUN_NODE_MODULES, and curl. */
#include "serve_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool has_module(const char *name) {
    const char *folder = getenv("FORERUN_NODE_MODULES");
    char path[1024];
    snprintf(path, sizeof path, "%s/node_modules/%s/package.json", folder ? folder : "", name);
    return folder && access(path, R_OK) == 0 && system("command -v node >/dev/null 2>&1") == 0;
}

static void run_script(const char *script, const char *module) {
    char command[1024];
    ServeRig s;
    if (!has_module(module)) {
        print_message(
            "skipped: no node with npm's %s (set FORERUN_NODE_MODULES to the folder that holds its node_modules)\n",
            module);
        skip();
    }
    serve_start(&s, "-t 2 --draft ngram-trie --draft suffix");
    snprintf(command, sizeof command, "timeout 120 node tests/serve/clients/%s http://127.0.0.1:%d", script, s.port);
    int status = system(command);
    assert_int_equal(serve_stop(&s), 0);
    assert_int_equal(status, 0);
}

static void npm_openai(void **state) {
    (void)state;
    run_script("check_openai.mjs", "openai");
}

static void npm_openai_responses(void **state) {
    (void)state;
    run_script("check_responses.mjs", "openai");
}

static void npm_openai_with_zod(void **state) {
    (void)state;
    run_script("check_structured.mjs", "zod");
}

static void npm_ajv_on_served_schemas(void **state) {
    (void)state;
    run_script("check_schemas.mjs", "ajv-formats");
}

static void npm_anthropic(void **state) {
    (void)state;
    run_script("check_anthropic.mjs", "@anthropic-ai/sdk");
}

/* A certificate of our own, as the documentation of openssl makes one. */
static void curl_over_tls(void **state) {
    (void)state;
    char command[2048], args[1024];
    ServeRig s;
    const char *folder = serve_rig_folder();
    if (system("command -v curl >/dev/null 2>&1 && command -v openssl >/dev/null 2>&1") != 0) {
        print_message("skipped: no curl, or no openssl\n");
        skip();
    }
    snprintf(
        command, sizeof command,
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost "
        "-keyout %s/serve-key.pem -out %s/serve-cert.pem 2>/dev/null",
        folder, folder);
    assert_int_equal(system(command), 0);
    snprintf(args, sizeof args, "-t 1 --draft none --tls-cert %s/serve-cert.pem --tls-key %s/serve-key.pem", folder,
             folder);
    serve_start(&s, args);
    snprintf(command, sizeof command,
             "curl -sS --max-time 60 --noproxy '*' --cacert %s/serve-cert.pem --resolve localhost:%d:127.0.0.1 "
             "https://localhost:%d/v1/completions "
             "-d '{\"prompt\": \"Once upon a time\", \"max_tokens\": 40, \"temperature\": 0, \"stream\": true}' | grep "
             "-c '^data: ' > %s/serve-curl.txt",
             folder, s.port, s.port, folder);
    assert_int_equal(system(command), 0);
    snprintf(command, sizeof command, "test $(cat %s/serve-curl.txt) -gt 2", folder);
    assert_int_equal(system(command), 0);
    int fd = serve_connect(&s); /* no TLS */
    serve_send(fd, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_true(serve_is_closed(fd));
    close(fd);
    snprintf(command, sizeof command,
             "curl -sS --max-time 60 --noproxy '*' -k https://127.0.0.1:%d/health | grep -q ok", s.port);
    assert_int_equal(system(command), 0);
    assert_int_equal(serve_stop(&s), 0);
}

/* promtool finds names, units and types that Prometheus would not want. */
static void promtool_accepts_the_metrics(void **state) {
    (void)state;
    char path[700], command[1024];
    ServeRig s;
    if (system("command -v promtool >/dev/null 2>&1") != 0) {
        print_message("skipped: no promtool\n");
        skip();
    }
    serve_start(&s, "-m 'a\"b\\c=" SERVE_MODEL "' -t 1");
    json_decref(serve_json(&s, "/v1/completions", 200, "{\"prompt\": \"Once\", \"max_tokens\": 20}"));
    Answer a = serve_get(&s, "/metrics");
    snprintf(path, sizeof path, "%s/serve-metrics.txt", serve_rig_folder());
    FILE *f = fopen(path, "w");
    fwrite(a.body, 1, a.n_body, f);
    fclose(f);
    answer_free(&a);
    snprintf(command, sizeof command, "promtool check metrics < %s", path);
    assert_int_equal(system(command), 0);
    assert_int_equal(serve_stop(&s), 0);
}

int main(int argc, char **argv) {
    (void)argc;
    serve_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(npm_openai),
        cmocka_unit_test(npm_openai_responses),
        cmocka_unit_test(npm_openai_with_zod),
        cmocka_unit_test(npm_ajv_on_served_schemas),
        cmocka_unit_test(npm_anthropic),
        cmocka_unit_test(curl_over_tls),
        cmocka_unit_test(promtool_accepts_the_metrics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
