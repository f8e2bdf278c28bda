#!/bin/bash
# research/learned.sh STAGE... - makes the shipped drafters again, and the tables of research/LEARNED.md.
#
#   data        the target's own answers to the training part of a corpus     DATA/answers.jsonl, DATA/heldout.jsonl
#   drafters    one drafter of each method, all with the same processor time  OUT/METHOD.gguf
#   ablations   the drafters that the tables compare them with                OUT/*.gguf
#   tables      the measurements, as text and JSON                            OUT/*.txt, OUT/*.json
#   forms       eagle and lyanna by recipe and form, and the other methods: each of FORMS with each of SEEDS, all with MINUTES of
#               processor time, or all with FORM_STEPS steps
#   forms_tables   what these accept, in Lyanna's shape and in ours; tables with the mean and the spread over the seeds
#   labels      redrafter with soft and hard labels, on all answers, on the greedy ones and on the corpus itself; with token
#               info; and with the paper's initial state
#   epochs      lyanna with hot tokens and with all tokens, for three epochs of an eighth of the answers; then epochs_table
#   long_epochs the same for two epochs of all answers, an hour of one core each; the logs have the accuracies
#   widths      eagle and lyanna by width, depth and budget, and on a target whose weights are read from memory; run it under
#               chrt -r 1
#   space       space with a block after each mask, and with masks only, for five minutes of one core each; beside medusa
#               and eagle
#   eagle3      eagle3 for MINUTES of processor time, beside an eagle that was trained as long
#   dflash      dflash for MINUTES of processor time, beside that eagle
#   report      the tables of research/LEARNED.md, as Markdown
#   plots       its figures, research/plots/learned-*.svg (gnuplot)
#   curves      held-out accuracy over processor time, from the logs of `drafters`: research/plots/learned-curves.svg
#
# Environment: FORERUN (build/forerun), TARGET (models/target.gguf), CORPUS (a folder of KIND.train.jsonl.zst and
# KIND.valid.jsonl.zst, texts; ../shared/data/corpus), DATA and OUT (build/learned).
# For the data: EVERY (1): take only every EVERYth of the texts, for smaller trainings.
# For the drafters: METHODS (all), MINUTES of processor time for each (20), LYANNA (its options, such as "--rank 256"),
# CURRICULUM=STEPS (lyanna learns 3 steps ahead for the first half of the time, then STEPS; empty: not).
# For the forms: SEEDS (1 2 3), FORMS (all of train_form), FORM_STEPS (empty: as many as MINUTES allow). A stage that was stopped goes on
# where it was.
# Needs jq, zstd and gnuplot. A training that was interrupted goes on when its stage is run again, and one that is finished is not repeated.
set -euo pipefail
shopt -s inherit_errexit
: "${FORERUN:=build/forerun}" "${TARGET:=models/target.gguf}" "${CORPUS:=../shared/data/corpus}"
: "${DATA:=build/learned}" "${OUT:=build/learned}"
: "${EVERY:=1}" "${FORM_STEPS=}" "${METHODS:=lyanna eagle redrafter hydra medusa}" "${MINUTES:=20}" "${LYANNA=}" "${CURRICULUM=}"
: "${SEEDS:=1 2 3}" "${FORMS:=paper separate separate-drawn eagle hass eagle-hass paper-1-3-5 separate-1-3-5 redrafter hydra hydra-own hydra-plus medusa space eagle3 dflash dspark mtp}"
mkdir -p "$DATA" "$OUT"

