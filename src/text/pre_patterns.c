/* pre_patterns.c - the patterns of the published tokenizer.json files, by the names that GGUF gives them.
 *
 * They belong to trained models: changing one character changes tokens. Where a pattern is written differently from the
 * published one, it cuts the same pieces, and a comment gives the reason. */
#include "text/pre_patterns.h"

/* GPT-2 (Radford et al. 2019). The last alternative of the original, \s+, is missing: only single white spaces would
 * match it, and text that nothing matches becomes a piece of its own anyway. */
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"

/* English contractions in any case. (?i:'s) would not do: without case, Unicode's long s is an s. */
#define CONTRACTION "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
#define TRAILING_SPACES "|\\s+(?!\\S)|\\s+"

#define PUBLISHED_CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"

/* The cl100k family (Llama 3, Qwen 2 and others) differs in how many digits make a piece. */
#define CL100K_WORDS(digits) CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits
#define CL100K_REST "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+"
#define CL100K(digits) CL100K_WORDS(digits) CL100K_REST TRAILING_SPACES

#define PUBLISHED_CL100K(digits) \
    PUBLISHED_CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits CL100K_REST TRAILING_SPACES

/* The o200k family cuts words where lower case is followed by upper case. The published patterns know the case of all letters,
 * and take combining marks for letters. llama.cpp knows the case of ASCII letters only, and most of its patterns leave the
 * marks out. GGUF files have their names from llama.cpp, so its patterns are used here. */
#define O200K(letters, contraction, digits) \
    "[^\\r\\n\\p{L}\\p{N}]?(?:(?![a-z])" letters ")*(?:(?![A-Z])" letters ")+" contraction \
    "|[^\\r\\n\\p{L}\\p{N}]?(?:(?![a-z])" letters ")+(?:(?![A-Z])" letters ")*" contraction "|" digits \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+" TRAILING_SPACES
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define PUBLISHED_O200K(contraction, digits) \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" contraction "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" contraction \
    "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+" TRAILING_SPACES
/* The same where llama.cpp distinguishes no case at all. */
#define O200K_WITHOUT_CASE(digits) \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+" CONTRACTION "?|" digits \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+" TRAILING_SPACES

/* The last pattern of DeepSeek V3: a punctuation mark with the ASCII word after it, words, symbols, white space. */
#define DEEPSEEK_V3_WORDS "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+"
#define DEEPSEEK_V3 DEEPSEEK_V3_WORDS "[\\r\\n]*|\\s*[\\r\\n]+" TRAILING_SPACES

/* What llama.cpp takes for Chinese characters in Kimi K2's pattern. */
#define HAN \
    "[\\x{4E00}-\\x{9FFF}\\x{3400}-\\x{4DBF}\\x{20000}-\\x{2A6DF}\\x{2A700}-\\x{2EBEF}\\x{F900}-\\x{FAFF}" \
    "\\x{2F800}-\\x{2FA1F}]"

/* Chinese and Japanese of DeepSeek V3 and Youtu. */
#define HAN_AND_KANA "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+"

/* Numbers in groups of three digits from the right. A piece ends after each group, but none begins at the first digit: the text
 * before it stays with the first group, as in llama.cpp. */
#define DIGIT_GROUPS "[^\\p{N}]*+(?:(?<!\\p{N})\\p{N}{1,2}(?=(?:\\p{N}{3})*+(?!\\p{N}))|\\p{N}{3})|[^\\p{N}]++"

/* SuperBPE cuts before each group of three ASCII digits, counted from the right, and nowhere else: its published pattern is
 * (?=(\d{3})+(?!\d)). A piece consists of the group that begins it, of what belongs to no group, and of the one or two digits
 * before the next group. */
#define SUPERBPE_GROUPS \
    "(?:(?<=[0-9])[0-9]{3}|(?<![0-9])[0-9]{3}(?=(?:[0-9]{3})*+(?![0-9])))?+" \
    "(?:[^0-9]++|(?<![0-9])[0-9]{1,2}(?![0-9]))*+" \
    "(?:(?<![0-9])[0-9]{1,2}(?=(?:[0-9]{3})++(?![0-9])))?"

/* Bloom and its relatives: words with the space before them, cut at punctuation. */
#define BLOOM " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964}\\x{6D4}\\x{60C})]+"

/* DeepSeek LLM lists the cased letters of the Unicode version it was made with. */
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

/* Chinese, by the published bounds everything from U+0800, and Hangul; but no white space. */
#define DEEPSEEK_CJK "(?:(?!\\s)[\\x{0800}-\\x{9FA5}\\x{AC00}-\\x{D7FF}])+"

/* Published as \s+$. The look-behind keeps the search from trying every start within a long run of white
 * space, and \z is what $ means where the line ends were cut off before. */
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
