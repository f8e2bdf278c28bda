/* fields.c - reads the fields of a body, and refuses by name what it cannot honour. */
#include "server/api/fields.h"

#include <math.h>
#include <string.h>

static const Field *find(const Field *const *tables, const char *name) {
    for (; *tables; tables++)
        for (const Field *f = *tables; f->name; f++)
            if (strcmp(f->name, name) == 0) return f;
    return NULL;
}

static bool asks_for_nothing(const json_t *value) {
    return json_is_null(value) || json_is_false(value) || (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

static int refuse_range(const Field *f, ApiError *error) {
    return api_refuse(error, 400, "invalid_value", f->name, "'%s' must be %s from %.10g to %.10g", f->name,
                      f->kind == FIELD_INT ? "an integer" : "a number", f->min, f->max);
}

static int read_number(const Field *f, const json_t *value, void *to, ApiError *error) {
    bool is_int = f->kind == FIELD_INT;
    double x = json_is_number(value) ? json_number_value(value) : NAN;
    if (!isfinite(x) || (is_int && x != floor(x)))
        return api_refuse(error, 400, "invalid_type", f->name, "'%s' must be %s", f->name,
                          is_int ? "an integer" : "a number");
    if (f->min < f->max && (x < f->min || x > f->max)) return refuse_range(f, error);
    if (!is_int) *(double *)to = x;
    else if (json_is_integer(value)) *(int64_t *)to = json_integer_value(value);
    else if (fabs(x) < 9e18) *(int64_t *)to = (int64_t)x;
    else return api_refuse(error, 400, "invalid_value", f->name, "'%s' is too large", f->name);
    return 0;
}

static int check_neutral(const Field *f, const json_t *value, ApiError *error) {
    double x = json_is_number(value) ? json_number_value(value) : json_is_true(value) ? 1 : 0;
    if ((json_is_number(value) || json_is_boolean(value)) && x == f->min) return 0;
    return api_refuse(error, 400, "unsupported_parameter", f->name, "'%s' is not supported, except with the value %g",
                      f->name, f->min);
}

static int read_field(const Field *f, const json_t *value, void *to, ApiError *error) {
    void *at = (char *)to + f->offset;
    switch (f->kind) {
    case FIELD_IGNORED: return 0;
    case FIELD_NEUTRAL: return check_neutral(f, value, error);
    case FIELD_REAL:
    case FIELD_INT: return read_number(f, value, at, error);
    case FIELD_BOOL:
        if (!json_is_boolean(value))
            return api_refuse(error, 400, "invalid_type", f->name, "'%s' must be true or false", f->name);
        *(bool *)at = json_is_true(value);
        return 0;
    case FIELD_TEXT:
        if (!json_is_string(value))
            return api_refuse(error, 400, "invalid_type", f->name, "'%s' must be a string", f->name);
        *(const char **)at = json_string_value(value);
        return 0;
    default: *(const json_t **)at = value; return 0;
    }
}

int fields_read(const Field *const *tables, const json_t *body, void *to, ApiError *error) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)body, name, value) {
        const Field *f = find(tables, name);
        if (json_is_null(value) || (!f && asks_for_nothing(value))) continue;
        if (!f)
            return api_refuse(error, 400, "unsupported_parameter", name, "the field '%.60s' is not supported", name);
        if (read_field(f, value, to, error)) return -1;
    }
    return 0;
}

bool field_is_text(const json_t *value, const char *text) {
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}