# The target continues the beginnings of some texts of each kind, half of them greedily, half at temperature 0.8.
one_answer_file() { # KIND STEP TOKENS
  local n=$(($2 * EVERY))
  zstdcat "$CORPUS/$1.train.jsonl.zst" | awk -v n="$n" 'NR % (2 * n) == 1' > "$DATA/cold.$1.jsonl"
  zstdcat "$CORPUS/$1.train.jsonl.zst" | awk -v n="$n" 'NR % (2 * n) == (n + 1) % (2 * n)' > "$DATA/warm.$1.jsonl"
  "$FORERUN" distill-data -m "$TARGET" "$DATA/cold.$1.jsonl" -o "$DATA/cold.$1.answers.jsonl" --begin-texts 24 -n "$3" --draft suffix
  "$FORERUN" distill-data -m "$TARGET" "$DATA/warm.$1.jsonl" -o "$DATA/warm.$1.answers.jsonl" --begin-texts 24 -n "$3" \
    --draft suffix --temp 0.8
}

stage_data() {
  one_answer_file story 1 160
  one_answer_file qa 6 96
  one_answer_file instruct 2 128
  one_answer_file summary 2 96
  cat "$DATA"/cold.*.answers.jsonl "$DATA"/warm.*.answers.jsonl > "$DATA/answers.jsonl"
  for kind in story qa instruct summary; do
    zstdcat "$CORPUS/$kind.valid.jsonl.zst" | jq -c '{category: .kind, prompt: (if (.text | contains("\nASSISTANT:"))
      then (.text | split("\nASSISTANT:")[0] + "\nASSISTANT:") else (.text | split(" ")[:24] | join(" ")) end)}' | awk 'NR % 3 == 1'
  done > "$DATA/heldout.jsonl"
}

train_on() { # FILE NAME METHOD STEPS RATE OPTIONS...
  local file=$1 name=$2 method=$3 steps=$4 rate=$5 resume=
  shift 5
  [ ! -e "$OUT/$name.gguf" ] || return 0
  [ ! -e "$OUT/$name.gguf.checkpoint" ] || resume=--resume
  "$FORERUN" train "$method" -m "$TARGET" --data "$DATA/$file" -o "$OUT/$name.gguf" --type q8_0 --steps "$steps" \
    --batch 16 --lr "$rate" --decay linear --final-lr 0 -t 1 --plot "$OUT/$name.svg" $resume "$@"
}

train() { train_on answers.jsonl "$@"; }

# The number of steps that take that many minutes of processor time: a few steps are timed, without the first. All seeds of a form
# have the number that was found for the first one, and an interrupted run keeps its number. With FORM_STEPS, a phase that has a part of
# MINUTES has the same part of FORM_STEPS.
steps_in() { # MINUTES NAME METHOD RATE OPTIONS...
  local minutes=$1 kind method=$3 rate=$4
  [ -z "$FORM_STEPS" ] || { jq -n "[1, ($FORM_STEPS * $minutes / $MINUTES | round)] | max"; return; }
  kind=$(sed 's/[.][0-9]*//' <<< "$2")
  shift 4
  if [ ! -e "$OUT/$kind-$minutes.steps" ]; then
    rm -f "$OUT/probe-$kind".*
    train "probe-$kind" "$method" 10 "$rate" "$@" --valid 0 > "$OUT/probe-$kind.txt" 2>&1 || { cat "$OUT/probe-$kind.txt" >&2; return 1; }
    jq -rs --argjson minutes "$minutes" '[1, (60 * $minutes * (length - 1) / (.[-1].cpu_seconds - .[0].cpu_seconds) | floor)] | max' \
      "$OUT/probe-$kind.gguf.log.jsonl" > "$OUT/$kind-$minutes.steps"
  fi
  cat "$OUT/$kind-$minutes.steps"
}

train_for() { # MINUTES NAME METHOD RATE OPTIONS...
  local minutes=$1 name=$2 method=$3 rate=$4 steps
  shift 4
  steps=$(steps_in "$minutes" "$name" "$method" "$rate" "$@")
  train "$name" "$method" "$steps" "$rate" "$@"
}

