#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# For a machine with a GPU and without a network: packs, on one that has a network, what a build there is
# most likely to miss, into OUT.tar.xz, less than a megabyte. That is Boost.Program_options with the headers
# that it includes, as a static library of this machine's, and the headers of cuDNN and its frontend.
#   gpu/offline.sh OUT.tar.xz
# There, in the repository's root:
#   mkdir -p build && tar -C build -xJf OUT.tar.xz && . build/offline/use.sh
#   cmake --preset release -DMSA_CUDA=ON "${offline[@]}"
# check.sh and pilot.sh use build/offline where it is.
set -euo pipefail
out=$(realpath "${1:?OUT.tar.xz is missing}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
boost=$work/offline/boost cudnn=$work/offline/cudnn
mkdir -p "$boost"/{include,lib} "$cudnn"

# Headers that a compiler here reads, and those that another one would choose in their place.
{
    echo '#include <boost/program_options.hpp>' | g++ -std=c++20 -M -x c++ - |
        grep -oE '/usr/include/boost/[^ ]+'
    find /usr/include/boost/{config,preprocessor,program_options} /usr/include/boost/{config,version}.hpp -type f
} | sed 's,^/usr/include/,,' | sort -u | tar -C /usr/include -cf - -T - | tar -C "$boost/include" -xf -
cp /usr/lib/*/libboost_program_options.a "$boost/lib"

python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$work/wheels" -r .ci/cudnn-requirements.txt
for wheel in "$work"/wheels/*.whl; do
    python3 - "$wheel" "$cudnn" <<'CODE'
import sys
import zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    wheel.extractall(sys.argv[2], [name for name in wheel.namelist() if "include/" in name])
CODE
done

cat >"$work/offline/use.sh" <<'TEXT'
export CMAKE_INCLUDE_PATH=$PWD/build/offline/cudnn/include:$PWD/build/offline/cudnn/nvidia/cudnn_jit/include${CMAKE_INCLUDE_PATH:+:$CMAKE_INCLUDE_PATH}
offline=(-DBoost_NO_BOOST_CMAKE=ON -DBoost_NO_SYSTEM_PATHS=ON -DBoost_USE_STATIC_LIBS=ON
    "-DBOOST_ROOT=$PWD/build/offline/boost")
TEXT
tar -C "$work" -cJf "$out" offline
ls -l "$out"
