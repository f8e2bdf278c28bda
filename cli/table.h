/* table.h - rows of a table that fits a terminal of 80 columns. */
#ifndef APP_TABLE_H
#define APP_TABLE_H

enum { TABLE_COLUMNS = 80 };

/* Prints a name as the first column of a row, `width` columns wide. A longer name gets a line of its own, and the row goes
 * on below it. */
void table_name(const char *name, int width);

#endif