# Phases of equal processor time, each METHOD and its options, which begin where the one before ended. The learning rate falls from
# phase to phase as in one run.
train_phases() { # NAME RATE OPTIONS PHASE...
  local name=$1 rate=$2 options=$3 minutes n=$(($# - 3)) i=0 phase file= begin
  minutes=$(jq -n "$MINUTES / $n")
  for phase in "${@:4}"; do
    begin=${file:+--warm-up 0 --init $OUT/$file.gguf}
    i=$((i + 1))
    file=$name-phase$i
    if [ $i = $n ]; then file=$name; fi
    [ -e "$OUT/$file.gguf" ] || train_for "$minutes" "$file" "${phase%% *}" "$(jq -n "$rate * $((n - i + 1)) / $n")" ${phase#* } $options $begin \
      --final-lr "$(jq -n "$((n - i)) / $((n - i + 1))")" $([ $i = $n ] || echo --type f32)
  done
}

train_method() { # METHOD
  case $1 in
    lyanna) if [ "$CURRICULUM" ]; then train_phases lyanna 0.005 "$LYANNA" "lyanna --steps-ahead 3" "lyanna --steps-ahead $CURRICULUM"; else train_for "$MINUTES" lyanna lyanna 0.005 $LYANNA; fi ;;
    eagle) train_for "$MINUTES" eagle eagle 0.005 ;;
    hydra) train_for "$MINUTES" hydra hydra 0.003 --lm-head target ;;
    *) train_for "$MINUTES" "$1" "$1" 0.003 ;;
  esac
}

stage_drafters() {
  for method in $METHODS; do train_method "$method"; done
}

# Eagle as published, HASS, and both one after the other; lyanna in the paper's form and in the separate one, this also with its later steps
# learned at drawn places, and both in phases of 1, 3 and 5 steps ahead, of which the separate form begins as an eagle that looks one step ahead; hydra with the target's LM head and with
# heads of its own; dspark is dflash with a Markov head.
train_form() { # FORM SEED
  local name=$1.$2 seed="--seed $2"
  case $1 in
    paper | separate) train_for "$MINUTES" "$name" lyanna 0.005 --form $1 $seed ;;
    separate-drawn) train_for "$MINUTES" "$name" lyanna 0.005 --form separate --anchors 32 $seed ;;
    paper-1-3-5) train_phases "$name" 0.005 "--form paper $seed" "lyanna --steps-ahead 1" "lyanna --steps-ahead 3" "lyanna --steps-ahead 5" ;;
    separate-1-3-5) train_phases "$name" 0.005 "$seed" "eagle --recipe eagle" "lyanna --form separate --steps-ahead 3" \
      "lyanna --form separate --steps-ahead 5" ;;
    eagle | hass) train_for "$MINUTES" "$name" eagle 0.005 --recipe $1 $seed ;;
    eagle-hass) train_phases "$name" 0.005 "$seed" "eagle --recipe eagle" "eagle --recipe hass" ;;
    hydra) train_for "$MINUTES" "$name" hydra 0.003 --lm-head target $seed ;;
    hydra-own) train_for "$MINUTES" "$name" hydra 0.003 $seed ;;
    hydra-plus) train_for "$MINUTES" "$name" hydra 0.003 --lm-head target --prefix $seed ;;
    space) train_for "$MINUTES" "$name" space 0.005 --batch 4 $seed ;;
    dspark) train_for "$MINUTES" "$name" dflash 0.003 --markov vanilla --markov-rank 64 $seed ;;
    *) train_for "$MINUTES" "$name" "$1" 0.003 $seed ;;
  esac
}

stage_forms() {
  local seed form
  for seed in $SEEDS; do
    for form in $FORMS; do
      [ -e "$OUT/$form.$seed.gguf" ] || train_form "$form" "$seed"
    done
  done
}

method_of_form() {
  case $1 in
    paper* | separate*) echo lyanna ;;
    eagle | hass | eagle-hass) echo eagle ;;
    hydra*) echo hydra ;;
    dspark) echo dflash ;;
    *) echo "$1" ;;
  esac
}

