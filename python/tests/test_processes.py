# SPDX-License-Identifier: MIT
"""Calls in children of os.fork(), as workers of PyTorch's DataLoader make them, and at the end of a
process."""

import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("msalab._msalab")

ATTEND = """
    import numpy as np, msalab
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((N, heads, 16)).astype(np.float32) for heads in (4, 2))
    def attend():
        return msalab.dense_attention(q, k, k)
"""


def run(n, code):
    """The outcome of a process of its own, which is ended after a minute."""
    source = textwrap.dedent(ATTEND.replace("N,", f"{n},")) + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60,
                          env=os.environ | {"OMP_NUM_THREADS": "4"})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_calls_in_a_forked_child():
    ended = run(256, """
        import os, signal
        want = attend()
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os._exit(0 if np.array_equal(attend(), want) else 1)
        status = os.waitpid(child, 0)[1]
        assert np.array_equal(attend(), want)
        print(os.waitstatus_to_exitcode(status))
    """)
    assert ended.stdout == "0\n", ended


def test_a_process_may_end_while_a_daemon_thread_is_in_a_call():
    ended = run(4096, """
        import threading, time
        def for_ever():
            while True:
                attend()
        for _ in range(2):
            threading.Thread(target=for_ever, daemon=True).start()
        time.sleep(1)
        import atexit
        atexit.register(time.sleep, 0.5)
        print("ended")
    """)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ended\n", "")
