#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The Python package on a machine with a GPU and PyTorch: its tests, and its times into OUT.
# PACKAGE is a wheel, or a folder that holds a wheel or an unpacked msalab/ with its compiled part,
# and msa-bench of the same build where its times are to stand beside, with the libraries that it
# misses in lib/. Nothing is downloaded. Further arguments go to bench/time_torch.py.
#   python/check_cuda.sh PACKAGE OUT [--rivals]
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
package=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
python=${PYTHON:-python3}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

folder=$package
wheel=$package
if [[ -d $package ]]; then wheel=$(find "$package" -maxdepth 1 -name 'msalab-*.whl' | head -n 1); fi
[[ -d $folder ]] || folder=$(dirname "$package")
if [[ -n $wheel ]]; then
    "$python" -m zipfile -e "$wheel" "$place/site"
else
    mkdir "$place/site"
    cp -r "$package/msalab" "$place/site/"
fi
export PYTHONPATH=$place/site${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
cd "$place"
"$python" - <<'CODE'
import msalab, torch
why_not = msalab.backends()["cuda"]
assert not why_not, why_not
print(msalab.__file__, torch.__version__, torch.cuda.get_device_name())
CODE

failed=0
# The package under test is the one installed, not the sources beside the tests.
timeout 120 "$python" -m pytest -q -o pythonpath= -p no:cacheprovider --show-capture=no --tb=short \
    --durations=5 --junitxml="$out/tests.xml" "$here"/tests/test_torch_cuda.py \
    "$here"/tests/test_torch.py "$here"/tests/test_nn.py 2>&1 | tee "$out/tests.txt" || failed=1

bench=()
if [[ -x $folder/msa-bench ]]; then
    bench=(--bench "$folder/msa-bench")
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH-}:$folder/lib
fi
timeout 120 "$python" "$here/../bench/time_torch.py" "${bench[@]}" "${@:3}" \
    --out "$out/times.json" 2>&1 | tee "$out/times.txt" || failed=1
exit "$failed"
