#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The experiment of studies/conversion/README.md on a machine with GPUs: what is missing of it.
#   studies/conversion/gpu.sh OUT SECONDS [WORDS...]
#   studies/conversion/gpu.sh --smoke OUT [WORDS...]
# A run is missing unless studies/conversion/records/FORM or OUT has its record, ARM-seed-S.tar.xz. One that is under
# way when SECONDS are up stops behind a saved step in WORK, and goes on when this is started again on the same
# machine. WORDS go to every `msalab train`, --compile say. In the environment:
#   FORM    small (default), large or even: which of the registered experiments
#   RUNS    of its runs those to do, in this order, as "dense-1 msa-512-1" (ARM-SEED)
#   GPUS    those that take one run each at a time (default: 0); "0,1 2,3" with PROCESSES=2
#   LEAST   seconds that a run takes: with fewer left none is begun (default: 60)
#   PARTS   processes that share an evaluation (default: 1), which alone waits for the host more than for the GPU
#   MODEL   folder or FILE.gguf (default: results/smollm2)
#   INPUTS  archive of studies/conversion/inputs.py, unpacked into WORK once (default: inputs.tar.xz there)
#   WORK    folder of runs (default: results/conversion)
#   STEPS, WARMUP, FIT, CONTEXT, BATCH, ROWS, PROCESSES, DEVICE, SEQUENCES, LENGTHS, EXERCISES: see below
# In the form even, MSA arms begin with OUT/fitted-seed-S.safetensors, which the first of them makes where it is
# missing, and a run that is trained and not yet measured is OUT/ARM-seed-S; so a machine that begins with another's OUT
# goes on with what that one had.
# --smoke: random weights of the model's shape: how fast is an arm, does it resume bit for bit? Then runs of a few
# steps, their records and the judge's words. With DEVICE=cpu these alone, of a small model.
# msalab must be importable, with the cuda backend for GPUs (PYTHONPATH=build/release/python).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
began=$SECONDS smoke=0 tries=0 judged=()
if [[ $1 == --smoke ]]; then smoke=1 && shift; fi
out=$1 work=${WORK:-results/conversion} form=${FORM:-small}
mkdir -p "$out" "$work"
case $form in # what is worth most comes first
    small)
        steps=200 warmup=20 exercises=32 sequences=24
        runs="dense-1 msa-512-1 msa-1024-1 fitted-1 dense-2 msa-512-2 msa-1024-2 window-512-1 dense-3 msa-512-3 msa-1024-3"
        ;;
    large)
        steps=800 warmup=80 exercises=64 sequences=24 runs=
        for seed in 1 2 3; do
            for arm in dense msa-512 msa-1024 window-512 fitted window-1024; do runs+="$arm-$seed "; done
        done
        ;;
    even)
        judged=(--even)
        steps=800 warmup=0 exercises=256 sequences=96 runs=
        for seed in 1 2 3; do
            for arm in fitted dense msa-2048 msa-1024 msa-512; do runs+="$arm-$seed "; done
        done
        ;;
    *) echo "FORM is $form, must be small, large or even" >&2 && exit 2 ;;
esac
records=studies/conversion/records/$form
steps=${STEPS:-$steps} warmup=${WARMUP:-$warmup} context=${CONTEXT:-8192} batch=${BATCH:-16} rows=${ROWS:-2}
processes=${PROCESSES:-1} device=${DEVICE:-cuda} sequences=${SEQUENCES:-$sequences} lengths=${LENGTHS:-2048,4096,8192}
exercises=${EXERCISES:-$exercises} parts=${PARTS:-1} dtype=bfloat16
fit=$warmup budgets=512,1024
[[ $form != even ]] || fit=${FIT:-80} budgets=512,1024,2048
read -ra runs <<<"${RUNS:-$runs}"
read -ra gpus <<<"${GPUS:-0}"
[[ $device != cpu ]] || dtype=float32
export CUDA_MODULE_LOADING=EAGER NCCL_NVLS_ENABLE=0 PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=true

