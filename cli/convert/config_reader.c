/* config_reader.c - numbers and texts of config.json: a value that is missing or out of its limits is named in the message. */
#include "cli/convert/config_reader.h"

bool config_has(const ConfigReader *r, const char *key) {
    const json_t *v = json_object_get(r->object, key);
    return v && !json_is_null(v);
}

int64_t config_int(ConfigReader *r, const char *key, int64_t fallback, int64_t low, int64_t high) {
    const json_t *v = json_object_get(r->object, key);
    int64_t n = config_has(r, key) ? (int64_t)json_integer_value(v) : fallback;
    bool is_number = !config_has(r, key) || json_is_integer(v);
    if (is_number && n >= low && n <= high) return n;
    if (!r->status)
        r->status = error_set(r->err, FR_ERR_FORMAT, "%s/config.json: %s must be an integer from %lld to %lld",
                              r->c->folder, key, (long long)low, (long long)high);
    return low;
}

double config_real(ConfigReader *r, const char *key, double fallback, double low, double high) {
    const json_t *v = json_object_get(r->object, key);
    double x = config_has(r, key) ? json_number_value(v) : fallback;
    bool is_number = !config_has(r, key) || json_is_number(v);
    if (is_number && x >= low && x <= high) return x;
    if (!r->status)
        r->status = error_set(r->err, FR_ERR_FORMAT, "%s/config.json: %s must be a number from %g to %g", r->c->folder,
                              key, low, high);
    return low;
}

void config_refuse(ConfigReader *r, const char *what) {
    if (!r->status) r->status = error_set(r->err, FR_ERR_UNSUPPORTED, "%s/config.json: %s", r->c->folder, what);
}

const char *config_text(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}
