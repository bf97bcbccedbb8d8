# SPDX-License-Identifier: MIT
"""The script `msalab` at the root of the sources."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_files_beside_the_script_stay(tmp_path):
    shutil.copy(ROOT / "msalab", tmp_path)
    (tmp_path / "README.md").write_text("a page")
    for words in (["--help"], ["no-such-command"]):
        subprocess.run([tmp_path / "msalab", *words], cwd=tmp_path, capture_output=True, check=False)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "msalab"]