budget_of() { # ARM
    local budget=${1#*-}
    echo "${budget%-full}"
}

# What tells an arm from the others; blocks of 64 tokens.
words_of() { # ARM SEED
    local begin=("${start[@]}")
    [[ $form != even ]] || begin=(--indexer "$(fitted_of "$2")")
    case $1 in
        dense) echo --attention dense --steps "$steps" ;;
        msa-*)
            [[ $1 != *-full ]] || begin+=(--kl-support full)
            echo --top-k $(($(budget_of "$1") / 64)) --steps "$steps" --warmup-steps "$warmup" "${begin[@]}"
            ;;
        window-*) echo --attention window --top-k $((${1#window-} / 64)) --steps "$steps" ;;
        fitted) echo --top-k 8 --steps "$fit" --warmup-steps "$fit" "${start[@]}" ;;
    esac
}

# Of a seed, the Index Branches that have learnt while the model did not, in the form even.
fitted_of() { echo "$out/fitted-seed-$1.safetensors"; }

# What the held-out text is measured with: of the arm's own attention, and of `fitted`, whose model is the one that
# all begin with, of what needs no training.
evaluation_of() {
    case $1 in
        dense) echo --selectors oracle --budgets $budgets --forced-first 0 ;;
        msa-*)
            local first=0
            [[ $1 != *-full ]] || first=0,1
            echo --selectors index --budgets "$(budget_of "$1")" --indexer "$2/model" --forced-first "$first"
            ;;
        window-*) echo --selectors window --budgets "${1##*-}" --forced-first 1 ;;
        fitted)
            if [[ $form == even ]]; then # what it answers, the form large has
                echo --selectors index --budgets $budgets --indexer "$2/model" --forced-first 0 --tasks=
            else
                echo --selectors index,mean-key,quest,window --budgets $budgets --indexer "$2/model"
            fi
            ;;
    esac
}

train() { # OUT WORDS...
    local launch=(python3 -m msalab.training)
    ((processes == 1)) || launch=(torchrun --standalone --nproc-per-node "$processes" -m msalab.training)
    "${launch[@]}" "$model" --out "$1" --device "$device" --context "$context" --batch "$batch" --rows "$rows" \
        --block-size 64 --save-every 200 --resume "${@:2}" "${words[@]}"
}

left() { echo $((seconds - (SECONDS - began))); }

# Waits for who is making it.
need_fitted() { # SEED
    local run=$work/fitted-seed-$1 made own held
    made=$(fitted_of "$1")
    exec {held}>"$run.made.lock"
    flock "$held"
    if [[ ! -f $made ]]; then
        read -ra own <<<"$(words_of fitted "$1")"
        if train "$run" --data "$work/tokens.safetensors" --seed "$1" --seconds "$(left)" "${own[@]}" \
            >"$run.txt" 2>&1; then
            cp "$run/model/indexer.safetensors" "$made.partial"
            mv "$made.partial" "$made"
        fi
    fi
    exec {held}>&-
    [[ -f $made ]] || { echo "fitted-seed-$1: not ended: $(tail -n 1 "$run.txt")" && false; }
}

evaluate() { # RUN WORDS...
    local part failed=0 started=()
    for ((part = 0; part < parts; ++part)); do
        timeout -s INT "$(($(left) > 10 ? $(left) : 10))" python3 -m msalab evaluate "$1/model" \
            --text "$work/held_out.txt" --context "$context" --sequences "$sequences" --block-size 64 \
            --tasks needle,multi_key,recall --lengths "$lengths" --exercises "$exercises" --device "$device" \
            --dtype $dtype --out "$1/evaluation" ${bytes:+"$bytes"} "${@:2}" &
        started+=($!)
    done
    for part in "${started[@]}"; do wait "$part" || failed=1; done
    return $failed
}

