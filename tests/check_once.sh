#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# check_once.sh RELEASE ASAN: folders of builds. Every test of a program that CI divides between the two
# (ONCE in CMakeLists.txt) is run by one of them.
set -euo pipefail
release=$1 asan=$2
for folder in "$release" "$asan"; do
    [[ -d $folder/tests/filters ]] || { echo "no tests in $folder: ./msalab test comes before check" >&2; exit 1; }
done

# tests_of FOLDER PROGRAM FILTER: the full names, sorted.
tests_of() {
    "$1/bin/$2" --gtest_list_tests --gtest_filter="$3" | awk '
        /^[^ ].*[.]( |$)/ { suite = $1; next }
        /^  / { print suite $1 }' | sort
}

missing=0
for list in "$release"/tests/filters/*; do
    program=${list##*/}
    all=$(tests_of "$release" "$program" '*')
    run=$(
        [[ ! -f $asan/tests/filters/$program ]] || tests_of "$asan" "$program" "$(<"$asan/tests/filters/$program")"
        [[ ! -s $list ]] || tests_of "$release" "$program" "$(<"$list")"
    )
    left=$(comm -23 <(echo "$all") <(sort -u <<<"$run"))
    [[ -z $left ]] || {
        printf 'neither build runs these tests of %s (tests/sanitizers.cmake):\n%s\n' "$program" "$left" >&2
        missing=1
    }
done
exit "$missing"
