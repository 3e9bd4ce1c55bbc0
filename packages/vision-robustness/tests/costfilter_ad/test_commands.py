"""The commands on folders in MVTec layout, as a user types them."""

import csv
import json
import shutil
import sys

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

from hexad.core.cli import main
from hexad.core.errors import InputError
from hexad.vision_robustness.costfilter_ad.filter import FilterConfig
from hexad.vision_robustness.costfilter_ad.fitting import FitConfig
from hexad.vision_robustness.costfilter_ad.folders import (
    find_products,
    find_test_images,
    read_mask,
    shrink_mask,
)
from hexad.vision_robustness.costfilter_ad.pictures import outlined, overlay
from hexad.vision_robustness.costfilter_ad.runs import RunConfig, deal, train_folder
from hexad.vision_robustness.costfilter_ad.textures import packaged

QUICK = (
    "--image-size", "96", "--templates", "2", "--samples", "12", "--validation-samples", "8", "--steps", "4",
    "--batch-size", "4", "--width", "8", "--map-size", "16", "-k", "8",
)  # fmt: skip


def surface(root, name, seed, good=5, defects=2, mode="RGB"):
    """A product folder of crops of a photograph, of unlike sizes, with painted squares as defects."""
    generator = np.random.default_rng(seed)
    pixels = packaged(f"{name}.png")

    def crop():
        height, width = generator.integers(100, 140, 2)
        y, x = generator.integers(0, 512 - 140, 2)
        return pixels[y : y + height, x : x + width].copy()

    for part, count in (("train/good", good), ("test/good", 2), ("test/patch", defects)):
        (root / part).mkdir(parents=True)
        for number in range(count):
            image = crop()
            if part == "test/patch":
                mask = np.zeros(image.shape[:2], np.uint8)
                mask[30:60, 40:80] = 255
                image[mask > 0] = (250, 30, 30)
                (root / "ground_truth/patch").mkdir(parents=True, exist_ok=True)
                Image.fromarray(mask).save(root / f"ground_truth/patch/{number:03}_mask.png")
            Image.fromarray(image).convert(mode).save(root / part / f"{number:03}.png")
    return root


def run(*arguments):
    """The exit code of `hexad vision-robustness costfilter-ad ...` in this process, which has torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hexad", "vision-robustness", "costfilter-ad", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    return ended.value.code or 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A data folder of one greyscale product, and a run on it."""
    root = tmp_path_factory.mktemp("costfilter")
    data = surface(root / "tile", "gravel", 0, mode="L")
    assert run("train", data, "-o", root / "run", *QUICK, "--json") == 0
    return root


def test_training_reports_what_it_chose_and_reads_no_test_image(trained, capsys):
    report = json.loads((trained / "run" / "run.json").read_text())
    assert report["products"] == {"tile": {"templates": 2, "training": 2, "validation": 1}}
    assert report["chosen"]["step"] in [part["step"] for part in report["parts"]]
    best = max(report["parts"], key=lambda part: part["ap"])
    assert report["chosen"]["lam"] == best["lam"]
    assert report["validation"]["ap"] >= report["validation"]["base_ap"] - 1e-9
    # The same again finds all done; moved and without the test folders it does so too.
    capsys.readouterr()
    again = shutil.copytree(trained / "run", trained / "again")
    before = (again / "checkpoints" / "best.safetensors").stat().st_mtime_ns
    shutil.copytree(trained / "tile" / "train", trained / "moved" / "train")
    assert run("train", trained / "moved", "-o", again, *QUICK, "--json") == 0
    assert json.loads(capsys.readouterr().out)["chosen"] == report["chosen"]
    assert (again / "checkpoints" / "best.safetensors").stat().st_mtime_ns == before


