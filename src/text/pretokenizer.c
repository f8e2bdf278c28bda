/* pretokenizer.c - BPE never merges across words; a few patterns define the words.
 *
 * The first pattern cuts the text into its matches and the parts between them. Each further pattern cuts the pieces of
 * the one before in the same way. A pattern sees only its piece, so look-ahead ends at the edge of the piece.
 *
 * Patterns match Unicode, but texts may be any bytes. The patterns are matched against a copy in which each byte that
 * is not UTF-8 is replaced by U+001A SUBSTITUTE. That is one byte as well, so positions stay the same and the cuts
 * apply to the original text. U+180E, which is white space in PCRE2 but has not been since Unicode 6.3, is replaced by
 * U+200B, which has the same length and category.
 *
 * Each pattern is tried once at each position, and no alternative backtracks more than it has matched, so the time is
 * linear in the length of the text.
 *
 * The patterns come from the published tokenizer.json files, as llama.cpp, which gives them their names in GGUF
 * files, has adapted them. They belong to trained models: changing one character changes tokens. A pattern that is
 * written differently here cuts the same pieces; a comment gives the reason. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text/encoder.h"

#include "base/error.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

/* ---- the patterns ------------------------------------------------------------------------------------------------ */

/* GPT-2 (Radford et al. 2019). The last alternative of the original, \s+, is left out: only a single white space
 * would match it, and text that nothing matches becomes a piece of its own anyway. */
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"

/* English contractions in upper and lower case. (?i:'s) would be wrong, because it also matches Unicode's long s. */
#define CONTRACTION "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
#define TRAILING_SPACES "|\\s+(?!\\S)|\\s+"

#define PUBLISHED_CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"

/* The members of the cl100k family (Llama 3, Qwen 2 and others) differ in how many digits make a piece. */
#define CL100K_WORDS(digits) CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits
#define CL100K_REST "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+"
#define CL100K(digits) CL100K_WORDS(digits) CL100K_REST TRAILING_SPACES

#define PUBLISHED_CL100K(digits) \
    PUBLISHED_CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits CL100K_REST TRAILING_SPACES

/* The o200k family cuts words where a lower-case letter is followed by an upper-case one. The published patterns
 * distinguish the case of all letters, and treat combining marks as letters. llama.cpp distinguishes the case of
 * ASCII letters only, and most of its patterns do not treat marks as letters. The names in GGUF files come from
 * llama.cpp, so these are its patterns. */
#define O200K(letters, contraction, digits) \
    "[^\\r\\n\\p{L}\\p{N}]?(?:(?![a-z])" letters ")*(?:(?![A-Z])" letters ")+" contraction \
    "|[^\\r\\n\\p{L}\\p{N}]?(?:(?![a-z])" letters ")+(?:(?![A-Z])" letters ")*" contraction "|" digits \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+" TRAILING_SPACES
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define PUBLISHED_O200K(contraction, digits) \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" contraction "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" contraction \
    "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+" TRAILING_SPACES
/* The same for the names for which llama.cpp does not distinguish case at all. */
#define O200K_WITHOUT_CASE(digits) \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+" CONTRACTION "?|" digits \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+" TRAILING_SPACES

/* The last pattern of DeepSeek V3 matches a punctuation mark with the ASCII word after it, words, symbols, and white
 * space. */
#define DEEPSEEK_V3_WORDS "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+"
#define DEEPSEEK_V3 DEEPSEEK_V3_WORDS "[\\r\\n]*|\\s*[\\r\\n]+" TRAILING_SPACES

/* The characters that llama.cpp treats as Chinese in the pattern of Kimi K2. */
#define HAN \
    "[\\x{4E00}-\\x{9FFF}\\x{3400}-\\x{4DBF}\\x{20000}-\\x{2A6DF}\\x{2A700}-\\x{2EBEF}\\x{F900}-\\x{FAFF}" \
    "\\x{2F800}-\\x{2FA1F}]"

/* Chinese and Japanese characters, for DeepSeek V3 and Youtu. */
#define HAN_AND_KANA "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+"

