#!/bin/sh
# macos_symbols.sh FOLDER ZIG LIBRARY... - checks that the objects for macOS below FOLDER could be linked: every symbol that they need is in
# one of them, in macOS's libSystem, whose list zig brings, or in one of the libraries. Those are named as -lNAME and taken from this system.
# It needs llvm-nm, because nm of the binutils does not read the format, and says so where there is none.
set -eu
folder=$1
zig=$2
shift 2
nm=$(command -v llvm-nm || command -v llvm-nm-14 || true)
if [ -z "$nm" ]; then
    echo "$folder: symbols were not checked, because there is no llvm-nm"
    exit 0
fi
system=$("$zig" env | sed -n 's/.*lib_dir[^"]*"[: ]*"*\([^"]*\)".*/\1/p')/libc/darwin/libSystem.tbd
[ -r "$system" ] || { echo "$folder: zig has no $system" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LC_ALL=C

find "$folder" -name '*.o' ! -path "$folder/tests/*" >"$work/objects"
xargs "$nm" --undefined-only --just-symbol-name <"$work/objects" 2>/dev/null | grep '^_' | sort -u >"$work/needed"
{
    xargs "$nm" --defined-only --just-symbol-name <"$work/objects" 2>/dev/null
    grep -oE '[A-Za-z0-9_$]+' "$system"
    printf '%s\n' ___cpu_model ___cpu_features2 # features of the processor, in the runtime of Apple's clang
    for library in "$@"; do
        "$nm" --dynamic --defined-only --just-symbol-name "$(cc -print-file-name="lib${library#-l}.so")" | sed 's/@.*//; s/^/_/'
    done
} | sort -u >"$work/known"
comm -23 "$work/needed" "$work/known" >"$work/missing"
if [ -s "$work/missing" ]; then
    echo "$folder: macOS and the libraries lack these symbols:" $(cat "$work/missing") >&2
    exit 1
fi
echo "$folder: $(wc -l <"$work/needed") symbols are in the objects, in macOS's libSystem or in the libraries"