def test_predicting_writes_pictures_masks_and_scores_at_the_images_own_sizes(trained, capsys):
    capsys.readouterr()
    out = trained / "found"
    assert run("predict", trained / "run", trained / "tile", "-o", out, "--raw", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["images"] == 4
    for which in ("base", "filtered"):
        values = report["metrics"]["tile"][which]
        assert set(values) == {"image_auroc", "pixel_auroc", "pixel_ap", "pixel_f1", "pro"}
        assert all(0 <= value <= 1 for value in values.values())
    # A red square on grey gravel is found by the detector alone.
    assert report["metrics"]["tile"]["base"]["pixel_auroc"] > 0.9
    rows = list(csv.DictReader((out / "scores.csv").open()))
    assert [row["kind"] for row in rows] == ["good", "good", "patch", "patch"]
    for row in rows:
        name = "/".join(row["path"].split("/")[-2:]).removesuffix(".png")
        with Image.open(row["path"]) as image, Image.open(out / "masks" / f"{name}.png") as mask:
            assert mask.size == image.size
            heat = np.load(out / "maps" / f"{name}.npy")
            assert heat.shape == (image.height, image.width)
            above = np.asarray(mask) > 0
            assert np.array_equal(above, heat > report["mixture"]["threshold"])
            assert float(row["share_above"]) == pytest.approx(above.mean())
            with Image.open(out / "heatmaps" / f"{name}.png") as picture:
                times = -(-256 // min(image.size))
                assert picture.size == (2 * times * image.width + 4, times * image.height)


def test_lam_0_gives_the_detector_and_a_folder_without_kinds_gives_scores_alone(trained, capsys):
    loose = trained / "loose" / "deep"
    loose.mkdir(parents=True)
    for number, size in enumerate(((64, 200), (301, 77))):
        Image.fromarray(packaged("gravel.png")[: size[1], : size[0]]).save(loose / f"{number}.jpg")
    capsys.readouterr()
    assert run("predict", trained / "run", trained / "loose", "-o", trained / "a", "--lam", 0, "--json") == 0
    assert json.loads(capsys.readouterr().out)["metrics"] is None
    rows = list(csv.DictReader((trained / "a" / "scores.csv").open()))
    assert all(row["score"] == row["base_score"] for row in rows)
    assert (trained / "a" / "heatmaps" / "deep" / "1.png").is_file()
    model = trained / "run" / "model.safetensors"
    assert run("predict", model, loose / "0.jpg", "-o", trained / "b") == 0
    assert "1 image judged" in capsys.readouterr().out


def test_several_products_share_a_filter(tmp_path, capsys):
    for number, name in enumerate(("gravel", "grass")):
        surface(tmp_path / "data" / name, name, number, good=4 + number)
    arguments = ("train", tmp_path / "data", "-o", tmp_path / "run", *QUICK, "--detector", "reconstruction")
    assert run(*arguments) == 0
    assert "pixel AP on synthetic validation" in capsys.readouterr().out.replace("\n", " ")
    assert run("predict", tmp_path / "run", tmp_path / "data", "-o", tmp_path / "out") == 0
    shown = capsys.readouterr().out
    assert "grass" in shown
    assert "gravel" in shown
    assert (tmp_path / "out" / "heatmaps" / "grass" / "patch" / "001.png").is_file()
    # One product's folder is known by its name, and a loose image by nothing.
    assert run("predict", tmp_path / "run", tmp_path / "data" / "grass", "-o", tmp_path / "one") == 0
    capsys.readouterr()
    loose = tmp_path / "data" / "grass" / "test" / "good" / "000.png"
    assert run("predict", tmp_path / "run", loose, "-o", tmp_path / "two") == 2
    assert "does not say of which product" in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "two").exists()


def test_another_run_in_the_same_folder_is_refused(trained, capsys, tmp_path):
    capsys.readouterr()
    assert run("train", trained / "tile", "-o", trained / "run", *QUICK, "--lr", "0.1") == 2
    assert "holds a run with other settings (lr)" in capsys.readouterr().err.replace("\n", " ")
    (tmp_path / "note.txt").write_text("mine")
    assert run("train", trained / "tile", "-o", tmp_path, *QUICK) == 2
    assert "holds other files" in capsys.readouterr().err.replace("\n", " ")
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda data: [p.unlink() for p in (data / "train/good").iterdir()], "no images in"),
        (lambda data: [p.unlink() for p in sorted((data / "train/good").iterdir())[3:]], "need 4"),
        (lambda data: (data / "train/good/000.png").write_bytes(b"x"), "no image that Pillow can read"),
        (lambda data: Image.new("RGB", (63, 90)).save(data / "train/good/000.png"), "at least 64"),
        (lambda data: (data / "train/good").rename(data / "train/fine"), "no normal images"),
    ],
)
def test_bad_training_folders_are_refused_before_anything_is_written(spoil, words, tmp_path, capsys):
    spoil(surface(tmp_path / "data", "grass", 0))
    code = run("train", tmp_path / "data", "-o", tmp_path / "run", *QUICK)
    said = capsys.readouterr().err
    assert (code, words in said.replace("\n", " ")) == (2, True), said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_bad_masks_are_refused_before_anything_is_written(trained, tmp_path, capsys):
    data = surface(tmp_path / "tile", "grass", 0)
    path = data / "ground_truth/patch/001_mask.png"
    with Image.open(path) as file:
        right = np.asarray(file).copy()
    for wrong, words in ((right[:-1], "pixels, its image"), (right // 2, "is not binary (values 0, 127, as")):
        Image.fromarray(wrong).save(path)
        assert run("predict", trained / "run", data, "-o", tmp_path / "out") == 2
        assert words in capsys.readouterr().err.replace("\n", " ")
        assert not (tmp_path / "out").exists()
    # Grey ones are taken where a threshold is named.
    soft = right.copy()
    soft[right > 0] = 130
    soft[0, :3] = (1, 90, 127)
    Image.fromarray(soft).save(path)
    with pytest.raises(InputError, match="or cut it by --mask-threshold"):
        read_mask(path, right.shape)
    assert np.array_equal(read_mask(path, right.shape, 127), right > 0)
    assert run("predict", trained / "run", data, "-o", tmp_path / "out", "--mask-threshold", 127) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"image_size": 100}, "multiple of 32"),
        ({"templates": 0}, "templates is 0"),
        ({"validation": 1.0}, "validation is 1"),
        ({"detector": "magic"}, "unknown detector 'magic'"),
    ],
)
def test_nonsense_settings_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        RunConfig(**options)


