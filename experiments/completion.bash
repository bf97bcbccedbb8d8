# SPDX-License-Identifier: MIT
# Bash completion of the programs and of the command msalab: options as --help names them, commands
# as msalab names them, files elsewhere.

# Options in the help of the given command.
_msalab_options() { "$@" --help 2>/dev/null | grep -oE '(^|[ ,[])--[a-z][a-z0-9-]*' | grep -oE -- '--.*'; }

_msalab_complete() {
    local word=$2 asked=("$1") words=
    if [[ ${1##*/} == msalab ]]; then
        if ((COMP_CWORD == 1)); then
            words=$("$1" --help 2>/dev/null | sed -n 's/^  \([a-z][a-z-]*\) .*/\1/p')
        else
            asked+=("${COMP_WORDS[1]}")
        fi
    fi
    if [[ $word == -* && -z $words ]]; then words=$(_msalab_options "${asked[@]}"); fi
    if [[ -n $words ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word" | sort -u)
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    fi
}

complete -o filenames -F _msalab_complete msalab msa-advise msa-analyze msa-bench msa-cache \
    msa-compare msa-cost msa-fit-indexer msa-inspect msa-merge msa-precision \
    msa-pretrain msa-reuse msa-synth