# The drafts of all finished trainings of a form, in trees of that depth, with OPTIONS.
drafts_of_form() { # FORM DEPTH OPTIONS
  local seed method shape=
  method=$(method_of_form "$1")
  case $method in
    lyanna | eagle | eagle3 | mtp) shape=,depth=$2,top=4 ;;
    redrafter) shape=,length=$2 ;;
    dflash) shape=,depth=$2 ;;
  esac
  for seed in $SEEDS; do
    [ ! -e "$OUT/$1.$seed.gguf" ] || printf -- '--draft %s:file=%s/%s.%s.gguf%s%s ' $method "$OUT" "$1" "$seed" "$shape" "$3"
  done
}

# Name, step 1, 2, 3 of the last validation, %, for each training; or tokens per step for each draft: sorted by form.
accuracies() {
  local seed form
  for form in $FORMS; do
    for seed in $SEEDS; do
      [ ! -e "$OUT/$form.$seed.gguf" ] || jq -rs --arg form "$form" '[.[] | select(.valid_accuracy)][-1].valid_accuracy |
        [$form] + [range(3) as $step | .[$step] // empty | . * 100] | @tsv' "$OUT/$form.$seed.gguf.log.jsonl"
    done
  done
}

acceptances() { # TABLE
  jq -r '.summary[] | select(.category == "all" and .method != "plain") |
    [(.method | sub(".*/"; "") | sub("[.][0-9]+[.]gguf"; "") | sub(",(depth|length)=[0-9]+"; "") | sub(",top=4"; "") | sub(","; " ")), .acceptance_length] | @tsv' \
    "$OUT/$1.json"
}

# The mean of each column over the lines with the same name, and the half of the range: the spread over the seeds.
mean_and_spread() {
  awk -F'\t' '{ if (!($1 in n)) names[++n_names] = $1
      n[$1]++
      for (i = 2; i <= NF; i++) {
        k = $1 SUBSEP i
        if (n[$1] == 1) low[k] = high[k] = $i
        sum[k] += $i; if ($i < low[k]) low[k] = $i; if ($i > high[k]) high[k] = $i } if (NF > columns) columns = NF }
    END { for (j = 1; j <= n_names; j++) {
        printf "| %s | %d |", names[j], n[names[j]]
        for (i = 2; i <= columns; i++) { k = names[j] SUBSEP i; if (k in sum) printf " %.2f ± %.2f |", sum[k] / n[names[j]], (high[k] - low[k]) / 2; else printf "  |" }
        print "" } }'
}

stage_forms_tables() {
  local temp form shape name
  printf 'Held-out accuracy at steps 1, 2, 3, %%:\n'
  accuracies | mean_and_spread
  for temp in 0 1; do
    for shape in 3:12 5:16; do
      printf 'Tokens per step at temperature %s, depth %s, %s nodes:\n' $temp "${shape%:*}" "${shape#*:}"
      for form in $FORMS; do
        [ "$(drafts_of_form "$form" 0 "")" ] || continue
        name=forms-$form-depth${shape%:*}-t$temp
        held_out "$name" --temp $temp --tree-budget "${shape#*:}" $(drafts_of_form "$form" "${shape%:*}" ""
          [ "$(method_of_form "$form")" != lyanna ] || drafts_of_form "$form" "${shape%:*}" ,live=0) > /dev/null
        acceptances "$name"
      done | mean_and_spread
    done
  done
}

# Minutes and mean held-out accuracy of steps 1 to 3, in %; BEFORE: minutes of an earlier run that it continues.
curve() { # NAME BEFORE
  jq -r --argjson before "$2" 'select(.valid_accuracy) | [.cpu_seconds / 60 + $before, 100 * (.valid_accuracy[0:3] | add / length)] | @tsv' \
    "$OUT/$1.gguf.log.jsonl"
}

