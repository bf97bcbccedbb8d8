#!/bin/bash
# SPDX-License-Identifier: MIT
# usage: studies/sharing/run.sh DEVICE [THREADS]  makes what docs/shared_ids.md reads, in results/sharing; stopped, the
# same command goes on. Needs ./msalab model smollm2, and results/qwen, a folder of Qwen2.5-Coder-0.5B-Instruct; a build.
set -e
device=$1
export OMP_NUM_THREADS=${2:-1} PYTHONPATH=build/release/python:python
out=results/sharing
mkdir -p $out
cat core/cpu/{attention_grad,index_kl,tile,softmax}.cpp > $out/code.txt
cat docs/report.md docs/life_of_a_query.md > $out/prose.txt
texts=(docs/kernels.md docs/methods.md docs/guide.md data/FORMAT.md studies/pilot/README.md python/README.md)
shared=index,index:every=2,index:every=4,oracle,oracle:every=2,oracle:every=4
for name in smollm2 qwen; do
    model=results/$name here=$out/$name
    selectors=$shared
    [ $name = smollm2 ] && selectors+=,index:leaders=0+3+11+12
    [ -e $here.h5 ] || .venv-torch/bin/python -m msalab capture $model --text $out/code.txt --text $out/prose.txt \
        --max-tokens 2048 --out $here.h5
    [ -e $here-fit/results.h5 ] || build/release/bin/msa-fit-indexer $here.h5 --out $here-fit --steps 0 --warmup-steps 0 \
        --block-size 64 --top-k 8 --eval-queries 256
    [ -e $here-overlap-2k/summary.json ] || build/release/bin/msa-reuse $here.h5 --out $here-overlap-2k --block-size 64 \
        --top-k 8 --selectors oracle --every 2,4,8 --lose 0.05 --sample-queries 128
    evaluate() {
        .venv-torch/bin/python -m msalab evaluate $model --text "${texts[@]}" --indexer $here-fit --selectors $selectors \
            --block-size 64 --forced-first 0 --device "$device" "$@"
    }
    evaluate --budgets 256 --sequences 0 --tasks needle --lengths 1024,2048,4096 --exercises 16 --out $here-needle
    evaluate --budgets 512 --context 4096 --sequences 6 --tasks "" --out $here-text
done