def test_an_empty_texture_folder_is_refused(tmp_path):
    data = surface(tmp_path / "data", "grass", 0)
    (tmp_path / "empty").mkdir()
    config = RunConfig(textures=str(tmp_path / "empty"), filter=FilterConfig(), fit=FitConfig())
    with pytest.raises(InputError, match="no images in"):
        train_folder(data, tmp_path / "run", config)
    assert not (tmp_path / "run").exists()


def test_normal_images_are_dealt_out_without_overlap(tmp_path):
    paths = [tmp_path / f"{n}.png" for n in range(20)]
    split = deal(paths, 4, 0.25, seed=0)
    assert [len(part) for part in (split.templates, split.training, split.validation)] == [4, 12, 4]
    assert sorted(split.templates + split.training + split.validation) == sorted(paths)
    assert deal(paths, 4, 0.25, seed=1) != split
    assert deal(paths, 4, 0.25, seed=0) == split


def test_the_layout_is_read_as_mvtec_has_it(tmp_path):
    data = surface(tmp_path / "tile", "grass", 0)
    assert [product.name for product in find_products(data)] == ["tile"]
    assert [product.name for product in find_products(tmp_path)] == ["tile"]
    images = find_test_images(data, ["tile"])
    assert [(image.name, image.kind) for image in images] == [
        ("good/000", "good"), ("good/001", "good"), ("patch/000", "patch"), ("patch/001", "patch"),
    ]  # fmt: skip
    assert images[0].mask is None
    assert images[3].mask == data / "ground_truth/patch/001_mask.png"
    with pytest.raises(InputError, match="is of product 'tile'; the model knows a, b"):
        find_test_images(data, ["a", "b"])


def test_pictures_show_the_map_and_the_outline():
    pixels = np.full((40, 50, 3), 100, np.uint8)
    heat = np.zeros((40, 50))
    heat[10:20, 10:20] = 1
    shown = overlay(pixels, heat, 0.2, 0.9)
    assert np.array_equal(shown[0, 0], [100, 100, 100])
    assert shown[15, 15].sum() > 500
    drawn = outlined(pixels, heat > 0, (255, 0, 0))
    assert tuple(drawn[9, 15]) == (255, 0, 0)
    assert tuple(drawn[15, 15]) == (100, 100, 100)
    assert (pixels == 100).all()


