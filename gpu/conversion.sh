#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The experiment of docs/dense_to_msa.md on a machine with a GPU: what is missing of it.
#   gpu/conversion.sh OUT SECONDS [WORDS...]
#   gpu/conversion.sh --smoke OUT
# A run is missing unless data/conversion/records or OUT has its record, ARM-seed-S.tar. One that is under way
# when SECONDS are up stops behind a saved step in results/conversion, and goes on when this is started again on
# the same machine. WORDS go to every `msalab train`. In the environment:
#   MODEL   folder or FILE.gguf (default: results/smollm2)
#   CORPUS  archive of what `./msalab corpus` writes, unpacked into results/corpus unless that is there
#   SEEDS, ARMS, STEPS, WARMUP, CONTEXT, BATCH, ROWS, PROCESSES, DEVICE, SEQUENCES, LENGTHS, EXERCISES: see below
# --smoke: a model of the same shape with random weights, each arm for a few steps: does it run, how fast?
# msalab must be importable with the cuda backend (PYTHONPATH=build/release/python).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
began=$SECONDS smoke=0 tries=0
if [[ $1 == --smoke ]]; then smoke=1 && shift; fi
out=$1 work=results/conversion records=data/conversion/records
mkdir -p "$out" "$work"
read -ra seeds <<<"${SEEDS:-1 2 3}"
read -ra arms <<<"${ARMS:-dense msa-512 window-512 fitted msa-1024 window-1024}"
steps=${STEPS:-800} warmup=${WARMUP:-80} context=${CONTEXT:-8192} batch=${BATCH:-16} rows=${ROWS:-2}
processes=${PROCESSES:-1} device=${DEVICE:-cuda} sequences=${SEQUENCES:-24} lengths=${LENGTHS:-2048,4096,8192}
dtype=bfloat16
[[ $device != cpu ]] || dtype=float32
export CUDA_MODULE_LOADING=EAGER NCCL_NVLS_ENABLE=0 PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=true

# What tells an arm from the others; blocks of 64 tokens.
words_of() {
    case $1 in
        dense) echo --attention dense --steps "$steps" ;;
        msa-*) echo --top-k $((${1#msa-} / 64)) --steps "$steps" --warmup "$warmup" ;;
        window-*) echo --attention window --top-k $((${1#window-} / 64)) --steps "$steps" ;;
        fitted) echo --top-k 8 --steps "$warmup" --warmup "$warmup" ;;
    esac
}

# What the held-out text is measured with: of the arm's own attention, and of `fitted`, whose model is the one that
# all begin with, of what needs no training.
evaluation_of() {
    case $1 in
        dense) echo --selector oracle --budgets 512,1024 --forced-first 0 ;;
        msa-*) echo --selector index --budgets "${1##*-}" --indexer "$2/model" ;;
        window-*) echo --selector window --budgets "${1##*-}" --forced-first 1 ;;
        fitted) echo --selector index,mean-key,quest,window --budgets 512,1024 --indexer "$2/model" ;;
    esac
}

train() { # OUT WORDS...
    local launch=(python3 -m msalab.training)
    ((processes == 1)) || launch=(torchrun --standalone --nproc-per-node "$processes" -m msalab.training)
    "${launch[@]}" "$model" --out "$1" --device "$device" --context "$context" --batch "$batch" --rows "$rows" \
        --block-size 64 --save-every 200 --resume "${@:2}"
}

if ((smoke)); then
    model=$work/smoke-model batch=4
    python3 - "$model" <<'CODE'
import sys
import torch
import transformers
torch.manual_seed(0)
transformers.LlamaForCausalLM(transformers.LlamaConfig(
    vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
    num_key_value_heads=3, max_position_embeddings=8192, rope_theta=1e5, tie_word_embeddings=True,
    dtype=torch.bfloat16)).to(torch.bfloat16).save_pretrained(sys.argv[1])
