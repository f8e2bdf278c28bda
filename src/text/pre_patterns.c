/* pre_patterns.c - the patterns of the published tokenizer.json files, by the names that GGUF gives them.
 *
 * They belong to trained models: changing one character changes tokens. Where a pattern is written differently from the
 * published one, it cuts the same pieces, and a comment gives the reason. */
#include "text/pre_patterns.h"

/* GPT-2 (Radford et al. 2019). The last alternative of the original, \s+, is missing: only single white spaces would
 * match it, and text that nothing matches becomes a piece of its own anyway. */
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"

/* The cl100k family (Llama 3, Qwen 2 and others) differs in how many digits make a piece. */
#define CL100K(digits) \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* The o200k family: words are cut where lower case is followed by upper case. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K(contraction, digits) \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" contraction "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" contraction \
    "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

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

/* Chinese, and (by the published bounds) everything from U+0800, and Hangul. */
#define DEEPSEEK_CJK "[\\x{4E00}-\\x{9FA5}\\x{0800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"

/* Published as \s+$. The look-behind keeps the search from trying every start within a long run of white
 * space, and \z is what $ means where the line ends were cut off before. */
#define TRAILING_SPACE "(?<!\\s)\\s++\\z"

const PreFamily pre_families[] = {
    {"default", false, false, {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {"gpt-2 phi-2 mpt olmo jais trillion gigachat exaone4 modern-bert mellum granite-docling a.x-4.0 jina-es "
     "jina-de jina-v2-es jina-v2-de",
     false,
     false,
     {GPT2}},
    {"llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2", true, true, {CL100K("\\p{N}{1,3}")}},
    {"dbrx smaug-bpe glm4 chatglm-bpe", false, false, {CL100K("\\p{N}{1,3}")}},
    {"qwen2 stablelm2 deepseek-r1-qwen megrez hunyuan solar-open kormo f2llmv2 grok-2",
     false,
     false,
     {CL100K("\\p{N}")}},
    {"qwen35",
     false,
     false,
     {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
      " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|"
      "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
    {"deepseek-llm",
     false,
     false,
     {"[\\r\\n]", "\\s?[" DEEPSEEK_LETTERS "]+",
      "\\s?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+", TRAILING_SPACE,
      DEEPSEEK_CJK, "\\p{N}+"}},
    {"deepseek-coder", false, false, {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", DEEPSEEK_CJK, "\\p{N}"}},
    {"deepseek-v3 hunyuan-dense joyai-llm",
     false,
     false,
     {"\\p{N}{1,3}", "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+",
      "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
      "?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|"
      "\\s+(?!\\S)|\\s+"}},
    {"falcon", false, false, {"[\\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {"starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", false, false, {"\\p{N}", GPT2}},
    {"tekken", true, true, {O200K("", "\\p{N}")}},
    {"gpt-4o llama4 kanana2 minimax-m2", false, false, {O200K("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "\\p{N}{1,3}")}},
};

const size_t pre_n_families = sizeof pre_families / sizeof *pre_families;
