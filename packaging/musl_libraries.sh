#!/bin/sh
# musl_libraries.sh SOURCES PREFIX COMPILER... - builds the libraries of the program as archives for musl, because Debian's are built for
# glibc, and installs them into PREFIX. SOURCES/NAME is an unpacked source package of Debian (`make static-musl` fetches them) that also
# contains its patches, NAME_*.debian.tar.*, which this script applies. What forerun does not use of a library is left out. Takes some
# five minutes of two cores, half of them for OpenSSL.
set -eu
sources=$(realpath "$1")
mkdir -p "$2"
prefix=$(realpath "$2")
shift 2
# The CC and CFLAGS of a make that calls this script are not for the libraries.
unset MAKEFLAGS MFLAGS MAKELEVEL
CC="$* -w -O2 -fPIC"
machine=$("$@" -dumpmachine)
arch=${machine%%-*}
AR=$machine-ar RANLIB=$machine-ranlib
PKG_CONFIG_LIBDIR=$prefix/lib/pkgconfig
# No archive has a time, and no object the name of the folder that it was built in.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0}
ZERO_AR_DATE=1
export CC AR RANLIB PKG_CONFIG_LIBDIR SOURCE_DATE_EPOCH ZERO_AR_DATE
jobs=${JOBS:--j$(nproc)}
tree=$prefix/build
rm -rf "$tree"
mkdir -p "$tree"

# Copies the sources of NAME, applies Debian's patches and stays in the copy.
begin() { # NAME
    cp -r "$sources/$1" "$tree/$1"
    cd "$tree/$1"
    for patches in "$1"_*.debian.tar.*; do
        [ -e "$patches" ] || continue
        tar -xf "$patches" debian/patches 2>/dev/null || continue
        [ -e debian/patches/series ] || continue
        sed 's/#.*//' debian/patches/series | while read -r name _; do
            [ -z "$name" ] || patch -s -p1 <"debian/patches/$name"
        done
    done
    for file in aclocal.m4 Makefile.in configure; do [ ! -e "$file" ] || touch "$file"; done # newer than what they are made of
}
configure() { sh ./configure -q --prefix="$prefix" --libdir="$prefix/lib" --host="$arch-linux-musl" --disable-shared --enable-static "$@"; }
build() { make -s $jobs "$@" >"$tree/log" 2>&1 || { tail -30 "$tree/log" >&2; exit 1; }; }

# Writes the file of NAME for pkg-config.
describe() { # NAME VERSION LIBRARY
    mkdir -p "$prefix/lib/pkgconfig"
    printf 'Name: %s\nDescription: %s\nVersion: %s\nCflags: -I%s\nLibs: -L%s %s\n' "$1" "$1" "$2" "$prefix/include" "$prefix/lib" "$3" \
        >"$prefix/lib/pkgconfig/$1.pc"
}

begin pcre2
configure --enable-jit --disable-pcre2grep-callout >/dev/null
build libpcre2-8.la
build install-libLTLIBRARIES install-pkgconfigDATA install-nodist_includeHEADERS bin_PROGRAMS= lib_LTLIBRARIES=libpcre2-8.la

begin utf8proc
build prefix="$prefix" libutf8proc.a libutf8proc.pc
install -D -m 644 -t "$prefix/lib" libutf8proc.a
install -D -m 644 -t "$prefix/include" utf8proc.h
install -D -m 644 -t "$prefix/lib/pkgconfig" libutf8proc.pc

begin xxhash
build PREFIX="$prefix" libxxhash.a libxxhash.pc
install -D -m 644 -t "$prefix/lib" libxxhash.a
install -D -m 644 -t "$prefix/include" xxhash.h xxh3.h
install -D -m 644 -t "$prefix/lib/pkgconfig" libxxhash.pc

# Its configure would have to be made; Android's configuration is the one that is in the sources.
begin jansson
config=jansson_config.h header=jansson.h
sed -e 's/\(JSON_HAVE_LOCALECONV\) 0/\1 1/' "android/$config" >"src/$config"
printf '#define JSON_HAVE_ATOMIC_BUILTINS 1\n' >>"src/$config"
for name in STDINT_H UNISTD_H FCNTL_H SCHED_H SYS_STAT_H SYS_TIME_H SYS_TYPES_H OPEN CLOSE READ GETPID GETTIMEOFDAY SCHED_YIELD \
    ATOMIC_BUILTINS STRTOLL; do
    printf '#define HAVE_%s 1\n' "$name"
done >src/jansson_private_config.h
for f in src/*.c; do $CC -DHAVE_CONFIG_H -DUSE_URANDOM -Isrc -c "$f" -o "${f%.c}.o"; done
"$AR" rcsD libjansson.a src/*.o
install -D -m 644 -t "$prefix/lib" libjansson.a
install -D -m 644 -t "$prefix/include" "src/$config" "src/$header"
describe jansson 2.14 -ljansson

begin libzstd
build -C lib PREFIX="$prefix" install-static install-includes install-pc

begin ncurses
configure --with-termlib --without-cxx --without-cxx-binding --without-ada --without-progs --without-tests --without-manpages \
    --disable-db-install --enable-pc-files --with-pkg-config-libdir="$prefix/lib/pkgconfig" --without-debug \
    --with-terminfo-dirs=/etc/terminfo:/lib/terminfo:/usr/share/terminfo --with-default-terminfo-dir=/usr/share/terminfo >/dev/null
build libs
build install.libs install.includes

begin libedit
CPPFLAGS="-D__STDC_ISO_10646__=201103L -I$prefix/include -I$prefix/include/ncurses" LDFLAGS="-L$prefix/lib" LIBS=-ltinfo configure --disable-examples >/dev/null
build -C src install
build install-pkgconfigDATA

begin openssl
./Configure "linux-$arch" no-shared no-async no-dso no-engine no-afalgeng no-ktls no-tests no-legacy --prefix="$prefix" --libdir=lib \
    --openssldir=/etc/ssl >/dev/null
build build_libs
build install_dev

begin libevent
CPPFLAGS="-I$prefix/include" LDFLAGS="-L$prefix/lib" configure --disable-samples --disable-libevent-regress --disable-debug-mode >/dev/null
build install

cd "$prefix"
rm -rf "$tree"
