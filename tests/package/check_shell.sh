#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# check_shell.sh PREFIX BINDIR DATADIR MANDIR: of an installed package, every program has its manual
# page, without faults where man is there, and bash completes its options and
# their values; so do fish and zsh, where they are.
set -euo pipefail
cd "$1"
bin=$2 completions=$3/bash-completion/completions pages=$4/man1

fail() {
    echo "$*" >&2
    exit 1
}

# complete_after COMMAND WORD... WORD: what bash offers for the last word.
complete_after() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    _msalab_complete "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    echo "${COMPREPLY[*]}"
}

for program in "$bin"/msa-*; do
    name=${program##*/} page=$pages/${program##*/}.1
    help=$("$program" --help-all)
    [[ -s $page ]] || fail "no manual page of $name"
    if command -v man >/dev/null; then
        faults=$(MANROFFSEQ='' LC_ALL=C.UTF-8 man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>&1 >/dev/null)
        [[ -z $faults ]] || fail "$page: $faults"
        text=$(LC_ALL=C.UTF-8 MANWIDTH=200 man -l "$page" | col -bx)
        question=${help%%$'\n'*}
        [[ $text == *"$name - ${question:${#name}+2:60}"* ]] || fail "$page does not say: $question"
        # Every line of the options stands there as the program prints it.
        while IFS= read -r line; do
            [[ $text == *"$line"* ]] || fail "$page lacks: $line"
        done < <(grep -E '^  --' <<<"$help" | sed 's/ *$//')
    fi
    [[ -s $completions/$name ]] || fail "no completion of $name"
    # shellcheck source=/dev/null
    source "$completions/$name"
    complete -p "$name" >/dev/null || fail "bash does not complete $name"
    [[ $(complete_after "$program" --ver) == --version ]] || fail "$name --ver is not completed"
done
[[ $(complete_after "$bin/msa-cost" --con) == --context ]] || fail "msa-cost --con"
offered=$(complete_after "$bin/msa-cost" --)
for option in --preset --results --block-size --help; do
    [[ " $offered " == *" $option "* ]] || fail "msa-cost -- does not offer $option: $offered"
done
[[ $(complete_after "$bin/msa-cost" "$pages/msa-cos") == "$pages/msa-cost.1" ]] || fail "no files"

# Values: of one option, in a list, after =, and of a table of names.
offers() {
    local wanted=$1
    shift
    [[ " $(complete_after "$@") " == *" $wanted "* ]] || fail "$* does not offer $wanted: $(complete_after "$@")"
}
offers oracle "$bin/msa-analyze" --selectors ''
offers oracle,mean-key "$bin/msa-analyze" --selectors oracle,me
offers mean-key "$bin/msa-reuse" --selectors = me
offers cuda-sm80 "$bin/msa-analyze" --backend cu
offers decode "$bin/msa-compare" --phase ''
offers e4m3,int8 "$bin/msa-precision" --formats e4m3,int
offers sparse_attention "$bin/msa-bench" --stages sparse
offers h800 "$bin/msa-cost" --hardware h8

# Fish and zsh, of one program, by the names that the shells look for.
if command -v fish >/dev/null; then
    offered=$(PATH=$(realpath "$bin"):$PATH fish --no-config -c "source '$3/fish/vendor_completions.d/msalab.fish'
        complete -C 'msa-cost --con'")
    [[ $offered == --context ]] || fail "fish offers for msa-cost --con: $offered"
    offered=$(PATH=$(realpath "$bin"):$PATH fish --no-config -c "source '$3/fish/vendor_completions.d/msalab.fish'
        complete -C 'msa-analyze --selectors oracle,mean-k'")
    [[ $offered == oracle,mean-key ]] || fail "fish offers in a list of --selectors: $offered"
fi
if command -v zsh >/dev/null; then
    zsh -n "$3/zsh/site-functions/_msalab" || fail "zsh does not read its completion"
    offered=$(zsh -f -c "words=('$bin/msa-cost' --con) CURRENT=2 PREFIX=--con
        compadd() { shift; print -l -- \$@; }
        source '$3/zsh/site-functions/_msalab'" | grep -e --context)
    [[ $offered == --context ]] || fail "zsh does not offer --context of msa-cost: $offered"
    offered=$(zsh -f -c "words=('$bin/msa-analyze' --selectors oracle,me) CURRENT=3 PREFIX=oracle,me
        compadd() { shift; print -l -- \$@; }
        source '$3/zsh/site-functions/_msalab'" | grep -x oracle,mean-key) || fail "zsh offers no list of --selectors"
fi
