#!/bin/sh
# Run the example as a user would, and show each command before it runs. It needs the dlapp commands on PATH, and a
# python3 there that has numpy and matplotlib: `make demo` sees to both.
set -eu
cd "$(dirname "$0")"

run() {
    printf '\n\033[1m$ %s\033[0m\n' "$*"
    "$@"
}
[ -t 1 ] || run() { printf '\n$ %s\n' "$*"; "$@"; }

echo "In $(pwd):"
run dlapp-launcher --wait dl_app.properties
run dlapp-status last
run dlapp-logs last

echo
python3 show_results.py results
cat <<END

The application is on record: dlapp-list, dlapp-status last and dlapp-logs last show it from any directory.
Now yours: edit $(pwd)/dl_app.properties and type

    . $(dirname "$(command -v dlapp-launcher)")/activate
    cd $(pwd)
    dlapp-launcher dl_app.properties
END