CODE
    # Rows of one document, and of several: cuDNN has a plan for every number of them.
    cat core/*.cpp core/*/*.cpp >"$work/one.txt"
    for file in core/*.cpp core/*/*.cpp docs/*.md; do cat "$file" && printf '\0'; done >"$work/many.txt"
    steps=6 warmup=3
    smoke() { # NAME TEXT WORDS...
        train "$work/$1" --data "$work/$2.txt" --bytes --log-every 1 --probe-every 0 "${@:3}"
    }
    for each in dense:4:one dense:1:many window-512:4:one msa-512:4:one msa-512:1:many; do
        IFS=: read -r arm rows text <<<"$each"
        name=smoke-$arm-$rows-$text
        read -ra own <<<"$(words_of "$arm")"
        smoke "$name" "$text" --overwrite "${own[@]}" 2>&1 | tail -n 1 || echo "$name FAILED"
        cp "$work/$name/curves.csv" "$out/$name.csv"
        grep -E ',(loss|tokens_per_second),' "$out/$name.csv" | sed "s/^/$name: /"
    done
    steps=3 warmup=1
    read -ra own <<<"$(words_of msa-512)"
    smoke whole many --overwrite --deterministic "${own[@]}" 2>&1 | tail -n 1
    rm -rf "$work/parts"
    until smoke parts many --deterministic --seconds 0 "${own[@]}" 2>&1 | tail -n 1; do ((++tries < 5)) || break; done
    for file in model.safetensors indexer.safetensors; do
        cmp "$work"/{whole,parts}/model/$file && echo "$file: resumed bit for bit"
    done
    exit
fi

seconds=$2 model=${MODEL:-results/smollm2}
shift 2
if [[ ! -f results/corpus/manifest.json ]]; then
    mkdir -p results/corpus
    tar -C results/corpus -xJf "${CORPUS:-results/corpus.tar.xz}"
fi
tokens=$work/tokens.safetensors
[[ -f $tokens ]] || python3 -m msalab.training "$model" --context "$context" --tokens-out "$tokens" \
    --data results/corpus/train/{english,c,code}.txt
# Held-out documents that a context is not too long for.
[[ -f $work/held_out.txt ]] || python3 - "$work/held_out.txt" results/corpus/held_out/{english,c,code}.txt <<'CODE'
import sys
kinds = [[one for one in open(path, encoding="utf-8").read().split("\0") if len(one) > 40000] for path in sys.argv[2:]]
turns = zip(*kinds)  # a document of each kind in turn
open(sys.argv[1], "w", encoding="utf-8").write("\0".join(one for turn in turns for one in turn))
CODE

for seed in "${seeds[@]}"; do
    for arm in "${arms[@]}"; do
        name=$arm-seed-$seed run=$work/$arm-seed-$seed
        if [[ -f $records/$name.tar || -f $out/$name.tar ]]; then continue; fi
        left=$((seconds - (SECONDS - began)))
        ((left > 30)) || exit 0
        read -ra own <<<"$(words_of "$arm")"
        code=0
        train "$run" --data "$tokens" --seed "$seed" --seconds "$left" "${own[@]}" "$@" 2>&1 | tail -n 2 || code=$?
        if [[ ! -f $run/summary.json ]]; then
            echo "$name: not ended, exit code $code"
            [[ -f $run/diverged.json ]] && tar -C "$run" -cf "$out/$name.tar" diverged.json curves.csv run.json
            continue
        fi
        read -ra own <<<"$(evaluation_of "$arm" "$run")"
        left=$((seconds - (SECONDS - began)))
        timeout -s INT "$((left > 10 ? left : 10))" python3 -m msalab evaluate "$run/model" --text "$work/held_out.txt" \
            --context "$context" --sequences "$sequences" --block-size 64 --tasks needle,multi_key,recall \
            --lengths "$lengths" --exercises "${EXERCISES:-16}" --device "$device" --dtype $dtype --out "$run/evaluation" --resume \
            "${own[@]}" >"$run/evaluation.txt" 2>&1 || { tail -n 1 "$run/evaluation.txt" && continue; }
        cp "$run/evaluation/summary.json" "$run/evaluation.json"
        cp "$run/evaluation/results.h5" "$run/evaluation.h5"
        tar -C "$run" -cf "$out/$name.tar" summary.json curves.csv evaluation.json evaluation.h5
        echo "$name: $(head -n 4 "$run/evaluation.txt" | tail -n 2)"
    done
done
