#!/bin/sh
# Replaces the section OPTIONS of man/forerun.1 by what the tables of options say. Run it in the root of the project after `make`.
set -e
new=$(mktemp)
trap 'rm -f "$new"' EXIT
build/forerun --man > "$new"
sed -i -e "/^\.\\\\\" END OPTIONS/r $new" -e '/^\.\\" BEGIN OPTIONS/,/^\.\\" END OPTIONS/d' man/forerun.1
