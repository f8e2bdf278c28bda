/* json_values.h - values that JSON cannot hold, and printing, for all commands that write JSON. */
#ifndef APP_JSON_VALUES_H
#define APP_JSON_VALUES_H

#include "base/error.h"

#include <jansson.h>

/* JSON has no NaN and no infinity, and jansson makes NULL of them, with which json_pack returns NULL for the whole
 * object and json_object_set_new leaves out the key. Here they become null. */
json_t *json_real_or_null(double x);

/* File names need not be UTF-8, but JSON is: a text that is not becomes null. */
json_t *json_string_or_null(const char *text);

/* Prints the value and a newline on standard output, and releases it. */
int json_print(json_t *value, size_t flags, fr_error *err);

#endif