/* Cuts numbers into groups of three digits, counted from the right. A piece ends after each group, but no piece
 * begins at the first digit: the text before it belongs to the piece of the first group, as in llama.cpp. */
#define DIGIT_GROUPS "[^\\p{N}]*+(?:(?<!\\p{N})\\p{N}{1,2}(?=(?:\\p{N}{3})*+(?!\\p{N}))|\\p{N}{3})|[^\\p{N}]++"

/* SuperBPE cuts before each group of three ASCII digits, counted from the right, and nowhere else. Its published
 * pattern, (?=(\d{3})+(?!\d)), matches empty strings and takes quadratic time. Here a piece consists of a group of
 * digits, text that belongs to no group, and the one or two digits before the next group. Each part may be missing. */
#define SUPERBPE_GROUPS \
    "(?:(?<=[0-9])[0-9]{3}|(?<![0-9])[0-9]{3}(?=(?:[0-9]{3})*+(?![0-9])))?+" \
    "(?:[^0-9]++|(?<![0-9])[0-9]{1,2}(?![0-9]))*+" \
    "(?:(?<![0-9])[0-9]{1,2}(?=(?:[0-9]{3})++(?![0-9])))?"

/* Bloom and related models: words with the space before them, which end at punctuation. */
#define BLOOM " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964}\\x{6D4}\\x{60C})]+"

/* DeepSeek LLM lists the cased letters of one version of Unicode. */
#define DEEPSEEK_LETTERS \
    "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}\\x{1C4}-\\x{293}" \
    "\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}\\x{386}\\x{388}-\\x{38A}" \
    "\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}" \
    "\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}" \
    "\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}" \
    "\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}" \
    "\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{" \
    "1FCC}" \
    "\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{" \
    "2102}\\x{2107}" \
    "\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}\\x{212A}-\\x{212D}" \
    "\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}" \
    "\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}" \
    "\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}" \
    "\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}" \
    "\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}" \
    "\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"

/* Chinese, which by the published bounds is everything from U+0800 on, and Hangul. White space is not matched. */
#define DEEPSEEK_CJK "(?:(?!\\s)[\\x{0800}-\\x{9FA5}\\x{AC00}-\\x{D7FF}])+"

/* Published as \s+$. The look-behind prevents a match from being tried at every position of a long run of white
 * space. \z means the same as $ here, because the line ends were cut off before. */
#define TRAILING_SPACE "(?<!\\s)\\s++\\z"

