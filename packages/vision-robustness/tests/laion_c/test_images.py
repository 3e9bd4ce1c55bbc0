"""Reading and framing images, against torchvision, and what is refused."""

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import v2

from hexad.core.data import load_photograph
from hexad.core.errors import InputError
from hexad.vision_robustness.images import find_images, read_image, rgb_array
from hexad.vision_robustness.laion_c import corrupt, mosaic
from hexad.vision_robustness.laion_c.images import benchmark_frame, pixel_unit, scaled_count


@pytest.mark.parametrize(("height", "width"), [(427, 640), (640, 427), (256, 256), (33, 90), (301, 1001)])
@pytest.mark.parametrize(("resize", "crop"), [(256, 224), (252, 252), (252, 224)])
def test_the_frame_equals_torchvision_s_resize_and_centre_crop(height, width, resize, crop):
    image = Image.fromarray(load_photograph("china")).resize((width, height))
    expected = np.asarray(v2.Compose([v2.Resize(resize), v2.CenterCrop(crop)])(image))
    assert np.array_equal(benchmark_frame(np.asarray(image), resize, crop), expected)


def test_lengths_are_the_benchmark_s_up_to_335_pixels_then_grow():
    assert [pixel_unit(side, 2 * side) for side in (32, 224, 335, 337, 448, 3000)] == [1, 1, 1, 2, 2, 13]
    assert scaled_count(100, 224, 224) == scaled_count(100, 448, 448) == 100
    assert scaled_count(100, 224, 448) == 200
    assert scaled_count(100, 32, 32) == 2


# -- reading ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff", "webp", "gif", "jpg"])
def test_common_formats_are_read(suffix, tmp_path, photograph):
    path = tmp_path / f"image.{suffix}"
    options = {"webp": {"lossless": True}, "jpg": {"quality": 100, "subsampling": 0}}.get(suffix, {})
    Image.fromarray(photograph).save(path, **options)
    pixels, alpha = read_image(path)
    assert not alpha
    # Lossless formats give the same bytes; JPEG and the GIF's palette come near.
    near = {"jpg": 1.0, "gif": 12.0}.get(suffix, 0.0)
    assert np.abs(pixels.astype(int) - photograph).mean() <= near


def test_the_exif_orientation_is_applied(tmp_path, photograph):
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held a quarter turn
    Image.fromarray(photograph[:, :150]).save(tmp_path / "turned.png", exif=exif)
    pixels, _ = read_image(tmp_path / "turned.png")
    assert np.array_equal(pixels, np.rot90(photograph[:, :150], -1))


def test_alpha_is_composited_on_white_and_reported(tmp_path):
    rgba = np.zeros((40, 40, 4), np.uint8)
    rgba[:, :20, 3] = 255  # black and opaque on the left, black and clear on the right
    Image.fromarray(rgba).save(tmp_path / "alpha.png")
    pixels, alpha = read_image(tmp_path / "alpha.png")
    assert alpha
    assert not pixels[:, :20].any()
    assert (pixels[:, 20:] == 255).all()
    with pytest.warns(UserWarning, match="alpha was composited on white"):
        assert np.array_equal(rgb_array(rgba), pixels)


def test_transparency_of_a_palette_is_composited_too(tmp_path):
    image = Image.new("P", (40, 40), 0)
    image.putpalette([0, 0, 0, 200, 10, 10])
    image.paste(1, (0, 0, 20, 40))
    image.save(tmp_path / "palette.png", transparency=0)
    pixels, alpha = read_image(tmp_path / "palette.png")
    assert alpha
    assert pixels[0, 0].tolist() == [200, 10, 10]
    assert pixels[0, 30].tolist() == [255, 255, 255]


def test_an_animation_gives_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (40, 40), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "moving.gif", save_all=True, append_images=frames[1:])
    assert read_image(tmp_path / "moving.gif")[0][0, 0].tolist() == [255, 0, 0]


def test_sixteen_bits_are_scaled_not_clipped(tmp_path):
    Image.fromarray(np.full((40, 40), 0x8000, np.uint16)).save(tmp_path / "deep.png")
    assert (read_image(tmp_path / "deep.png")[0] == 128).all()


def test_cmyk_and_greyscale_files_become_rgb(tmp_path, photograph):
    Image.fromarray(photograph).convert("CMYK").save(tmp_path / "press.jpg", quality=100)
    Image.fromarray(photograph).convert("L").save(tmp_path / "grey.png")
    assert read_image(tmp_path / "press.jpg")[0].shape == (224, 224, 3)
    grey = read_image(tmp_path / "grey.png")[0]
    assert (grey == grey[:, :, :1]).all()