run() { # ARM-SEED
    local arm=${1%-*} seed=${1##*-} code=0 own trained
    local name=$arm-seed-$seed run=$work/$arm-seed-$seed
    if [[ $form == even && $arm != dense ]]; then need_fitted "$seed" || return 0; fi
    read -ra own <<<"$(words_of "$arm" "$seed")"
    if [[ ! -d $run && -d $out/$name ]]; then cp -r "$out/$name" "$run"; fi
    if [[ ! -f $run/summary.json ]]; then
        train "$run" --data "$work/tokens.safetensors" --seed "$seed" --seconds "$(left)" "${own[@]}" \
            >"$run.txt" 2>&1 || code=$?
    fi
    trained=$SECONDS
    if [[ ! -f $run/summary.json ]]; then
        echo "$name: not ended, exit code $code: $(tail -n 1 "$run.txt")"
        [[ ! -f $run/diverged.json ]] || tar -C "$run" -cJf "$out/$name.tar.xz" diverged.json curves.csv run.json
        return
    fi
    if [[ ! -d $out/$name ]]; then
        rm -rf "${out:?}/$name.partial"
        mkdir "$out/$name.partial" && cp -r "$run"/{model,summary.json,run.json,curves.csv} "$out/$name.partial" &&
            mv "$out/$name.partial" "$out/$name"
    fi
    read -ra own <<<"$(evaluation_of "$arm" "$run")"
    evaluate "$run" "${own[@]}" >"$run.txt" 2>&1 || { echo "$name: not evaluated: $(tail -n 1 "$run.txt")" && return; }
    python3 studies/conversion/records.py "$run" "$out/$name.tar.xz" && rm -r "${out:?}/$name"
    echo "$name: $((SECONDS - began)) s, the evaluation $((SECONDS - trained)): $(grep -m 1 '^dense' "$run.txt")"
}

# The queue, for each GPU.
take() { # GPU
    local one
    for one in "${runs[@]}"; do
        local name=${one%-*}-seed-${one##*-}
        exec {lock}>"$work/$name.lock"
        if flock -n "$lock" && [[ ! -f $records/$name.tar.xz && ! -f $out/$name.tar.xz ]] &&
            (($(left) > ${LEAST:-60})); then
            # Another one could end it meanwhile; a run that ends has a record or says why not.
            CUDA_VISIBLE_DEVICES=$1 run "$one"
        fi
        exec {lock}>&-
    done
}

queue() {
    local gpu
    if [[ ! -f $work/held_out.txt ]]; then
        tar -C "$work" -xJf "${INPUTS:-$work/inputs.tar.xz}"
    fi
    start=()
    for file in "$work"/indexer.*; do
        [[ ! -f $file ]] || start=(--indexer "$file")
    done
    for gpu in "${gpus[@]}"; do take "$gpu" & done
    wait
}

if ((smoke)); then
    work=$work/smoke records=$work/none seconds=1000000 batch=4 steps=6 warmup=3 fit=3 start=() bytes=--bytes more=()
    words=(--bytes "${@:2}")
    model=$work/model shape="hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, vocab_size=49152, max_position_embeddings=8192"
    rm -rf "$work" "$out"/*-seed-*
    mkdir -p "$work"/corpus/{train,held_out}
    runs=(dense-1 msa-512-1 fitted-1) sequences=8 exercises=2
    if [[ $device == cpu ]]; then
        shape="hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=256, max_position_embeddings=1024"
        context=1024 batch=2 rows=1 lengths=512,1024 runs=(dense-1 msa-512-1)
        steps=4 warmup=2 fit=2 sequences=6 exercises=1
    fi
    asked=$form form=large # until the queue
    python3 - "$model" <<CODE
import sys
import torch
import transformers
torch.manual_seed(0)
transformers.LlamaForCausalLM(transformers.LlamaConfig(
    $shape, rope_theta=1e5, tie_word_embeddings=True)).to(torch.bfloat16).save_pretrained(sys.argv[1])
CODE
    # Rows of one document, and of several: cuDNN has a plan for every number of them.
    cat core/*.cpp core/*/*.cpp >"$work/one.txt"
    for file in core/*.cpp core/*/*.cpp docs/*.md; do cat "$file" && printf '\0'; done >"$work/many.txt"
    smoke() { # NAME TEXT WORDS...
        train "$work/$1" --data "$work/$2.txt" --log-every 1 --probe-every 0 "${@:3}"
    }
    if [[ $device != cpu ]]; then
        for each in dense:4:one dense:1:many window-512:4:one msa-512:4:one msa-512:1:many; do
            IFS=: read -r arm rows text <<<"$each"
            name=smoke-$arm-$rows-$text
            read -ra own <<<"$(words_of "$arm" 1)"
            smoke "$name" "$text" "${own[@]}" 2>&1 | tail -n 1 || echo "$name FAILED"
            cp "$work/$name/curves.csv" "$out/$name.csv" || continue
            grep -E ',(loss|tokens_per_second),' "$out/$name.csv" | sed "s/^/$name: /"
        done
        steps=3 warmup=1
        read -ra own <<<"$(words_of msa-512 1)"
        smoke whole many --deterministic "${own[@]}" 2>&1 | tail -n 1
        until smoke parts many --deterministic --seconds 0 "${own[@]}" 2>&1 | tail -n 1; do ((++tries < 5)) || break; done
        for file in model.safetensors indexer.safetensors; do
            cmp "$work"/{whole,parts}/model/$file && echo "$file: resumed bit for bit"
        done
    fi
    for kind in english c code; do
        cp "$work/one.txt" "$work/corpus/train/$kind.txt"
        cp "$work/many.txt" "$work/corpus/held_out/$kind.txt"
    done
    form=$asked
    if [[ $form == even ]]; then
        warmup=0 runs=(dense-1 msa-512-1 fitted-1) more=(--more "$work/more" --documents 6)
        mkdir -p "$work/more/held_out"
        for kind in english c code; do
            for file in docs/*.md gpu/*.cpp; do cat "$file" && printf '\0'; done >"$work/more/held_out/$kind.txt"
        done
    fi
    python3 studies/conversion/inputs.py "$model" "$work/corpus" "$work/inputs.tar.xz" --context "$context" --bytes \
        "${more[@]}" 2>&1 | tail -n 1
    INPUTS=$work/inputs.tar.xz queue
    python3 studies/conversion/judge.py "$out" "${judged[@]}"
    exit
fi

seconds=$2 model=${MODEL:-results/smollm2} words=("${@:3}")
queue
