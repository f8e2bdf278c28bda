#!/bin/sh
# The table of docs/MODELS.md: the F16 file of the target as each type, with and without an importance matrix: bits a weight,
# perplexity and KL divergence from F16 on held-out stories. Run it in the root of the project after `make`; it takes minutes.
set -e
model=${1:-models/f16/target.gguf}
corpus=${2:-../shared/data/corpus}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
zstd -dc "$corpus/story.train.jsonl.zst" | head -150 | jq -r .text > "$dir/train.txt"
zstd -dc "$corpus/story.valid.jsonl.zst" | head -60 | jq -r .text > "$dir/valid.txt"
build/forerun imatrix -m "$model" "$dir/train.txt" -o "$dir/model.imatrix" > /dev/null

row() { # TYPE [OPTION...]
    type=$1
    shift
    bits=$(build/forerun quantize "$model" "$dir/out.gguf" --type "$type" "$@" | sed 's/.*MiB, \([0-9.]*\) bits.*/\1/')
    build/forerun perplexity -m "$dir/out.gguf" "$dir/valid.txt" --base "$model" --windows 20 |
        awk -v name="$type${1:+ with --imatrix}" -v bits="$bits" '
            /^perplexity  / { p = $2 } /^mean KL/ { k = $4 } /^99th/ { q = $5 } /^same/ { s = $4 }
            END { printf "| %s | %s | %.2f | %.5f | %.4f | %.1f %% |\n", name, bits, p, k, q, s }'
}

echo "| type | bits a weight | perplexity | mean KL | 99th percentile | same best token |"
echo "|---|---|---|---|---|---|"
row F16
for type in Q8_0 Q6_K Q5_K_M Q5_K_S Q5_1 Q5_0 Q4_K_M Q4_K_S Q4_1 Q4_0 IQ4_NL IQ4_XS NVFP4 MXFP4 Q3_K_L Q3_K_M Q3_K_S IQ3_M IQ3_S IQ3_XS IQ3_XXS Q2_K IQ2_M; do row $type; done
for type in Q5_K_M Q4_K_M Q4_K_S Q4_0 IQ4_XS Q3_K_M IQ3_M IQ3_S IQ3_XXS Q2_K IQ2_M IQ2_S IQ2_XS IQ2_XXS IQ1_M IQ1_S; do row $type --imatrix "$dir/model.imatrix"; done
