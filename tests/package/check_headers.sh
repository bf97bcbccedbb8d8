#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# check_headers.sh FOLDER: of installed headers, every header of ours that they include is installed.
set -euo pipefail
cd "$1"
missing=0
while IFS=: read -r header included; do
    if [[ ! -f $included ]]; then
        echo "$header includes $included, which is not installed" >&2
        missing=1
    fi
done < <(grep -rhoH --include='*.h' '^#include "[^"]*"' . | sed 's/#include "\(.*\)"/\1/')
[[ $(find . -name '*.h' | wc -l) -gt 20 ]] || { echo "there are no headers in $1" >&2; exit 1; }
exit "$missing"
