/* page_endpoints.c - GET /: the page for people, embedded from server/page.
 *
 * The assembler reads the files while this one is built, so that they stay what editors and browsers know. Their folder is
 * looked for from the root of the project. The page needs no key, because it tells nothing; what it asks of the other
 * endpoints does. Its policy lets it load its own three files and speak to its own server, and nothing else: should text
 * of a model ever become markup, it could neither run nor be sent anywhere. */
#include "server/api/openai_format.h"

#include <string.h>

/* clang-format off */
#define EMBED(id, name)                                              \
    __asm__(".section .rodata\n"                                     \
            ".local serve_page_" #id "\nserve_page_" #id ":\n"       \
            ".incbin \"server/page/" name "\"\n"              \
            ".local serve_page_end_" #id "\nserve_page_end_" #id ":\n" \
            ".byte 0\n.text\n");                                     \
    extern const char serve_page_##id[] __attribute__((visibility("hidden"))), \
        serve_page_end_##id[] __attribute__((visibility("hidden")));
/* clang-format on */
EMBED(html, "index.html")
EMBED(css, "page.css")
EMBED(js, "page.js")
EMBED(figures, "figures.js")

static const ApiFormat format = {.write_error = openai_write_error};

static int answer(ApiCall *call, const char *begin, const char *end) {
    static const char *const headers[][2] = {
        {"Content-Security-Policy",
         "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; base-uri 'none'; "
         "form-action 'none'; frame-ancestors 'none'"},
        {"X-Content-Type-Options", "nosniff"},
        {"X-Frame-Options", "DENY"},
        {"Referrer-Policy", "no-referrer"},
        {"Cache-Control", "no-cache"},
    };
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        http_exchange_add_header(call->exchange, headers[i][0], headers[i][1]);
    return buf_append(&call->reply, begin, (size_t)(end - begin))
               ? 0
               : api_refuse(&call->error, 500, NULL, NULL, "memory for the answer ran out");
}

static int html(ApiCall *call) { return answer(call, serve_page_html, serve_page_end_html); }
static int css(ApiCall *call) { return answer(call, serve_page_css, serve_page_end_css); }
static int js(ApiCall *call) { return answer(call, serve_page_js, serve_page_end_js); }
static int figures(ApiCall *call) { return answer(call, serve_page_figures, serve_page_end_figures); }

const Endpoint page_endpoints[] = {
    {.method = "GET",
     .path = "/",
     .format = &format,
     .answer = html,
     .type = "text/html; charset=utf-8",
     .is_open = true},
    {.method = "GET",
     .path = "/page.css",
     .format = &format,
     .answer = css,
     .type = "text/css; charset=utf-8",
     .is_open = true},
    {.method = "GET",
     .path = "/page.js",
     .format = &format,
     .answer = js,
     .type = "text/javascript; charset=utf-8",
     .is_open = true},
    {.method = "GET",
     .path = "/figures.js",
     .format = &format,
     .answer = figures,
     .type = "text/javascript; charset=utf-8",
     .is_open = true},
    {.path = NULL},
};
