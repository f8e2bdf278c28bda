/* http_head.c - a strict parser of request heads.
 *
 * Whatever two programs could read differently is refused rather than guessed, because a proxy in front of the server
 * may read it the other way (request smuggling): two lengths, a length and chunks, blanks before a colon, folded lines,
 * control characters, a lone CR. What is left is simple enough to be read in one pass. Line ends are CRLF; a lone LF is
 * accepted as RFC 9112 allows, since it is what people type into nc. */
#include "server/http/http_head.h"

#include <string.h>
#include <strings.h>

static bool is_token(unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

/* Cuts the next line off; NULL at the end. A lone CR and zero bytes make the line NULL, too. */
static char *next_line(char **at, const char *end) {
    char *line = *at, *lf = memchr(line, '\n', (size_t)(end - line));
    if (!lf) return NULL;
    *at = lf + 1;
    if (lf > line && lf[-1] == '\r') lf--;
    *lf = '\0';
    return strlen(line) == (size_t)(lf - line) && !strchr(line, '\r') ? line : NULL;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Decodes %XX in place. False: it is malformed or stands for a zero byte. */
static bool decode_path(char *path) {
    char *to = path;
    for (const char *from = path; *from; from++) {
        if (*from != '%') {
            *to++ = *from;
            continue;
        }
        int high = hex_digit(from[1]), low = high < 0 ? -1 : hex_digit(from[2]);
        if (low < 0 || (high == 0 && low == 0)) return false;
        *to++ = (char)(high * 16 + low);
        from += 2;
    }
    *to = '\0';
    return true;
}

/* "GET /path?query HTTP/1.1"; a target "http://host/path" is one, too. */
static int parse_request_line(HttpHead *h, char *line, const char **why) {
    char *target = strchr(line, ' '), *version = target ? strchr(target + 1, ' ') : NULL;
    *why = "the request line must be METHOD /path HTTP/1.1";
    if (!version || target == line) return 400;
    *target++ = *version++ = '\0';
    for (const char *c = line; *c; c++)
        if (!is_token((unsigned char)*c)) return 400;
    for (const char *c = target; *c; c++)
        if ((unsigned char)*c <= 0x20 || (unsigned char)*c >= 0x7F) return 400;
    if (strncmp(version, "HTTP/", 5) == 0 && strncmp(version, "HTTP/1.", 7) != 0) {
        *why = "this server speaks HTTP/1.1";
        return 505;
    }
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0) return 400;
    h->minor = version[7] - '0';
    h->method = line;
    if (strncasecmp(target, "http://", 7) == 0 || strncasecmp(target, "https://", 8) == 0) {
        target = strchr(strchr(target, ':') + 3, '/');
        if (!target) return 400;
    }
    char *question = strchr(target, '?');
    if (question) *question++ = '\0';
    h->query = question ? question : "";
    h->path = target;
    return (*target == '/' || strcmp(target, "*") == 0) && decode_path(target) ? 0 : 400;
}

/* "Name: value" */
static int parse_header(HttpHead *h, char *line, const char **why) {
    *why = "a header is malformed: each must be a line 'Name: value'";
    char *colon = strchr(line, ':');
    if (!colon || colon == line) return 400;
    *colon = '\0';
    for (const char *c = line; *c; c++)
        if (!is_token((unsigned char)*c)) return 400;
    char *value = colon + 1 + strspn(colon + 1, " \t"), *end = value + strlen(value);
    while (end > value && (end[-1] == ' ' || end[-1] == '\t')) *--end = '\0';
    for (const char *c = value; *c; c++)
        if (((unsigned char)*c < 0x20 && *c != '\t') || *c == 0x7F) return 400;
    if (h->n_headers == HTTP_MAX_HEADERS) {
        *why = "the request has more than 64 headers";
        return 431;
    }
    h->headers[h->n_headers++] = (HttpHeader){line, value};
    return 0;
}

const char *http_head_find(const HttpHead *h, const char *name) {
    for (int i = 0; i < h->n_headers; i++)
        if (strcasecmp(h->headers[i].name, name) == 0) return h->headers[i].value;
    return NULL;
}

static int count(const HttpHead *h, const char *name) {
    int n = 0;
    for (int i = 0; i < h->n_headers; i++) n += strcasecmp(h->headers[i].name, name) == 0;
    return n;
}

static int read_length(HttpHead *h, const char **why) {
    const char *length = http_head_find(h, "Content-Length"), *coding = http_head_find(h, "Transfer-Encoding");
    *why = "the length of the body is not clear: send either one Content-Length or 'Transfer-Encoding: chunked'";
    if (count(h, "Content-Length") > 1 || count(h, "Transfer-Encoding") > 1 || (length && coding)) return 400;
    if (coding && (strcasecmp(coding, "chunked") != 0 || h->minor == 0)) return 501;
    h->is_chunked = coding != NULL;
    if (!length) return 0;
    size_t n_digits = strspn(length, "0123456789");
    if (n_digits == 0 || length[n_digits]) return 400;
    if (n_digits > 15) return 413;
    for (const char *c = length; *c; c++) h->content_length = h->content_length * 10 + (*c - '0');
    return 0;
}

/* Whether a list of words "a, b" has this one. */
static bool has_word(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *at = list; at && *at; at += strcspn(at, ",")) {
        at += strspn(at, ", \t");
        if (strncasecmp(at, word, n) == 0 && (!at[n] || strchr(", \t", at[n]))) return true;
    }
    return false;
}

int http_head_parse(HttpHead *h, char *bytes, size_t n, const char **why) {
    *h = (HttpHead){.method = "", .query = ""};
    char *at = bytes, *line = next_line(&at, bytes + n);
    *why = "the request line is malformed";
    int status = line ? parse_request_line(h, line, why) : 400;
    while (!status) {
        line = next_line(&at, bytes + n);
        *why = "the head of the request is malformed";
        if (!line) return 400;
        if (!*line) break;
        status = parse_header(h, line, why);
    }
    if (!status) status = read_length(h, why);
    if (status) return status;
    if (count(h, "Host") != 1 && h->minor == 1) {
        *why = "a request by HTTP/1.1 must have one Host header";
        return 400;
    }
    const char *connection = http_head_find(h, "Connection"), *expect = http_head_find(h, "Expect");
    h->keeps_alive = h->minor == 1 ? !has_word(connection, "close") : has_word(connection, "keep-alive");
    h->expects_continue = expect && h->minor == 1 && strcasecmp(expect, "100-continue") == 0;
    if (expect && !h->expects_continue && h->minor == 1) {
        *why = "the only expectation that can be met is 100-continue";
        return 417;
    }
    return 0;
}
