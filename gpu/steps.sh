# shellcheck shell=bash disable=SC2034
# SPDX-License-Identifier: MIT
# What check.sh and bench.sh share. Each sets `bin`, the folder of the programs, and `out`, the folder
# of logs and records, and sources this file from the repository's root; it ends with `summary`.
# In the environment:
#   STAGES  a regular expression of the names of the steps to run; default: all
#   LIMIT   seconds of all steps together; default: no limit
#   TEXT    files of text for runs of msa-pretrain; default: the sources of this project
mkdir -p "${out:?}"
: "${bin:?}"
failed=0
rows=()
PATH=$PATH:/usr/local/cuda/bin
# No kernel is loaded while another waits for its peer.
export MSA_REQUIRE=cuda OMP_WAIT_POLICY=passive CUDA_MODULE_LOADING=EAGER MSA_DATA_DIR=$PWD/data

# Libraries that programs of `bin` open: beside them, of the CUDA toolkit or of Python.
for folder in "$bin" "$bin/../experiments" /usr/local/cuda/lib64 /usr/local/cuda/lib \
    $(python3 -c 'import glob, site
print(*(p for s in site.getsitepackages() for p in glob.glob(s + "/nvidia/*/lib")))' 2>/dev/null); do
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
done
export LD_LIBRARY_PATH

has_torch() { python3 -c 'import torch' 2>/dev/null; }
gpus() { nvidia-smi -L 2>/dev/null | wc -l; }
wanted() { [[ $1 =~ ${STAGES:-.} ]]; }

# step NAME SECONDS PATTERN COMMAND...: its output is in NAME.log; the summary shows how it went, how
# long it took, and what in the output matches the pattern. Where it fails, the lines of the log that
# say why are shown. A step that fails does not stop the others; the script fails last.
step() {
    local name=$1 most=$2 pattern=$3 began=$SECONDS outcome=ok left=$2 allowed log=$out/$1.log
    shift 3
    wanted "$name" || return 0
    [[ -z ${LIMIT-} ]] || left=$((LIMIT - SECONDS))
    allowed=$((most < left ? most : left)) # a function reads it
    rm -f "$log"
    if ((left < 5)); then
        outcome="no time left"
    elif [[ $(type -t "$1") == function ]]; then
        "$@" >"$log" 2>&1 || outcome="FAILED ($?)"
    else
        timeout -k 5 "$allowed" "$@" >"$log" 2>&1 ||
            outcome="FAILED ($?)" # 124: it took too long
    fi
    rows+=("$(printf '%-28s %-12s %4d s  %s' "$name" "$outcome" $((SECONDS - began)) \
        "$(grep -oshE "$pattern" "$log" | sort -u | paste -sd ';')")")
    echo "${rows[-1]}"
    [[ $outcome == ok ]] && return
    failed=1
    [[ ! -e $log ]] ||
        grep -E -m 6 -A 8 'Failure|FAILED|=========|what\(\)|rror|msa-|NCCL' "$log" || tail -n 5 "$log"
    return 1
}

# summary: the GPUs and all steps once more; the script's exit status.
summary() {
    echo
    nvidia-smi --query-gpu=index,name,driver_version --format=csv,noheader || true
    printf '%s\n' "${rows[@]}"
    exit "$failed"
}

# pretrain NAME SECONDS PRESET STEPS OPTIONS...: a run of msa-pretrain in the folder NAME, without
# evaluations; its last rates.
pretrain() {
    local name=$1 most=$2 preset=$3 count=$4
    shift 4
    wanted "$name" || return 0
    [[ -e $out/text.bin ]] || text
    step "$name" "$most" '' "$bin/msa-pretrain" "$out/text.bin" --held-out-share 0.2 \
        --preset "$preset" --steps "$count" --lr-warmup 5 --probe-every 0 --eval-every 0 --save-every 0 \
        --eval-sequences 1 --eval-exercises 0 --out "$out/$name" --overwrite "$@"
    grep -hE ',(tokens_per_second|mfu),' "$out/$name/curves.csv" 2>/dev/null | tail -n 2
}

# text.bin: documents of 160 KiB, which is more than the longest context.
text() {
    local files
    read -ra files <<<"${TEXT:-$(find analysis core experiments gpu tests python docs -name '*.cpp' -o \
        -name '*.h' -o -name '*.cu' -o -name '*.py' -o -name '*.md' | sort | tr '\n' ' ')}"
    cat "${files[@]}" | head -c 20000000 |
        split -b 160K --filter='cat; printf "\0"' - >"$out/text.bin"
}
