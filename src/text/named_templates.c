/* named_templates.c - the files of src/text/templates as data of the library: the assembler reads them while it is built, so
 * that they stay files that editors and jinja2 can read. Their folder is looked for from the root of the project. */
#include "text/named_templates.h"

#include <string.h>

#define TEMPLATES(X) \
    X(chatml, "chatml") \
    X(command_r, "command-r") \
    X(deepseek_r1_distill, "deepseek-r1-distill") \
    X(deepseek_v2, "deepseek-v2") \
    X(deepseek_v3, "deepseek-v3") \
    X(gemma2, "gemma2") \
    X(gemma3, "gemma3") \
    X(gpt_oss, "gpt-oss") \
    X(granite, "granite") \
    X(llama2, "llama2") \
    X(llama3, "llama3") \
    X(llama3_1, "llama3.1") \
    X(llama3_2, "llama3.2") \
    X(mistral_nemo, "mistral-nemo") \
    X(mistral_v1, "mistral-v1") \
    X(mistral_v3, "mistral-v3") \
    X(mistral_v7, "mistral-v7") \
    X(phi3, "phi3") \
    X(phi3_5, "phi3.5") \
    X(phi4, "phi4") \
    X(plain, "plain") \
    X(qwen2, "qwen2") \
    X(qwen2_5, "qwen2.5") \
    X(qwen3, "qwen3") \
    X(smollm2, "smollm2") \
    X(smollm3, "smollm3") \
    X(vicuna, "vicuna") \
    X(zephyr, "zephyr")

/* clang-format off */
#define EMBED(id, name)                                                  \
    __asm__(".section .rodata\n"                                         \
            ".local named_template_" #id "\nnamed_template_" #id ":\n"   \
            ".incbin \"src/text/templates/" name ".jinja\"\n"            \
            ".local named_template_end_" #id "\nnamed_template_end_" #id ":\n" \
            ".byte 0\n.text\n");                                         \
    extern const char named_template_##id[] __attribute__((visibility("hidden"))), \
        named_template_end_##id[] __attribute__((visibility("hidden")));
/* clang-format on */
TEMPLATES(EMBED)

#define ROW(id, name) {name, named_template_##id, named_template_end_##id},
static const struct { const char *name, *begin, *end; } templates[] = {TEMPLATES(ROW)};

const char *named_template(const char *name, size_t *n) {
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++)
        if (strcmp(name, templates[i].name) == 0) {
            *n = (size_t)(templates[i].end - templates[i].begin);
            return templates[i].begin;
        }
    return NULL;
}

const char *const *named_templates(void) {
#define NAME(id, name) name,
    static const char *const names[] = {TEMPLATES(NAME) NULL};
    return names;
}
