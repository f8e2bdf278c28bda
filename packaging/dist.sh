#!/bin/sh
# dist.sh VERSION FOLDER URL - writes what a release consists of into FOLDER, from the last commit and from the static programs and Debian
# packages that have been built. `make dist` calls it in the root of a checkout. The same commit is to give the same bytes: no file has a time,
# an owner or an order of its own. Parts that have not been built are left out, with a sentence.
set -eu
version=$1
out=$2
url=$3 # where the release is published
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
umask 022

pack() { # FOLDER NAME: FOLDER/NAME becomes $out/NAME.tar.xz
    tar -C "$1" --sort=name --owner=0 --group=0 --numeric-owner --mode=go-w --mtime="@$SOURCE_DATE_EPOCH" --format=ustar -cf - "$2" |
        xz -T1 -6 >"$out/$2.tar.xz"
}

rm -rf "$out" "$out.tree"
mkdir -p "$out" "$out.tree"

# The sources. A build does not need the target in F16, which is a file of its own.
name=forerun-$version
mkdir "$out.tree/$name"
git archive HEAD . ':(exclude)models/f16' | tar -x -C "$out.tree/$name"
pack "$out.tree" "$name"
git show HEAD:models/f16/target.gguf >"$out/$name-target-f16.gguf"

# The static programs, with a man page for each command and completions for shells. The program of this machine writes those of both.
here=build/static-$(uname -m)/forerun
for arch in x86_64 aarch64; do
    program=build/static-$arch/forerun
    if [ ! -x "$program" ]; then
        echo "dist: without a program for $arch, because $program has not been built"
        continue
    fi
    strip=strip
    [ "$arch" = "$(uname -m)" ] || strip=$arch-linux-gnu-strip
    binary=$name-linux-$arch
    mkdir -p "$out.tree/$binary/man"
    $strip -o "$out.tree/$binary/forerun" "$program"
    for file in README.md LICENSE CHANGELOG.md man/forerun.1; do cp "$out.tree/$name/$file" "$out.tree/$binary/$file"; done
    if [ -x "$here" ]; then
        mkdir "$out.tree/$binary/completions"
        "$here" --man-pages "$out.tree/$binary/man"
        for shell in bash zsh fish; do "$here" --completions $shell >"$out.tree/$binary/completions/forerun.$shell"; done
    fi
    pack "$out.tree" "$binary"
done

# The Debian packages, without those of debug symbols.
if ls build/deb/*.deb >/dev/null 2>&1; then
    for deb in build/deb/*.deb; do
        case $deb in *-dbgsym_*) ;; *) cp "$deb" "$out" ;; esac
    done
else
    echo "dist: without Debian packages, because build/deb has none"
fi

# Recipes. The formula and the expression contain the hash of the source archive.
sum=$(sha256sum "$out/$name.tar.xz" | cut -d' ' -f1)
cp Dockerfile "$out/Dockerfile"
cp packaging/Dockerfile.static "$out/Dockerfile.static"
for recipe in forerun.rb forerun.nix; do
    sed -e "s/@VERSION@/$version/g" -e "s/@SHA256@/$sum/g" -e "s|@URL@|$url|g" "packaging/$recipe.in" >"$out/$recipe"
done

python3 packaging/sbom.py "$version" "$SOURCE_DATE_EPOCH" "$out/$name.tar.xz" >"$out/$name.spdx.json"
rm -rf "$out.tree"
(cd "$out" && sha256sum -- * >SHA256SUMS.new && mv SHA256SUMS.new SHA256SUMS)
ls -l "$out"