const PreFamily pre_families[] = {
    {"default", 0, NULL, {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {"gpt-2 phi-2 mpt olmo jais trillion gigachat exaone4 modern-bert mellum granite-docling a.x-4.0 jina-es "
     "jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe",
     0,
     NULL,
     {GPT2}},
    {"llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
     PRE_IGNORES_MERGES | PRE_ADDS_BOS,
     PUBLISHED_CL100K("\\p{N}{1,3}"),
     {CL100K("\\p{N}{1,3}")}},
    {"dbrx smaug-bpe glm4 chatglm-bpe", 0, PUBLISHED_CL100K("\\p{N}{1,3}"), {CL100K("\\p{N}{1,3}")}},
    {"qwen2 stablelm2 deepseek-r1-qwen megrez hunyuan solar-open kormo f2llmv2 grok-2",
     0,
     PUBLISHED_CL100K("\\p{N}"),
     {CL100K("\\p{N}")}},
    {"ufakzeka", 0, NULL, {"[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" CL100K_REST TRAILING_SPACES}},
    {"qwen35",
     0,
     PUBLISHED_CONTRACTION
     "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+" TRAILING_SPACES,
     {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
                  "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+" TRAILING_SPACES}},
    {"minicpm5", PRE_IGNORES_MERGES, NULL, {"\\p{N}{1,3}", CL100K("\\p{N}+")}},
    {"jais-2",
     0,
     NULL,
     {CL100K_WORDS("\\p{N}{1,3}") CL100K_REST
      "|\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)|\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|"
      "\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s"}},
    {"seed-coder", 0, NULL, {CL100K_WORDS("\\p{N}") "| ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+" TRAILING_SPACES}},
    {"bailingmoe bailingmoe2 llada-moe",
     0,
     NULL,
     {CL100K_WORDS("\\p{N}") "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]" TRAILING_SPACES}},
    {"exaone-moe",
     0,
     NULL,
     {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|"
                  "\\s*[\\r\\n]" TRAILING_SPACES}},
    {"deepseek-llm",
     0,
     NULL,
     {"[\\r\\n]", "\\s?[" DEEPSEEK_LETTERS "]+",
      "\\s?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3001}\\x{3002}]+", TRAILING_SPACE,
      DEEPSEEK_CJK, "\\p{N}+"}},
    {"deepseek-coder", 0, NULL, {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", DEEPSEEK_CJK, "\\p{N}"}},
    {"deepseek-v3 hunyuan-dense joyai-llm", 0, NULL, {"\\p{N}{1,3}", HAN_AND_KANA, DEEPSEEK_V3}},
    {"spark2_5", 0, NULL, {"\\p{N}{1,3}", HAN_AND_KANA, DEEPSEEK_V3_WORDS "|[\\r\\n]" TRAILING_SPACES, "\\p{N}"}},
    {"kimi-k2",
     0,
     NULL,
     {HAN "+|[^\\r\\n\\p{L}\\p{N}]?(?:(?!" HAN ")\\p{L})+" CONTRACTION "?|\\p{N}{1,3}" CL100K_REST TRAILING_SPACES}},
    {"youtu",
     PRE_IGNORES_MERGES,
     NULL,
     {"[\\x{AC00}-\\x{D7A3}\\x{3131}-\\x{318E}]+|[\\x{FF01}\\x{2026}\\x{201C}\\x{201D}\\x{2018}\\x{2019}\\x{2014}\\x{"
      "FF1A}"
      "\\x{FF1B}\\x{FF0C}\\x{3001}-\\x{303F}\\x{FE30}-\\x{FE4F}]+|[\\x{3105}-\\x{312F}]+|" HAN_AND_KANA,
      O200K_WITHOUT_CASE("\\p{N}")}},
    {"afmoe",
     0,
     NULL,
     {DIGIT_GROUPS,
      "[\\x{4E00}-\\x{9FFF}\\x{3400}-\\x{4DBF}\\x{8C48}-\\x{FAFF}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}\\x{FF65}-\\x{"
      "FF9F}"
      "\\x{2F00}-\\x{2FDF}\\x{E40}-\\x{E7F}\\x{E80}-\\x{EFF}\\x{1780}-\\x{17FF}\\x{1000}-\\x{109F}\\x{AA60}-\\x{AA7F}"
      "\\x{A9E0}-\\x{A9FF}\\x{AC00}-\\x{D7AF}\\x{1100}-\\x{11FF}]+",
      DEEPSEEK_V3}},
    {"falcon", 0, NULL, {"[\\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {"starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", 0, NULL, {"\\p{N}", GPT2}},
    {"chameleon",
     PRE_ADDS_BOS,
     NULL,
     {"<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", "[\\t\\n]|    |  ", "\\p{N}", "[\\p{P}!-/:-@\\[-`{-~]", GPT2}},
    {"bloom poro-chat gpt3-finnish", 0, NULL, {BLOOM}},
    {"viking", 0, NULL, {BLOOM, "\\p{N}"}},
    {"superbpe", 0, NULL, {"\\p{N}+", SUPERBPE_GROUPS}},
    {"tekken", PRE_IGNORES_MERGES | PRE_ADDS_BOS, PUBLISHED_O200K("", "\\p{N}"), {O200K("\\p{L}", "", "\\p{N}")}},
    {"gpt-4o llama4 kanana2 minimax-m2 talkie",
     0,
     PUBLISHED_O200K(PUBLISHED_CONTRACTION "?", "\\p{N}{1,3}"),
     {O200K("\\p{L}", CONTRACTION "?", "\\p{N}{1,3}")}},
    {"granite-embed-multi-97m", PRE_IGNORES_MERGES, NULL, {O200K("[\\p{L}\\p{M}]", CONTRACTION "?", "\\p{N}{1,3}")}},
    {"tiny_aya cohere2moe", 0, NULL, {DIGIT_GROUPS, O200K_WITHOUT_CASE("\\p{N}{1,3}")}},
    {"laguna", 0, NULL, {"\\n+", CL100K("\\p{N}")}},
    {"gemma4 granite-embed-multi-311m", PRE_ADDS_BOS | PRE_READS_CHARACTERS | PRE_NEWLINES_WHOLE, NULL, {"\\n+"}},
    {"sarvam-moe", PRE_READS_CHARACTERS, NULL, {"\\n+"}},
};

const size_t pre_n_families = sizeof pre_families / sizeof *pre_families;

/* ---- splitting --------------------------------------------------------------------------------------------------- */

struct Pretokenizer {
    const PreFamily *family;
    pcre2_code *codes[PRE_MAX_PATTERNS];
    int n_codes;
    pcre2_match_context *limits;
};

/* Returns whether `name` is one of the words of `names`. */
static bool has_name(const char *names, const char *name, size_t n) {
    for (const char *at = names; *at; at += strspn(at, " ")) {
        size_t length = strcspn(at, " ");
        if (length == n && memcmp(at, name, n) == 0) return true;
        at += length;
    }
    return false;
}

static const PreFamily *find_family(const char *name, size_t n) {
    for (size_t i = 0; i < pre_n_families; i++)
        if (has_name(pre_families[i].names, name, n)) return &pre_families[i];
    return NULL;
}

static int refuse_name(const char *name, size_t n, const char *path, fr_error *err) {
    Printable p;
    Buf known = {.max_bytes = sizeof err->message / 2};
    for (size_t i = 0; i < pre_n_families; i++) {
        const char *first = pre_families[i].names;
        buf_append(&known, i ? ", " : "", i ? 2 : 0);
        buf_append(&known, first, strcspn(first, " "));
    }
    error_set(err, FR_ERR_UNSUPPORTED,
              "%s: the pre-tokenizer '%s' is not supported; supported are %s and variants of them", path,
              printable(&p, name, n), known.data ? known.data : "others");
    buf_free(&known);
    return FR_ERR_UNSUPPORTED;
}

static int compile(Pretokenizer *p, fr_error *err) {
    for (int i = 0; i < PRE_MAX_PATTERNS && p->family->patterns[i]; i++) {
        int code;
        PCRE2_SIZE where;
        p->codes[i] = pcre2_compile((PCRE2_SPTR)p->family->patterns[i], PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                    &code, &where, NULL);
        if (!p->codes[i])
            return error_set(err, FR_ERR_INTERNAL, "pattern %d of pre-tokenizer %s does not compile (PCRE2 error %d)",
                             i, p->family->names, code);
        p->n_codes = i + 1;
        pcre2_jit_compile(p->codes[i], PCRE2_JIT_COMPLETE); /* without JIT the pattern is interpreted */
    }
    return FR_OK;
}

int pretokenizer_open(Pretokenizer **out, const char *name, size_t n, const char *path, fr_error *err) {
    *out = NULL;
    const PreFamily *family = find_family(name, n);
    if (!family) return refuse_name(name, n, path, err);
    Pretokenizer *p = calloc(1, sizeof *p);
    if (!p) return error_memory(err, "a pre-tokenizer", sizeof *p);
    p->family = family;
    p->limits = pcre2_match_context_create(NULL);
    int status = p->limits ? compile(p, err) : error_memory(err, "a pre-tokenizer", sizeof *p);
    if (status) {
        pretokenizer_close(p);
        return status;
    }
    /* The limits of PCRE2 are meant for untrusted patterns. These patterns are fixed and take linear time, so the
     * limits would only refuse long texts. */
    pcre2_set_match_limit(p->limits, UINT32_MAX);
    *out = p;
    return FR_OK;
}

void pretokenizer_close(Pretokenizer *p) {
    if (!p) return;
    for (int i = 0; i < p->n_codes; i++) pcre2_code_free(p->codes[i]);
    pcre2_match_context_free(p->limits);
    free(p);
}

unsigned pretokenizer_flags(const Pretokenizer *p) { return p->family->flags; }

unsigned pretokenizer_flags_of(const char *name, size_t n) {
    const PreFamily *family = find_family(name, n);
    return family ? family->flags : 0;
}

static bool add_end(Encoding *e, int list, size_t end) {
    if (e->n_ends[list] == e->ends_capacity[list]) {
        size_t wanted = e->ends_capacity[list] ? 2 * e->ends_capacity[list] : 64;
        size_t *bigger = realloc(e->ends[list], wanted * sizeof *bigger);
        if (!bigger) return false;
        e->ends[list] = bigger;
        e->ends_capacity[list] = wanted;
    }
    e->ends[list][e->n_ends[list]++] = end;
    return true;
}

/* Sets e->text to the copy of the text that patterns are matched against. Every byte keeps its position. */
static bool make_matchable(const char *text, size_t n, Encoding *e) {
    buf_clear(&e->text);
    e->text.max_bytes = SIZE_MAX;
    if (!buf_append(&e->text, text, n)) return false;
    for (size_t at = 0, need; at < n; at += need) {
        size_t got = utf8_scan(text + at, n - at, &need);
        if (need == 0 || got != need) {
            e->text.data[at] = 0x1A;
            need = 1;
        } else if (need == 3 && memcmp(text + at, "\xE1\xA0\x8E", 3) == 0) memcpy(e->text.data + at, "\xE2\x80\x8B", 3);
    }
    return true;
}

/* Finds the first match of pattern i in piece[0..n) from `from` on. Returns 1 and its bounds, 0 if there is none, or
 * an error of PCRE2, which is negative. */
static int match(const Pretokenizer *p, int i, const char *piece, size_t n, size_t from, pcre2_match_data *data,
                 size_t *start, size_t *end) {
    int status = pcre2_match(p->codes[i], (PCRE2_SPTR)piece, n, from, PCRE2_NO_UTF_CHECK, data, p->limits);
    if (status == PCRE2_ERROR_JIT_STACKLIMIT)
        status = pcre2_match(p->codes[i], (PCRE2_SPTR)piece, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data,
                             p->limits);
    if (status == PCRE2_ERROR_NOMATCH) return 0;
    if (status < 0) return status;
    *start = pcre2_get_ovector_pointer(data)[0];
    *end = pcre2_get_ovector_pointer(data)[1];
    return *end > *start; /* no pattern matches the empty string */
}

/* Cuts the piece text[begin..end) by pattern i, and appends the ends of the parts to `list`. */
static int cut(const Pretokenizer *p, int i, size_t begin, size_t end, pcre2_match_data *data, Encoding *e, int list) {
    const char *piece = e->text.data + begin;
    size_t n = end - begin, at = 0, from, to;
    int status;
    while (at < n && (status = match(p, i, piece, n, at, data, &from, &to)) != 0) {
        if (status < 0) return status;
        if (from > at && !add_end(e, list, begin + from)) return PCRE2_ERROR_NOMEMORY;
        if (!add_end(e, list, begin + to)) return PCRE2_ERROR_NOMEMORY;
        at = to;
    }
    return at < n && !add_end(e, list, end) ? PCRE2_ERROR_NOMEMORY : 0;
}

int pretokenizer_split(const Pretokenizer *p, const char *text, size_t n, Encoding *e, const size_t **ends,
                       size_t *n_ends, fr_error *err) {
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    e->n_ends[0] = e->n_ends[1] = 0;
    int list = 0, status = data && make_matchable(text, n, e) && add_end(e, 0, n) ? 0 : PCRE2_ERROR_NOMEMORY;
    for (int i = 0; i < p->n_codes && status == 0; i++, list = 1 - list) {
        e->n_ends[1 - list] = 0;
        for (size_t k = 0, begin = 0; k < e->n_ends[list] && status == 0; begin = e->ends[list][k++])
            status = cut(p, i, begin, e->ends[list][k], data, e, 1 - list);
    }
    pcre2_match_data_free(data);
    *ends = e->ends[list];
    *n_ends = e->n_ends[list];
    if (status == PCRE2_ERROR_NOMEMORY) return error_memory(err, "the words of a text", n);
    if (status) return error_set(err, FR_ERR_INTERNAL, "PCRE2 failed with error %d on a text of %zu bytes", status, n);
    return FR_OK;
}