def test_images_are_found_in_subfolders_by_any_case_of_suffix(tmp_path):
    (tmp_path / "a" / ".hidden").mkdir(parents=True)
    for name in ("b.JPEG", "a/c.png", "a/.hidden/d.png", ".e.png", "notes.txt"):
        (tmp_path / name).touch()
    assert [path.relative_to(tmp_path).as_posix() for path in find_images(tmp_path)] == ["a/c.png", "b.JPEG"]


# -- bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("severity", [0, 6, -1, 2.0, "3", None, True])
def test_a_severity_outside_1_to_5_or_no_integer_is_refused(severity, photograph):
    with pytest.raises(InputError, match=r"severity is .*; it must be an integer from 1 to 5"):
        corrupt(photograph, "glitched", severity)


def test_numpy_integers_are_severities(photograph):
    assert np.array_equal(corrupt(photograph, "glitched", np.int64(2)), corrupt(photograph, "glitched", 2))


def test_an_unknown_type_is_refused_with_the_nearest_name(photograph):
    with pytest.raises(InputError, match=r"unknown distortion 'mosiac'; did you mean 'mosaic'\?"):
        corrupt(photograph, "mosiac", 1)


@pytest.mark.parametrize("shape", [(31, 224, 3), (224, 31, 3), (31, 31)])
def test_images_under_32_pixels_are_refused(shape):
    with pytest.raises(InputError, match="at least 32"):
        corrupt(np.zeros(shape, np.uint8), "glitched", 1)
    with pytest.raises(InputError, match="at least 32"):
        corrupt(Image.new("L", shape[1::-1]), "glitched", 1)


@pytest.mark.parametrize("shape", [(224, 224, 2), (224, 224, 5), (3, 224, 224), (1, 224, 224, 3), (224,)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(InputError, match="an image array must be"):
        corrupt(np.zeros(shape, np.uint8), "glitched", 1)


@pytest.mark.parametrize("value", [-0.01, 1.01, 255.0, np.nan, np.inf])
def test_float_images_outside_0_to_1_are_refused(value):
    image = np.full((40, 40, 3), 0.5, np.float32)
    image[3, 4, 1] = value
    with pytest.raises(InputError, match=r"must lie in \[0, 1\]"):
        corrupt(image, "glitched", 1)


@pytest.mark.parametrize("kind", [np.int16, np.int64, bool])
def test_other_dtypes_are_refused(kind):
    with pytest.raises(InputError, match="must be uint8"):
        corrupt(np.zeros((40, 40, 3), kind), "glitched", 1)


def test_what_is_no_image_is_refused():
    with pytest.raises(InputError, match="not list"):
        corrupt([[0]], "glitched", 1)
    with pytest.raises(InputError, match="mode 'F'"):
        corrupt(Image.new("F", (40, 40)), "glitched", 1)


@pytest.mark.parametrize("rng", [-1, "seed", 0.5])
def test_what_is_no_seed_is_refused(rng, photograph):
    with pytest.raises(InputError, match="rng is"):
        corrupt(photograph, "geometric_shapes", 1, rng)


@pytest.mark.parametrize("seed", [0, -3, 1.5, True])
def test_a_glitch_seed_below_1_is_refused(seed, photograph):
    # glitch-this takes 0 for no seed and would then differ from call to call.
    with pytest.raises(InputError, match="glitch_seed"):
        corrupt(photograph, "glitched", 1, glitch_seed=seed)


def test_a_tile_that_does_not_divide_the_size_is_refused_where_padding_is_off(photograph, palette_bank):
    with pytest.raises(InputError, match=r"tiles of 6 pixels do not divide an image of 224 x 224.*222 x 222"):
        mosaic(photograph, 2, tiles=palette_bank, pad=False)


def test_a_file_cut_short_is_named(tmp_path, photograph):
    Image.fromarray(photograph).save(tmp_path / "whole.jpg")
    whole = (tmp_path / "whole.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.jpg").write_text("no image")
    for name in ("cut", "empty", "text"):
        with pytest.raises(InputError, match=rf"{name}\.jpg: "):
            read_image(tmp_path / f"{name}.jpg")


def test_a_folder_without_images_is_refused(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError, match="no images in"):
        find_images(tmp_path)


def test_16_bits_of_which_few_are_used_are_said(tmp_path):
    path = tmp_path / "camera.png"
    Image.fromarray(np.full((40, 40), 4000, np.uint16)).save(path)
    with pytest.warns(UserWarning, match=r"camera\.png: its 16 bits reach 4000 of 65535"):
        read_image(path)
