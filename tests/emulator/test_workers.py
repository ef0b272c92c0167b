"""Ctrl-C ends the processes that share the cases of a command."""

import os
import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import time
from jax_clc.emulator.workers import worker_pool

if __name__ == "__main__":
    with worker_pool(2) as pool:
        tasks = [pool.submit(time.sleep, 0.01)] + [pool.submit(time.sleep, 20) for _ in range(20)]
        tasks[0].result()
        print("working", flush=True)
        tasks[-1].result()
"""


def test_an_interrupt_ends_all_workers(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "working\n"
    os.killpg(process.pid, signal.SIGINT)
    process.wait(timeout=60)  # of the 200 seconds that the tasks would sleep
    with pytest.raises(ProcessLookupError):
        for _ in range(50):  # nobody of the group is left
            os.killpg(process.pid, 0)
            time.sleep(0.1)
