"""The native path reads packed weights where they lie: a call takes no memory of the weights' size."""

import os
import subprocess
import sys

import pytest

from hexad.kernels.low_bit_linear import available_backends

SCRIPT = """
import re
from pathlib import Path

import torch

from hexad.kernels.low_bit_linear import ActivationGrid, integer_levels, level_sums, low_bit_linear

def kilobytes(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

grid, levels, k = ActivationGrid(8, 3.9), integer_levels(4), 8192
packed = torch.randint(0, 256, (8192, k // 2), dtype=torch.uint8)
sums = level_sums(packed, levels, bits=4, k=k)
scale = torch.ones(8192)

def call(rows, tokens):
    options = {"levels": levels, "bits": 4, "activation": grid, "block": 128, "row_sums": sums[:rows]}
    low_bit_linear(torch.ones(tokens, k), packed[:rows], scale[:rows], **options)

for tokens in (1, 64):
    call(64, tokens)
    before = kilobytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    call(8192, tokens)
    print(kilobytes("VmHWM") - before)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="it needs Linux' /proc")
@pytest.mark.skipif(available_backends("cpu")["native"] is not None, reason="the native path cannot run here")
def test_a_call_takes_no_memory_of_the_size_of_the_weights():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    one_token, prompt = (int(line) for line in done.stdout.split())
    weights = 8192 * 8192 // 2 // 1024  # 32 MiB; unpacked to bytes 64, to float32 256
    assert one_token < weights / 16
    assert prompt < weights / 4  # 64 tokens, their outputs and the panels of each thread
