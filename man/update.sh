#!/bin/sh
# man/update.sh [PROGRAM]: writes what follows from tables in the program (build/forerun): the section OPTIONS of man/forerun.1 and the
# list of drafters of docs/methods/README.md. Run it in the root of the project after `make`.
set -e
program=${1:-build/forerun}
new=$(mktemp)
trap 'rm -f "$new"' EXIT
"$program" --man > "$new"
sed -i -e "/^\.\\\\\" END OPTIONS/r $new" -e '/^\.\\" BEGIN OPTIONS/,/^\.\\" END OPTIONS/d' man/forerun.1
{ echo '<!-- BEGIN DRAFTERS -->'; "$program" --drafters; echo '<!-- END DRAFTERS -->'; } > "$new"
sed -i -e "/^<!-- END DRAFTERS -->/r $new" -e '/^<!-- BEGIN DRAFTERS -->/,/^<!-- END DRAFTERS -->/d' docs/methods/README.md
