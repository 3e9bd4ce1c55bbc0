"""The commands on folders in MVTec layout, as a user types them."""

import csv
import json
import sys

import numpy as np
import pytest
from PIL import Image

from hexad.core.cli import main
from hexad.core.errors import InputError
from hexad.vision_robustness.costfilter_ad.filter import FilterConfig
from hexad.vision_robustness.costfilter_ad.fitting import FitConfig
from hexad.vision_robustness.costfilter_ad.folders import find_products, find_test_images, read_mask
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
    text = (trained / "run" / "training" / "samples.json").read_text()
    assert "train/good" in text
    assert "/test/" not in text
    # The same again finds all done; without the test folders it does so too.
    capsys.readouterr()
    before = (trained / "run" / "checkpoints" / "best.safetensors").stat().st_mtime_ns
    assert run("train", trained / "tile", "-o", trained / "run", *QUICK, "--json") == 0
    assert json.loads(capsys.readouterr().out)["chosen"] == report["chosen"]
    assert (trained / "run" / "checkpoints" / "best.safetensors").stat().st_mtime_ns == before


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
                assert picture.size == (2 * image.width + 4, image.height)


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
    assert "holds a run with other settings (fit)" in capsys.readouterr().err.replace("\n", " ")
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
    for wrong, words in ((right[:-1], "and its image"), (right // 2, "is not binary")):
        Image.fromarray(wrong).save(path)
        assert run("predict", trained / "run", data, "-o", tmp_path / "out") == 2
        said = capsys.readouterr().err.replace("\n", " ")
        assert words in said or "pixels, its image" in said
        assert not (tmp_path / "out").exists()
    # Grey ones are taken where a threshold is named.
    soft = right.copy()
    soft[right > 0] = 130
    soft[0, :3] = (1, 90, 127)
    Image.fromarray(soft).save(path)
    with pytest.raises(InputError, match="or --mask-threshold 127"):
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
