/* config_reader.h - numbers and texts of config.json, with their limits. */
#ifndef CONVERT_CONFIG_READER_H
#define CONVERT_CONFIG_READER_H

#include "cli/convert/hub_folder.h"

/* Reads numbers of one object and remembers the first failure. */
typedef struct ConfigReader {
    const HubFolder *c;
    const json_t *object;
    fr_error *err;
    int status;
} ConfigReader;

/* Whether the key is there and is not null. */
bool config_has(const ConfigReader *r, const char *key);
/* A number from `low` to `high`. `fallback` stands for a missing key; one below `low` means that the key must be there. Returns
 * `low` after a failure. */
int64_t config_int(ConfigReader *r, const char *key, int64_t fallback, int64_t low, int64_t high);
double config_real(ConfigReader *r, const char *key, double fallback, double low, double high);
/* Refuses the folder, unless something else has failed before: "FOLDER/config.json: what". */
void config_refuse(ConfigReader *r, const char *what);
/* A text, or NULL. */
const char *config_text(const json_t *object, const char *key);

#endif