minutes_of() { jq -s '.[-1].cpu_seconds / 60' "$OUT/$1.gguf.log.jsonl"; } # NAME

stage_curves() {
  local method plots=
  for method in $METHODS; do
    if [ "$method" = lyanna ] && [ "$CURRICULUM" ]; then
      { curve lyanna-first 0; curve lyanna "$(minutes_of lyanna-first)"; } > "$OUT/curve.$method.tsv"
    else curve "$method" 0 > "$OUT/curve.$method.tsv"; fi
    plots="$plots${plots:+, }'$OUT/curve.$method.tsv' with linespoints pt 7 ps 0.4 title '$method'"
  done
  gnuplot <<EOF
set terminal svg size 760,420 background rgb 'white' font 'sans,13'
set output 'research/plots/learned-curves.svg'
set title 'Mean held-out accuracy of steps 1 to 3, %'
set xlabel 'minutes of one core'
set xrange [0:*]
set grid ytics
set key outside right top
plot $plots
EOF
}

stage_ablations() {
  local paper="--form paper --rank 64"
  train lyanna-short lyanna 200 0.005 $paper
  train lyanna-no-info lyanna 200 0.005 --form paper --rank 0
  train lyanna-no-first lyanna 200 0.005 $paper --first-token none
  train lyanna-neither lyanna 200 0.005 --form paper --rank 0 --first-token none
  train lyanna-hot lyanna 200 0.005 $paper --hot-tokens 1024
  train eagle-short eagle 200 0.005
  train eagle-info eagle 200 0.005 --rank 64
}

# The original continuations of the texts that the answers begin with, cut where distill-data cuts them.
stage_labels() {
  cat "$DATA"/cold.*.answers.jsonl > "$DATA/greedy.jsonl"
  cat "$DATA"/{cold,warm}.{story,qa,instruct,summary}.jsonl | jq -c '.text as $t | if ($t | contains("\nASSISTANT:"))
    then ($t | split("\nASSISTANT:")) as $p | {prompt: ($p[0] + "\nASSISTANT:"), response: ($p[1:] | join("\nASSISTANT:"))}
    else ($t | split(" ")) as $w | {prompt: ($w[:24] | join(" ")), response: (" " + ($w[24:] | join(" ")))} end
    | select(.response | length > 1)' > "$DATA/corpus.jsonl"
  for file in answers greedy corpus; do
    train_on $file.jsonl redrafter-soft-$file redrafter 100 0.003
    train_on $file.jsonl redrafter-hard-$file redrafter 100 0.003 --labels hard
  done
  train redrafter-info redrafter 100 0.003 --rank 64
  train redrafter-embedding redrafter 100 0.003 --start embedding
}

# Few data, so that there are several epochs: every eighth answer, with other answers held out.
stage_epochs() {
  awk 'NR % 8 == 1' "$DATA/answers.jsonl" > "$DATA/eighth.jsonl"
  awk 'NR % 76 == 3' "$DATA/answers.jsonl" > "$DATA/eighth-valid.jsonl"
  train_on eighth.jsonl lyanna-all-epochs lyanna 330 0.005 --form paper --rank 64 --valid "$DATA/eighth-valid.jsonl" --valid-every 110
  train_on eighth.jsonl lyanna-hot-epochs lyanna 330 0.005 --form paper --rank 64 --valid "$DATA/eighth-valid.jsonl" --valid-every 110 --hot-tokens 1024
}

stage_long_epochs() {
  train_on answers.jsonl lyanna-all-long lyanna 1766 0.005 --form paper --rank 64 --valid-every 883
  train_on answers.jsonl lyanna-hot-long lyanna 1766 0.005 --form paper --rank 64 --valid-every 883 --hot-tokens 1024
}

