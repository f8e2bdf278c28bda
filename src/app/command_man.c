#include "app/command.h"
bool command_man(const Command *const *commands, Buf *out) { (void)commands; (void)out; return true; }
bool command_completions(const Command *const *commands, const char *shell, Buf *out) { (void)commands; (void)shell; (void)out; return true; }