def test_small_defects_count_for_images_and_regions(trained, tmp_path, capsys):
    # Of large photographs a defect of a few pixels is less than half a cell of the detector's map.
    data = tmp_path / "tile"
    for part in ("test/good", "test/speck", "ground_truth/speck"):
        (data / part).mkdir(parents=True)
    pixels = np.tile(packaged("gravel.png"), (2, 2, 1))
    mask = np.zeros(pixels.shape[:2], np.uint8)
    mask[500:503, 600:603] = 255
    for number in range(2):
        Image.fromarray(pixels).save(data / f"test/good/{number}.png")
        Image.fromarray(pixels).save(data / f"test/speck/{number}.png")
        Image.fromarray(mask).save(data / f"ground_truth/speck/{number}.png")
    assert run("predict", trained / "run", data, "-o", tmp_path / "out", "--json") == 0
    values = json.loads(capsys.readouterr().out)["metrics"]["tile"]["base"]
    assert values["image_auroc"] == 0.5  # two of each, and all alike
    assert None not in values.values()


def test_masks_are_shrunk_without_losing_a_region():
    mask = np.zeros((90, 120), bool)
    mask[:45, :60] = True  # a quarter: whole cells
    mask[80, 100] = mask[81, 101] = mask[88, 3] = True  # two regions of less than half a cell
    found = shrink_mask(mask, 30)
    expected = np.zeros((30, 30), bool)
    expected[:15, :15] = True
    expected[26, 25] = expected[27, 25] = True
    expected[29, 0] = True
    # Of the region over two cells the fuller one is kept: both hold one pixel, and the first is taken.
    expected[27, 25] = False
    assert np.array_equal(found, expected)
    assert not shrink_mask(np.zeros((50, 40), bool), 30).any()
    assert np.array_equal(
        shrink_mask(np.eye(8, dtype=bool), 16), np.eye(8, dtype=bool).repeat(2, 0).repeat(2, 1)
    )


def test_images_of_one_stem_have_results_of_their_own(trained, tmp_path):
    for suffix in ("png", "jpg", "bmp"):
        Image.fromarray(packaged("gravel.png")[:90, :90]).save(tmp_path / f"a.{suffix}")
    Image.fromarray(packaged("gravel.png")[:90, :90]).save(tmp_path / "b.png")
    assert run("predict", trained / "run", tmp_path, "-o", trained / "stems") == 0
    names = sorted(path.name for path in (trained / "stems" / "masks").iterdir())
    assert names == ["a.bmp.png", "a.jpg.png", "a.png.png", "b.png"]


def test_an_unreadable_image_is_left_out_and_named(trained, tmp_path, capsys):
    Image.fromarray(packaged("gravel.png")[:90, :90]).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_text("no picture")
    transparent = Image.new("RGBA", (80, 80), (10, 10, 10, 0))
    transparent.save(tmp_path / "c.png")
    assert run("predict", trained / "run", tmp_path, "-o", trained / "some", "--json") == 1
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert report["images"] == 2
    assert list(report["unreadable"]) == [str(tmp_path / "b.png")]
    assert "left out" in said.err
    assert "c.png: alpha was composited on white" in said.err
    assert len(list(csv.DictReader((trained / "some" / "scores.csv").open()))) == 2


