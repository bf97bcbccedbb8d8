#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The tests of captures and of running models with other releases of transformers than the pinned one:
#
#     python/check_transformers.sh [VERSION...]
#
# Without versions: the oldest that pyproject.toml allows, and the newest there is. Each is installed, with
# what it needs, in a folder of its own that comes before .venv-torch, which ./msalab check makes, as it
# builds the module.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly python=$PWD/.venv-torch/bin/python
readonly tests=(python/tests/test_transformers.py python/tests/test_capture_models.py
    python/tests/test_capture_rope.py)
oldest=$(sed -n 's/.*"transformers>=\([0-9.]*\)".*/\1/p' pyproject.toml)
newest=$("$python" -m pip index versions transformers 2>/dev/null | sed -n '1s/.*(\(.*\))/\1/p')
(($#)) || set -- "$oldest" "$newest"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in "$@"; do
    "$python" -m pip install --quiet --target "$folder/$version" "transformers==$version" 2>/dev/null
    echo "== transformers $version"
    PYTHONPATH=$folder/$version "$python" -m pytest --quiet -p no:cacheprovider "${tests[@]}"
done