stage_epochs_table() { # mean accuracy of three steps at the end of each epoch, %
  for name in all hot; do
    jq -r 'select(.valid_accuracy) | [.step / 110, (.valid_accuracy | add / 3 * 1000 | round / 10)] | @tsv' \
      "$OUT/lyanna-$name-epochs.gguf.log.jsonl" > "$OUT/table2.$name.tsv"
  done
  paste "$OUT"/table2.{all,hot}.tsv
  gnuplot <<EOF
set terminal svg size 560,340 background rgb 'white' font 'sans,13'
set output 'research/plots/learned-lyanna-table2.svg'
set title 'Lyanna: mean held-out accuracy of three steps, %'
set xlabel 'epoch of 2781 answers'
set xtics 1
set grid ytics
set key bottom right
plot '$OUT/table2.all.tsv' with linespoints pt 7 title 'all 4096 tokens', '$OUT/table2.hot.tsv' with linespoints pt 7 title '1024 hot tokens'
EOF
}

held_out() { # NAME OPTIONS...
  local name=$1
  shift
  "$FORERUN" bench -m "$TARGET" "$DATA/heldout.jsonl" --raw --limit 9 -n 96 --runs 1 --chain none --json "$OUT/$name.json" "$@" |
    tee "$OUT/$name.txt"
}

all_methods() {
  for method in lyanna eagle redrafter medusa hydra; do printf -- '--draft %s:file=%s/%s.gguf ' $method "$OUT" $method; done
  printf -- '--draft eagle:file=%s/eagle.gguf,top=4 ' "$OUT"
}

stage_tables() {
  local L=lyanna:file=$OUT/lyanna.gguf
  for temp in 0 0.7 1; do
    held_out "methods-t$temp" --temp $temp --tree-budget 16 $(all_methods) --draft "$L+ngram-trie" --draft ngram-trie
    held_out "variants-t$temp" --temp $temp --tree-budget 16 --draft "eagle:file=$OUT/eagle.gguf,top=8,depth=7" \
      --draft "eagle:file=$OUT/eagle.gguf,top=4,depth=6" --draft "$L,depth=6" --draft "$L,live=0" --draft sps:model=models/draft.gguf \
      --draft recycling
    [ $temp = 0 ] || held_out "uncoupled-t$temp" --temp $temp --tree-budget 16 --draft "eagle:file=$OUT/eagle.gguf,top=4,coupled=0" \
      $(for method in lyanna redrafter hydra medusa; do printf -- '--draft %s:file=%s/%s.gguf,coupled=0 ' $method "$OUT" $method; done) \
      --draft sps:model=models/draft.gguf,coupled=0 --draft recycling:coupled=0
    held_out "lyanna-table1-t$temp" --temp $temp --tree-budget 16 --draft "lyanna:file=$OUT/lyanna-short.gguf,depth=3,resample=off,live=0" \
      --draft "lyanna:file=$OUT/lyanna-no-info.gguf,depth=3,resample=off,live=0" \
      --draft "lyanna:file=$OUT/lyanna-no-first.gguf,depth=3,resample=off,live=0" \
      --draft "lyanna:file=$OUT/lyanna-neither.gguf,depth=3,resample=off,live=0"
    held_out "lyanna-fig12-t$temp" --temp $temp --tree-budget 16 --draft "$L,resample=off" --draft "$L,fusion=off" --draft "$L"
    held_out "lyanna-beyond-t$temp" --temp $temp --tree-budget 24 --draft "$L,depth=3,fresh=12,resample=off" \
      --draft "$L,depth=3,fresh=12,resample=0"
    held_out "labels-t$temp" --temp $temp --tree-budget 16 $(for text in answers greedy corpus; do for labels in soft hard; do
      printf -- '--draft redrafter:file=%s/redrafter-%s-%s.gguf ' "$OUT" $labels $text; done; done)
    held_out "info-t$temp" --temp $temp --tree-budget 16 --draft "eagle:file=$OUT/eagle-short.gguf,top=4" \
      --draft "eagle:file=$OUT/eagle-info.gguf,top=4" --draft "redrafter:file=$OUT/redrafter-soft-answers.gguf" \
      --draft "redrafter:file=$OUT/redrafter-info.gguf" --draft "redrafter:file=$OUT/redrafter-embedding.gguf"
  done
  for width in 1 2 4 8; do
    held_out "labels-width-$width" --tree-budget $((5 * width)) $(for text in answers corpus; do for labels in soft hard; do
      printf -- '--draft redrafter:file=%s/redrafter-%s-%s.gguf,length=5,width=%s ' "$OUT" $labels $text $width; done; done)
  done
  for width in 2 4 8 12; do
    held_out "redrafter-fig6-w$width" --limit 3 --tree-budget 60 --draft "redrafter:file=$OUT/redrafter.gguf,width=$width,length=5"
  done
}