def test_missing_and_empty_masks_are_said(trained, tmp_path, capsys):
    data = surface(tmp_path / "tile", "grass", 0)
    (data / "ground_truth/patch/001_mask.png").unlink()
    assert run("predict", trained / "run", data, "-o", tmp_path / "out", "--json") == 0
    said = capsys.readouterr()
    values = json.loads(said.out)["metrics"]["tile"]["base"]
    assert values["pixel_ap"] is None
    assert values["image_auroc"] is not None
    assert "1 of 2 images with a defect have no mask" in said.err
    with Image.open(data / "test/patch/001.png") as image:
        Image.new("L", image.size).save(data / "ground_truth/patch/001_mask.png")
    assert run("predict", trained / "run", data, "-o", tmp_path / "out", "--json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["metrics"]["tile"]["base"]["image_auroc"] is not None
    assert "the mask of a defect is empty" in said.err


def test_results_of_two_calls_do_not_mix(trained, tmp_path, capsys):
    one, two, out = tmp_path / "one", tmp_path / "two", tmp_path / "out"
    for folder, name in ((one, "a"), (two, "b")):
        folder.mkdir()
        Image.fromarray(packaged("gravel.png")[:90, :90]).save(folder / f"{name}.png")
    assert run("predict", trained / "run", one, "-o", out) == 0
    assert run("predict", trained / "run", two, "-o", out) == 0
    assert [path.name for path in (out / "heatmaps").iterdir()] == ["b.png"]
    (out / "notes.txt").write_text("mine")
    capsys.readouterr()
    assert run("predict", trained / "run", two, "-o", out) == 2
    assert "holds other files" in capsys.readouterr().err.replace("\n", " ")
    assert run("predict", trained / "run", two, "-o", trained / "run") == 2
    assert (trained / "run" / "model.safetensors").is_file()


def test_other_pixels_or_textures_are_another_run(trained, tmp_path, capsys):
    data = tmp_path / "tile"
    shutil.copytree(trained / "tile", data)
    path = data / "train/good/000.png"
    with Image.open(path) as image:
        Image.fromarray(255 - np.asarray(image)).save(path)
    capsys.readouterr()
    assert run("train", data, "-o", trained / "run", *QUICK) == 2
    assert "other settings (the images)" in capsys.readouterr().err.replace("\n", " ")
    textures = tmp_path / "textures"
    textures.mkdir()
    Image.fromarray(packaged("coffee.png")).save(textures / "a.png")
    assert run("train", trained / "tile", "-o", trained / "run", *QUICK, "--textures", textures) == 2
    assert "other settings (the textures)" in capsys.readouterr().err.replace("\n", " ")


def test_a_longer_training_goes_on(trained, tmp_path, capsys):
    shutil.copytree(trained / "run", tmp_path / "run")
    longer = [*QUICK, "--json"]
    longer[longer.index("--steps") + 1] = "9"
    before = (tmp_path / "run" / "training" / "layer0.npy").stat().st_mtime_ns
    capsys.readouterr()
    assert run("train", trained / "tile", "-o", tmp_path / "run", *longer) == 0
    report = json.loads(capsys.readouterr().out)
    steps = [part["step"] for part in report["parts"]]
    assert steps[:4] == [1, 2, 3, 4]
    assert steps[-1] == 9
    assert (tmp_path / "run" / "training" / "layer0.npy").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--width", "12"), "width"),
        (("-k", "100000"), "k is 100000"),
        (("--seed", "-1"), "seed is -1"),
        (("--seed", "99999999999999999999"), "it must lie below 2^32"),
        (("--device", "abacus"), "device 'abacus' cannot be used here"),
    ],
)
def test_bad_options_take_no_folder(options, words, trained, tmp_path, capsys):
    capsys.readouterr()
    assert run("train", trained / "tile", "-o", tmp_path / "run", *QUICK, *options) == 2
    assert words in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "run").exists()
    assert run("train", trained / "tile", "-o", trained / "tile" / "run", *QUICK) == 2
    assert "lies in the data" in capsys.readouterr().err.replace("\n", " ")


def test_damaged_models_are_one_line(trained, tmp_path, capsys):
    with safe_open(trained / "run" / "model.safetensors", framework="pt") as opened:
        described = opened.metadata()
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
    image = trained / "tile" / "test" / "good" / "000.png"
    first = next(
        name for name in tensors if name.startswith("network.") and tensors[name].is_floating_point()
    )
    for spoiled, words in (
        (tensors | {first: tensors[first] * float("nan")}, "numbers that are not finite"),
        (
            {name.replace("network", "netwrok"): value for name, value in tensors.items()},
            "does not fit its own",
        ),
        (
            {name.replace("templates.0", "x.0"): value for name, value in tensors.items()},
            "does not fit its own",
        ),
    ):
        save_file(spoiled, tmp_path / "model.safetensors", metadata=described)
        capsys.readouterr()
        assert run("predict", tmp_path, image, "-o", tmp_path / "out") == 2
        assert words in capsys.readouterr().err.replace("\n", " ")
        assert not (tmp_path / "out").exists()


def test_the_best_part_must_be_there(trained, tmp_path, capsys):
    shutil.copytree(trained / "run", tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "best.safetensors").write_bytes(b"cut")
    capsys.readouterr()
    assert run("train", trained / "tile", "-o", tmp_path / "run", *QUICK) == 2
    assert "best.safetensors is missing or damaged" in capsys.readouterr().err.replace("\n", " ")
