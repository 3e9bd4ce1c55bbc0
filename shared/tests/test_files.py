import os
import re
import stat
import subprocess
import sys
import threading

import pytest

from hexad.core.errors import InputError
from hexad.core.files import alone_in, atomic_open, atomic_path, writable_file, writable_folder, write_json
from hexad.core.validation import check_choice, check_count, check_file, check_flag, check_folder, check_range


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "result.txt"
    target.write_text("old")

    def write_half():
        with atomic_open(target) as file:
            file.write("half of the new")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        write_half()
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["result.txt"]


def test_a_written_file_has_ordinary_rights_and_keeps_its_suffix(tmp_path):
    target = tmp_path / "picture.png"
    with atomic_path(target) as temporary:
        assert temporary.suffix == ".png"
        temporary.write_bytes(b"x")
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~umask


def test_writing_leaves_the_rights_of_other_threads_files_alone(tmp_path):
    # The umask is the whole process's: setting it for a moment would open files made meanwhile to all.
    stop = threading.Event()

    def write():
        while not stop.is_set():
            with atomic_open(tmp_path / "a") as file:
                file.write("a")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        umask = set()
        for number in range(2000):
            path = tmp_path / f"b{number}"
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o666))
            umask.add(stat.S_IMODE(path.stat().st_mode))
    finally:
        stop.set()
        writer.join()
    assert len(umask) == 1


def test_json_is_unicode_and_ends_with_a_newline(tmp_path):
    write_json(tmp_path / "a.json", {"τ": 0.98})
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == '{\n  "τ": 0.98\n}\n'


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file; name a folder"):
        writable_folder(tmp_path / "file")
    with pytest.raises(InputError, match="is a folder; name a file"):
        check_file(tmp_path)


def test_a_misspelt_file_gets_a_hint(tmp_path):
    (tmp_path / "photos.csv").write_text("")
    with pytest.raises(InputError, match=r"does not exist; did you mean .*photos\.csv"):
        check_file(tmp_path / "photo.csv")


def test_wrong_values_are_named_with_their_bounds():
    with pytest.raises(InputError, match=r"tau is 1\.5; it must lie in \[0, 1\]"):
        check_range("tau", 1.5, 0, 1)
    with pytest.raises(InputError, match=r"rate is 0; it must lie in \(0, inf\)"):
        check_range("rate", 0, 0, low_open=True)
    for bad in (float("nan"), float("inf")):
        with pytest.raises(InputError):
            check_range("x", bad)
    with pytest.raises(InputError, match="must be a number"):
        check_range("x", "three")  # ty: ignore[invalid-argument-type]
    with pytest.raises(InputError, match=r"x must be a number in .*, not True"):
        check_range("x", True)
    with pytest.raises(InputError, match="must lie in"):
        check_range("x", 10**400)
    with pytest.raises(InputError, match="unknown preset 'fulll'; did you mean 'full'"):
        check_choice("preset", "fulll", ["tiny", "full"])
    with pytest.raises(InputError, match="unknown preset None; known: full, tiny"):
        check_choice("preset", None, ["tiny", "full"])  # ty: ignore[invalid-argument-type]


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        (check_flag, "yes", "x is 'yes'; it must be True or False"),
        (check_flag, 1, "x is 1;"),
        (check_count, 2.5, "x is 2.5; it must be a whole number of at least 1"),
        (check_count, True, "x is True;"),
        (check_count, "3", "x is '3';"),
        (check_count, 0, "x is 0;"),
    ],
)
def test_flags_and_counts_are_no_other_numbers(check, value, message):
    with pytest.raises(InputError, match=re.escape(message)):
        check("x", value)
    assert check_flag("x", True) is True
    assert check_count("x", 2, 2) == 2


@pytest.mark.parametrize("check", [check_file, check_folder, writable_file, writable_folder])
def test_what_is_no_path_is_refused(check):
    for value in (5, None, ["a"]):
        with pytest.raises(InputError, match="model must be a path, not "):
            check(value, "model")


def test_a_file_to_write_gets_its_folder(tmp_path):
    path = writable_file(tmp_path / "deep" / "er" / "a.txt")
    path.write_text("")
    with pytest.raises(InputError, match=r"output .*deep is a folder; name a file"):
        writable_file(tmp_path / "deep")
    with pytest.raises(InputError, match=r"folder of output .*a\.txt is a file; name a folder"):
        writable_file(path / "b.txt")


def test_a_private_file_put_in_place_gets_the_rights_of_any_new_file(tmp_path):
    before = os.umask(0o022)
    try:
        with atomic_path(tmp_path / "a") as temporary:
            temporary.unlink()
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o600))
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


HOLD = """
import sys
from hexad.core.files import alone_in
with alone_in(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_is_held_by_one_run_at_a_time_and_let_go_when_it_dies(tmp_path):
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "run")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout.readline() == b"held\n"
    with (
        pytest.raises(InputError, match=r"another run is writing to .*; wait for it"),
        alone_in(tmp_path / "run"),
    ):
        pass
    other.kill()
    other.communicate()
    with alone_in(tmp_path / "run") as folder:
        assert folder == tmp_path / "run"
    with alone_in(folder):
        pass
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InputError, match=r"--out .* is a file; name a folder"),
        alone_in(tmp_path / "file", "--out"),
    ):
        pass