# Batches are smaller than the others', because derivatives run through the whole target and few numbers are learned.
stage_space() {
  local blocks
  for blocks in 1 0; do
    "$FORERUN" train space -m "$TARGET" --data "$DATA/answers.jsonl" -o "$OUT/space-$blocks.gguf" --type q8_0 --steps 150 --batch 4 \
      --lr 0.005 --blocks $blocks --valid-every 75 -t 1 --plot "$OUT/space-$blocks.svg"
  done
  for temp in 0 0.7 1; do
    held_out "space-t$temp" --temp $temp --tree-budget 16 --draft "space:file=$OUT/space-1.gguf" --draft "space:file=$OUT/space-0.gguf" \
      --draft "medusa:file=$OUT/medusa.gguf" --draft "eagle:file=$OUT/eagle.gguf,top=4"
  done
}

stage_eagle3() {
  [ -e "$OUT/eagle.gguf" ] || train_method eagle
  train_for "$MINUTES" eagle3 eagle3 0.003
  for temp in 0 0.7 1; do
    held_out "eagle3-t$temp" --temp $temp --tree-budget 16 --draft "eagle3:file=$OUT/eagle3.gguf,top=4" \
      --draft "eagle:file=$OUT/eagle.gguf,top=4"
  done
}

stage_dflash() {
  [ -e "$OUT/eagle.gguf" ] || train_method eagle
  train_for "$MINUTES" dflash dflash 0.003
  for temp in 0 0.7 1; do
    for budget in 8 16 32; do
      held_out "dflash-$budget-t$temp" --temp $temp --tree-budget $budget --draft "dflash:file=$OUT/dflash.gguf" --draft "eagle:file=$OUT/eagle.gguf,top=4"
    done
  done
}

stage_widths() {
  local e=eagle:file=$OUT/eagle l=lyanna:file=$OUT/lyanna options="top=4 top=3 top=2 top=3,depth=6" drafts=()
  for o in $options; do drafts+=(--draft "$e.gguf,$o" --draft "$l.gguf,$o"); done
  for budget in 4 8 12 16; do held_out "widths-$budget" --runs 3 --tree-budget $budget "${drafts[@]}"; done
  make -s build/release/bench/bench_lend
  build/release/grow_model "$TARGET" --layers 32 --ffn 16384 -o "$OUT/deep.gguf"
  for name in eagle lyanna; do build/release/bench/bench_lend "$OUT/$name.gguf" "$OUT/deep.gguf" "$OUT/$name-deep.gguf"; done
  for budget in 8 16; do
    TARGET=$OUT/deep.gguf held_out "deep-$budget" --limit 3 -n 48 --tree-budget $budget --draft "$e-deep.gguf,top=4" --draft "$l-deep.gguf,top=4" \
      --draft "$e-deep.gguf,top=3,depth=6" --draft "$l-deep.gguf,top=3,depth=6"
  done
}

