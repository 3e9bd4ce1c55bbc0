"""Worker processes: their answers, their errors and their death."""

import hashlib
import os
import signal
import time
from pathlib import Path

import pytest
from PIL import Image

from hexad.core.data import load_photograph
from hexad.core.errors import HexadError
from hexad.vision_robustness.laion_c.pool import Runner
from hexad.vision_robustness.laion_c.workers import ApplyConfig, Cell, Job, Worker


@pytest.fixture
def folders(tmp_path) -> tuple[Path, Path]:
    (tmp_path / "photos").mkdir()
    for number in range(6):
        Image.fromarray(load_photograph("flower")[number:]).save(tmp_path / f"photos/{number}.bmp")
    return tmp_path / "photos", tmp_path / "out"


def jobs(count: int = 6) -> list[Job]:
    cells = [Cell("glitched", level, "{}" + f"/{level}.JPEG") for level in (1, 2, 3)]
    return [
        Job(f"{n}.bmp", "", tuple(Cell(c.name, c.level, c.output.format(n)) for c in cells))
        for n in range(count)
    ]


def runner(folders: tuple[Path, Path], count: int) -> Runner:
    return Runner(Worker(ApplyConfig(types=("glitched",)), *folders), count)


def never() -> bool:
    return False


@pytest.mark.parametrize("count", [1, 2])
def test_every_job_is_answered_with_the_hashes_of_its_files(count, folders):
    with runner(folders, count) as here:
        answers = {done.job.source: done for done in here.run(iter(jobs()), never)}
    assert len(answers) == 6
    for done in answers.values():
        assert list(done.outputs) == [cell.output for cell in done.job.cells]
        for name, output in done.outputs.items():
            assert hashlib.sha256((folders[1] / name).read_bytes()).hexdigest() == output["sha256"]


@pytest.mark.parametrize("count", [1, 2])
def test_an_interrupt_yields_what_is_made_and_nothing_more(count, folders):
    with runner(folders, count) as here:
        answers = []
        for done in here.run(iter(jobs()), lambda: bool(answers)):
            answers.append(done)
    made = [name for done in answers for name in done.outputs]
    assert 3 <= len(made) < 18
    assert sorted(made) == sorted(p.relative_to(folders[1]).as_posix() for p in folders[1].rglob("*.*"))


@pytest.mark.parametrize("count", [1, 2])
def test_an_output_that_cannot_be_written_is_named(count, folders):
    folders[1].mkdir()
    (folders[1] / "0").write_text("in the way of a folder")
    with pytest.raises(HexadError, match=r"0/1\.JPEG cannot be written"), runner(folders, count) as here:
        list(here.run(iter(jobs()), never))


def test_a_process_that_dies_is_an_error_and_not_waited_for(folders):
    with runner(folders, 2) as here:
        os.kill(here._processes[0]._popen.pid, signal.SIGKILL)
        with pytest.raises(HexadError, match="a worker process died"):
            list(here.run(iter(jobs()), never))
    assert here._processes[1]._popen.returncode is not None


def test_processes_that_hang_are_killed(folders):
    began = time.monotonic()
    with runner(folders, 2) as here:
        for process in here._processes:
            os.kill(process._popen.pid, signal.SIGSTOP)
    assert time.monotonic() - began < 5
    assert all(process._popen.returncode == -signal.SIGKILL for process in here._processes)
