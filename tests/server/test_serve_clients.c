/* test_serve_clients.c - other people's clients with the server, if they are installed: node with the modules of
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

/* has_tools: with a second model, `toolbox`, whose template lists tools and is of the family chatml. */
static void run_script(const char *script, const char *module, bool has_tools) {
    char command[1024], path[700], args[1024];
    ServeRig s;
    if (!has_module(module)) {
        print_message(
            "skipped: no node with npm's %s (set FORERUN_NODE_MODULES to the folder that holds its node_modules)\n",
            module);
        skip();
    }
    snprintf(path, sizeof path, "%s/toolbox.gguf", serve_rig_folder());
    serve_write_model(path,
                      "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}<|im_start|>"
                      "{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}");
    snprintf(args, sizeof args, "-t 2 --draft ngram-trie --draft suffix -m " SERVE_MODEL "%s%s",
             has_tools ? " -m toolbox=" : "", has_tools ? path : "");
    serve_start(&s, args);
    snprintf(command, sizeof command, "timeout 120 node tests/server/clients/%s http://127.0.0.1:%d", script, s.port);
    int status = system(command);
    assert_int_equal(serve_stop(&s), 0);
    assert_int_equal(status, 0);
}

static void npm_openai(void **state) {
    (void)state;
    run_script("check_openai.mjs", "openai", false);
}

static void npm_openai_responses(void **state) {
    (void)state;
    run_script("check_responses.mjs", "openai", false);
}

static void npm_openai_with_zod(void **state) {
    (void)state;
    run_script("check_structured.mjs", "zod", false);
}

static void npm_ajv_on_served_schemas(void **state) {
    (void)state;
    run_script("check_schemas.mjs", "ajv-formats", false);
}

static void npm_anthropic(void **state) {
    (void)state;
    run_script("check_anthropic.mjs", "@anthropic-ai/sdk", false);
}

static void npm_ollama(void **state) {
    (void)state;
    run_script("check_ollama.mjs", "ollama", true);
}

static void npm_clients_with_tools(void **state) {
    (void)state;
    run_script("check_tools.mjs", "openai", true);
}

static void npm_ai(void **state) {
    (void)state;
    run_script("check_ai.mjs", "@ai-sdk/openai-compatible", true);
}

static void npm_llamaindex(void **state) {
    (void)state;
    run_script("check_llamaindex.mjs", "@llamaindex/ollama", false);
}

static void npm_langchain(void **state) {
    (void)state;
    run_script("check_langchain.mjs", "@langchain/openai", true);
}

/* wrk keeps its connections open and sends as fast as it gets answers. */
static void wrk_gets_an_answer_to_each_request(void **state) {
    (void)state;
    char command[2048], path[700];
    ServeRig s;
    if (system("command -v wrk >/dev/null 2>&1") != 0) {
        print_message("skipped: no wrk\n");
        skip();
    }
    serve_start(&s, "-t 1 --quiet");
    snprintf(path, sizeof path, "%s/serve.lua", serve_rig_folder());
    FILE *f = fopen(path, "w");
    fputs("wrk.method = 'POST'\nwrk.body = '{\"prompt\": \"Once\", \"max_tokens\": 4}'\n", f);
    fclose(f);
    snprintf(command, sizeof command,
             "wrk -t 1 -c 32 -d 2s --timeout 30s -s %s http://127.0.0.1:%d/v1/completions > %s/wrk.txt && "
             "! grep -E 'Non-2xx|Socket errors' %s/wrk.txt && grep -q 'requests in' %s/wrk.txt",
             path, s.port, serve_rig_folder(), serve_rig_folder(), serve_rig_folder());
    assert_int_equal(system(command), 0);
    assert_int_equal(serve_stop(&s), 0);
}

/* A self-signed certificate, made as in the documentation of openssl. */
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
    serve_send(fd, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_true(serve_is_closed(fd));
    close(fd);
    snprintf(command, sizeof command,
             "curl -sS --max-time 60 --noproxy '*' -k https://127.0.0.1:%d/health | grep -q ok", s.port);
    assert_int_equal(system(command), 0);
    assert_int_equal(serve_stop(&s), 0);
}

/* promtool reports names, units and types that Prometheus does not recommend. */
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
        cmocka_unit_test(npm_ollama),
        cmocka_unit_test(npm_ai),
        cmocka_unit_test(npm_clients_with_tools),
        cmocka_unit_test(npm_langchain),
        cmocka_unit_test(npm_llamaindex),
        cmocka_unit_test(wrk_gets_an_answer_to_each_request),
        cmocka_unit_test(curl_over_tls),
        cmocka_unit_test(promtool_accepts_the_metrics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
