"""Ctrl-C and SIGTERM: put off in this process, and in whole runs at random moments."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hexad.core.data import load_photograph
from hexad.vision_robustness.laion_c import ApplyConfig, apply_folder, interrupts
from hexad.vision_robustness.laion_c.interrupts import put_off_interrupt, terminate_as_interrupt

CONFIG = ApplyConfig(types=("vertical_lines",))


def interrupted_block(*steps: Callable[[], object]) -> list[bool]:
    """Take the steps with Ctrl-C put off; whether there was one, after each that was taken."""
    seen: list[bool] = []
    with contextlib.suppress(KeyboardInterrupt), put_off_interrupt() as interrupted:
        for step in steps:
            step()
            seen.append(interrupted())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return seen


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_waits_for_the_end_of_the_block():
    # A program in between may pass on what the terminal has sent already, so two are one.
    assert interrupted_block(lambda: None, press, press) == [False, True, True]


def test_ctrl_c_is_raised_when_the_block_ends():
    with pytest.raises(KeyboardInterrupt), put_off_interrupt():
        press()


def test_a_block_without_ctrl_c_ends_quietly():
    with put_off_interrupt() as interrupted:
        pass
    assert not interrupted()


def test_a_later_second_ctrl_c_is_raised_at_once(monkeypatch):
    monkeypatch.setattr(interrupts, "_DOUBLE", 0.001)
    assert interrupted_block(press, lambda: time.sleep(0.01), press, press) == [True, True]


def test_an_error_of_the_block_goes_before_ctrl_c():
    def fail() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        interrupted_block(press, fail)


def test_a_program_s_own_handler_is_left_to_it():
    seen = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with put_off_interrupt() as interrupted:
            press()
            assert not interrupted()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert seen == [signal.SIGINT]


def test_other_threads_set_no_handlers():
    entered = []

    def block() -> None:
        with put_off_interrupt() as interrupted, terminate_as_interrupt() as terminated:
            entered.append((interrupted(), terminated()))

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert entered == [(False, False)]


def test_sigterm_is_taken_for_ctrl_c():
    before = signal.getsignal(signal.SIGTERM)
    with terminate_as_interrupt() as terminated:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        assert terminated()
    assert signal.getsignal(signal.SIGTERM) == before


def test_sigterm_stays_what_it_is_where_ctrl_c_is_ignored():
    # As in the background of a shell script: a SIGTERM that became a Ctrl-C would end nothing.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with terminate_as_interrupt():
            assert signal.getsignal(signal.SIGTERM) == before
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# -- whole runs -------------------------------------------------------------------------------------------


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(24):
        part = load_photograph("china")[:300, number : number + 300]
        Image.fromarray(np.ascontiguousarray(part)).save(folder / f"{number:02}.bmp")
    return folder


@pytest.fixture(scope="module")
def straight(photos, tmp_path_factory) -> dict[str, bytes]:
    """What a run that nobody interrupts writes."""
    out = tmp_path_factory.mktemp("straight") / "out"
    apply_folder(photos, out, CONFIG)
    return tree(out)


def start(photos: Path, out: Path) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-m", "hexad.core.cli", "vision-robustness", "laion-c", "apply",
        str(photos), str(out), "--types", "vertical_lines", "--jobs", "2",
    ]  # fmt: skip
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def session_of(process: subprocess.Popen[str]) -> list[int]:
    """The processes that run in its session, in whatever group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(session) == process.pid and state != "Z":
            found.append(int(stat.parent.name))
    return found


def end(process: subprocess.Popen[str], send: Callable[[subprocess.Popen[str]], None]) -> str:
    """Interrupt it; what it said on standard error. It, and its workers, must end soon."""
    send(process)
    _, stderr = process.communicate(timeout=30)
    assert not session_of(process), "no worker is left"
    return stderr


def ctrl_c(process: subprocess.Popen[str]) -> None:
    # A terminal's Ctrl-C goes to the whole group.
    os.killpg(process.pid, signal.SIGINT)


def ctrl_c_twice(process: subprocess.Popen[str]) -> None:
    ctrl_c(process)
    time.sleep(0.02)
    ctrl_c(process)


def check_whole(out: Path, straight: dict[str, bytes]) -> None:
    """Every file is whole and is recorded, and none is half made."""
    written = {name: data for name, data in tree(out).items() if name != "manifest.json"}
    assert written.items() <= straight.items()
    images = json.loads((out / "manifest.json").read_text())["images"] if out.exists() else {}
    listed = [name for record in images.values() for name in record["outputs"]]
    assert sorted(listed) == sorted(written)


@pytest.mark.parametrize(("send", "code"), [(ctrl_c_twice, 130), (subprocess.Popen.terminate, 143)])
def test_an_interrupted_run_records_what_is_finished_and_the_next_goes_on(
    send, code, photos, straight, tmp_path
):
    out = tmp_path / "out"
    process = start(photos, out)
    deadline = time.monotonic() + 90
    while len(list(out.rglob("*.JPEG"))) < 10 and time.monotonic() < deadline:
        time.sleep(0.02)
    stderr = end(process, send)
    assert process.returncode == code
    assert "the same command goes on from there" in stderr
    assert "Traceback" not in stderr
    check_whole(out, straight)
    assert json.loads((out / "manifest.json").read_text())["complete"] is False
    summary = apply_folder(photos, out, CONFIG)
    assert summary.kept >= 10
    assert summary.written > 0
    assert tree(out) == straight


@pytest.mark.slow
def test_runs_interrupted_at_random_moments_end_soon_and_can_go_on(photos, straight, tmp_path):
    began = time.monotonic()
    start(photos, tmp_path / "whole").communicate()
    seconds = time.monotonic() - began
    draw = random.Random(0)
    for number in range(12):
        out = tmp_path / str(number)
        process = start(photos, out)
        # Before a third of a second Python itself starts, and dies of either signal.
        time.sleep(draw.uniform(0.3, seconds))
        end(process, draw.choice([ctrl_c, ctrl_c_twice, subprocess.Popen.terminate]))
        assert process.returncode in (0, 130, 143, -signal.SIGINT, -signal.SIGTERM)
        check_whole(out, straight)
        apply_folder(photos, out, CONFIG)
        assert tree(out) == straight
