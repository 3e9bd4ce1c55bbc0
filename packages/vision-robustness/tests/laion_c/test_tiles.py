"""The bank of tiles: where tiles come from, that they are kept, and what is refused."""

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import v2

from hexad.core.data import load_photograph
from hexad.core.errors import InputError
from hexad.vision_robustness.laion_c import TileBank, mosaic, stickers


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("tiles")
    flower = load_photograph("flower")
    for number in range(110):
        top, left = 2 * number, 3 * number
        crop = flower[top : top + 60 + number, left : left + 70]
        (root / str(number % 3)).mkdir(exist_ok=True)
        Image.fromarray(crop).save(root / str(number % 3) / f"{number:03}.png")
    return root


def test_tiles_of_a_folder_are_whole_images_cut_and_shrunk_as_in_the_benchmark(folder):
    bank = TileBank.from_folder(folder, (16, 28))
    assert len(bank) == 110
    paths = sorted(folder.rglob("*.png"))
    for number in (0, 57, 109):
        with Image.open(paths[number]) as image:
            for size in (16, 28):
                expected = v2.Compose([v2.Resize(256), v2.CenterCrop(224), v2.Resize((size, size))])(image)
                assert np.array_equal(bank.tiles(size)[number], np.asarray(expected))


def test_a_folder_s_unreadable_images_are_left_out_with_a_warning(folder, tmp_path):
    for path in folder.rglob("*.png"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "000.png").write_bytes(b"no image")
    with pytest.warns(UserWarning, match=r"1 tile sources left out.*000\.png"):
        assert len(TileBank.from_folder(tmp_path, (16,))) == 109


def test_a_saved_bank_is_the_same_bank(bank, tmp_path):
    bank.save(tmp_path / "bank.npz")
    again = TileBank.load(tmp_path / "bank.npz")
    assert again.sizes == bank.sizes
    assert again.digest() == bank.digest()
    assert np.array_equal(again.tiles(16), bank.tiles(16))


def test_arrays_of_a_tile_s_size_are_kept_bit_for_bit():
    arrays = np.random.default_rng(0).integers(0, 256, (120, 16, 16, 3), dtype=np.uint8)
    bank = TileBank.from_arrays(arrays, (8, 16))
    assert np.array_equal(bank.tiles(16), arrays)
    # Halving by a bilinear filter with antialiasing: a mean of near pixels, so the tile's mean stays.
    assert np.abs(bank.tiles(8).mean((1, 2)) - arrays.mean((1, 2))).max() < 12


def test_a_size_that_was_not_built_comes_from_the_next_larger_one(bank):
    expected = Image.fromarray(bank.tiles(28)[3]).resize((20, 20), Image.Resampling.BILINEAR)
    assert np.array_equal(bank.tiles(20)[3], np.asarray(expected))
    assert bank.tiles(64).shape == (300, 64, 64, 3)
    assert bank.sizes == (4, 6, 8, 16, 28), "derived sizes do not change what is saved"
    which = np.array([7, 3, 7])
    for size in (16, 20):
        assert np.array_equal(bank.take(which, size), bank.tiles(size)[which])


def test_the_tree_holds_mean_colours_and_is_made_once(bank):
    tree = bank.tree(8)
    assert tree is bank.tree(8)
    assert np.allclose(tree.data, bank.tiles(8).reshape(300, -1, 3).mean(1))


def test_crops_repeat_with_their_seed():
    images = [load_photograph("china")]
    one, same, other = (TileBank.from_crops(images, 100, seed, (16,)).digest() for seed in (1, 1, 2))
    assert one == same != other


@pytest.mark.parametrize("count", [0, 1, 99])
def test_too_small_a_bank_is_refused(count):
    with pytest.raises(InputError, match="at least 100"):
        TileBank.from_arrays(np.zeros((count, 16, 16, 3), np.uint8), (16,))


def test_too_few_images_in_a_tile_folder_are_refused(tmp_path):
    Image.new("RGB", (40, 40)).save(tmp_path / "one.png")
    with pytest.raises(InputError, match="holds 1 tiles"):
        TileBank.from_folder(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        TileBank.from_folder(tmp_path / "nowhere")


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_a_file_that_is_no_bank_is_refused(content, tmp_path):
    (tmp_path / "bank.npz").write_bytes(content)
    with pytest.raises(InputError, match="damaged, or no bank"):
        TileBank.load(tmp_path / "bank.npz")


def test_an_archive_of_other_arrays_is_refused(tmp_path):
    np.savez(tmp_path / "bank.npz", tiles_16=np.zeros((200, 8, 8, 3), np.uint8))
    with pytest.raises(InputError, match="size 16 must be uint8"):
        TileBank.load(tmp_path / "bank.npz")


@pytest.mark.parametrize("distortion", [mosaic, stickers])
def test_mosaics_and_stickers_need_a_bank(distortion, photograph):
    with pytest.raises(InputError, match="TileBank"):
        distortion(photograph, 1)
