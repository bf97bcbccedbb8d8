# shellcheck shell=bash disable=SC2034
# SPDX-License-Identifier: MIT
# What the scripts that check and time on a machine with a GPU share. Each of them sets `out`, the
# folder of its logs and records, and `bin`, the folder of its programs, and sources this file; it ends
# with `exit "$failed"`. LIMIT in the environment: seconds of all steps together. STEPS: names of those
# to run. Defaults: no limit, all.
mkdir -p "${out:?}"
: "${bin:?}"
failed=0
PATH=$PATH:/usr/local/cuda/bin
export MSA_REQUIRE=cuda OMP_WAIT_POLICY=passive

# find_libraries: those that programs of `bin` open, beside them, of the CUDA toolkit or of Python.
find_libraries() {
    local folder
    for folder in "$bin" "$bin/../experiments" /usr/local/cuda/lib64 /usr/local/cuda/lib \
        $(python3 -c 'import glob, site
print(*(p for s in site.getsitepackages() for p in glob.glob(s + "/nvidia/*/lib")))' 2>/dev/null); do
        LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
    done
    export LD_LIBRARY_PATH
}

# step NAME SECONDS COMMAND...: prints how it went and how long it took; its output is in NAME.log. A
# step that fails does not stop the others; the script fails last. Where it fails, the lines of the
# log that say why are shown.
step() {
    local name=$1 most=$2 began=$SECONDS outcome=ok left=$2
    shift 2
    rm -f "$out/$name.log"
    [[ -z ${STEPS-} || " $STEPS " == *" $name "* ]] || return 0
    [[ -z ${LIMIT-} ]] || left=$((LIMIT - SECONDS))
    if ((left < 5)); then
        outcome="no time left"
    else
        timeout -k 5 $((most < left ? most : left)) "$@" >"$out/$name.log" 2>&1 ||
            outcome="FAILED ($?)" # 124: it took too long
    fi
    printf '%-28s %-12s %4d s\n' "$name" "$outcome" $((SECONDS - began))
    [[ $outcome == ok ]] && return
    failed=1
    [[ ! -e $out/$name.log ]] ||
        grep -E -m 6 -A 8 'Failure|FAILED|=========|what\(\)|rror|msa-|NCCL' "$out/$name.log" ||
        tail -n 5 "$out/$name.log"
    return 1
}

# tests NAME FILTER [TOOL...]: tests of test_backends, of which there must be one, in a process of
# their own, so that a kernel that hangs or is wrong at one shape names the shape. The tool runs it.
tests() {
    local name=$1 filter=$2
    shift 2
    step "$name" "${TEST_SECONDS:-90}" "$@" "$bin/test_backends" --gtest_brief=1 \
        --gtest_filter="$filter" || return
    [[ -e $out/$name.log ]] || return 0 # not one of STEPS
    grep -qE '^\[  PASSED  \] [1-9]' "$out/$name.log" && return
    echo "$name: no test passed"
    failed=1
    return 1
}

# abreast COUNT COMMAND...: the command with each line of the input as its words, COUNT at once.
abreast() {
    local count=$1 running=() line process
    shift
    while read -ra line; do
        "$@" "${line[@]}" &
        running+=($!)
        ((${#running[@]} < count)) && continue
        for process in "${running[@]}"; do wait "$process" || failed=1; done
        running=()
    done
    for process in "${running[@]}"; do wait "$process" || failed=1; done
}

# bench NAME SECONDS OPTIONS...: a record of msa-bench, written after every measurement, so that a step
# that is cut off leaves what it had.
bench() {
    local name=$1 most=$2 outcome=0
    shift 2
    step "$name" "$most" "$bin/msa-bench" --samples 5 --out "$out/$name.json" --overwrite "$@" ||
        outcome=1
    [[ ! -e $out/$name.log ]] || grep -E '^(square|prefix|decode) .*: ' "$out/$name.log"
    return "$outcome"
}

# text_of KIB: text.bin, documents of this size from the files in TEXT, by default this project's.
text_of() {
    local files
    read -ra files <<<"${TEXT:-$(find analysis core experiments gpu tests python docs -name '*.cpp' -o \
        -name '*.h' -o -name '*.cu' -o -name '*.py' -o -name '*.md' | sort | tr '\n' ' ')}"
    cat "${files[@]}" | head -c 20000000 |
        split -b $(($1 * 1024)) --filter='cat; printf "\0"' - >"$out/text.bin"
}
