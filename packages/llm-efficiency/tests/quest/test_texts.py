"""Text to train on."""

import numpy as np
import pytest

from hexad.core.errors import InputError
from hexad.llm_efficiency.quest.texts import (
    Windows,
    read_folder,
    split_texts,
    standard_library,
    unigram_entropy,
)


def test_windows_predict_every_token_once():
    windows = Windows(np.arange(25), 8)
    assert len(windows) == 3
    assert [window.tolist()[1:] for window in windows.spread(9)] == [
        list(range(start + 1, start + 9)) for start in (0, 8, 16)
    ]
    assert windows[2].tolist()[0] == 16
    with pytest.raises(InputError, match="8 tokens; a window needs 9"):
        Windows(np.arange(8), 8)


def test_entropy():
    assert unigram_entropy(np.array([0, 1, 2, 3] * 5)) == pytest.approx(np.log(4))
    assert unigram_entropy(np.zeros(9, np.int64)) == 0


def test_the_standard_library_is_split_by_files():
    train, test = standard_library()
    assert len(train) > 5e6
    assert 0.03 < len(test) / len(train) < 0.3
    assert 3.0 < unigram_entropy(test) < 3.6
    assert b"def " in test.tobytes()


def test_folders(tmp_path):
    with pytest.raises(InputError, match=r"holds no \.txt file"):
        read_folder(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        read_folder(tmp_path / "none")
    (tmp_path / "b.txt").write_bytes(b"")
    with pytest.raises(InputError, match="are empty"):
        read_folder(tmp_path)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a.txt").write_bytes("é".encode())
    (tmp_path / "c.md").write_bytes(b"no")
    assert read_folder(tmp_path) == [b"", "é".encode()]


def test_splits():
    few = [np.arange(100), np.arange(100, 150)]
    train, test = split_texts(few, 4)
    assert test.tolist() == [*range(90, 100), *range(145, 150)]
    assert len(train) + len(test) == 150
    many = [np.full(10, place) for place in range(20)]
    train, test = split_texts(many, 4)
    assert set(test) == {9, 19}
    assert set(train) == set(range(20)) - {9, 19}
    with pytest.raises(InputError, match="only 15 tokens are left to test on, and a window takes 17"):
        split_texts(few, 16)
