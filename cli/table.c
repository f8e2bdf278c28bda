/* table.c - the first column of the tables of `compare` and `bench`, where names such as
 * "eagle:file=models/eagle.gguf" can be longer than what a terminal has room for. */
#include "cli/table.h"

#include <stdio.h>
#include <string.h>

void table_name(const char *name, int width) {
    if ((int)strlen(name) <= width) printf("%-*s", width, name);
    else printf("%s\n%*s", name, width, "");
}