# A row for each method: tokens per step, acceptance by depth, nodes per step, tokens/s and its ratio to plain decoding.
report_one() { # FILE CATEGORY
  jq -r --arg c "$2" '.summary[] | select(.category == $c) |
    def percent: . * 1000 | round / 10;
    "| `" + (.method | sub("[^=]*/"; "")) + "` | " + (.acceptance_length * 100 | round / 100 | tostring) + " | " +
    ([.acceptance_by_step[0:5][] | percent | tostring] | join(", ")) + " | " + (.drafted_per_step * 10 | round / 10 | tostring) +
    " | " + (.tokens_per_s.mean | round | tostring) + " | " + (.speed_up.mean * 100 | round / 100 | tostring) + " | " +
    (if .n_steps > 0 then ((.counters["lyanna.resampled"].drafted // 0) / .n_steps * 100 | round / 100 | tostring) + ", " +
    ((.counters["lyanna.resampled"].accepted // 0) / .n_steps * 1000 | round / 1000 | tostring) else "" end) + " |"' "$1"
}

stage_report() {
  for file in "$OUT"/{methods,variants,uncoupled,lyanna-table1,lyanna-fig12,labels,info}-t*.json "$OUT"/{labels-width,redrafter-fig6}-*.json; do
    printf '\n%s\n\n| method | tokens a pass | accepted at depth 1, 2, ..., %% | nodes | tokens/s | of plain | re-sampled, accepted a step |\n' \
      "$(basename "$file" .json)"
    printf '|---|---|---|---|---|---|---|\n'
    report_one "$file" all
  done
}

by_method() { # FILE JQ-EXPRESSION: name and value of each method of a table
  jq -r ".summary[] | select(.category == \"all\" and .method != \"plain\") | [(.method | sub(\":file=[^,+]*/\"; \" \") | sub(\"[.]gguf\"; \"\")), ($2)] | flatten | @tsv" "$1"
}

stage_plots() {
  local plots=research/plots temp
  for temp in 0 0.7 1; do by_method "$OUT/methods-t$temp.json" .acceptance_length | cut -f2 > "$OUT/t$temp.column"; done
  by_method "$OUT/methods-t0.json" .acceptance_length | cut -f1 | sed 's/^\([a-z-]*\) [a-z]*/\1/; s/,/ /g' | paste - "$OUT"/t{0,0.7,1}.column > "$OUT/acceptance.tsv"
  by_method "$OUT/lyanna-table1-t0.json" '.acceptance_by_step[0:3]' | sed 's/,depth=3,resample=off,live=0//; s/^lyanna //' > "$OUT/table1.tsv"
  gnuplot <<EOF
set terminal svg size 760,380 background rgb 'white' font 'sans,13'
set datafile separator tab
set style data histogram
set style histogram clustered gap 1
set style fill solid 0.85 border -1
set grid ytics
set yrange [0:*]
set key outside top center horizontal
set output '$plots/learned-acceptance.svg'
set title 'Tokens of one pass of the target, 16 nodes'
set xtics rotate by -20
plot '$OUT/acceptance.tsv' using 2:xtic(1) title 'greedy', '' using 3 title 'T 0.7', '' using 4 title 'T 1'
set output '$plots/learned-lyanna-table1.svg'
set title 'Lyanna: accepted at step 1, 2, 3 of the steps that got there'
set xtics norotate
plot '$OUT/table1.tsv' using 2:xtic(1) title 'step 1', '' using 3 title 'step 2', '' using 4 title 'step 3'
EOF
  cp "$OUT/lyanna-short.svg" "$plots/learned-lyanna-loss.svg"
  cp "$OUT/eagle-short.svg" "$plots/learned-eagle-loss.svg"
  cp "$OUT/redrafter-soft-answers.svg" "$plots/learned-redrafter-loss.svg"
}

[ $# -gt 0 ] || { sed -n '2,32s/^# \{0,1\}//p' "$0"; exit 2; }
for stage in "$@"; do "stage_$stage"; done
