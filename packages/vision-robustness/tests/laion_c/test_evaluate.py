"""Scoring a labelled folder: the figures by hand, model loading, layouts, and what is refused."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from hexad.core.errors import InputError
from hexad.vision_robustness.laion_c import SuperclassMapper, error_consistency, evaluate_folder
from hexad.vision_robustness.laion_c.evaluate import evaluate_predictions, model_input
from hexad.vision_robustness.laion_c.images import benchmark_frame
from hexad.vision_robustness.laion_c.labelled import find_labelled
from hexad.vision_robustness.laion_c.models import Classifier, load_classifier

COLOURS = {"red": (250, 10, 10), "green": (10, 250, 10), "blue": (10, 10, 250)}
MAPPER = SuperclassMapper({name: [index] for index, name in enumerate(COLOURS)}, classes=3)


class Brightest(nn.Module):
    """Three classes: which channel is the brightest. It wants input normalised to [-1, 1]."""

    pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "input_size": (3, 64, 64)}  # noqa: RUF012

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        # On input in [0, 1] the threshold would put everything into the last class.
        return torch.where(images.mean((2, 3)) > -0.5, images.mean((2, 3)) + 5, torch.zeros(3))


def brightest() -> nn.Module:
    return Brightest()


def no_module() -> int:
    return 3


def classifier(module: nn.Module | None = None, size: int = 64) -> Classifier:
    cpu = torch.device("cpu")
    return Classifier("brightest", module or Brightest(), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), size, cpu)


def write(root: Path, name: str, colour: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (224, 224), COLOURS[colour]).save(root / name)


@pytest.fixture
def root(tmp_path) -> Path:
    """Mosaic 1: 3 of 3 right; mosaic 3: 1 of 2; glitched 1: 0 of 1."""
    folder = tmp_path / "distorted"
    for name in COLOURS:
        write(folder, f"mosaic/intensity_level_1/{name}/x.png", name)
    write(folder, "mosaic/intensity_level_3/red/x.png", "red")
    write(folder, "mosaic/intensity_level_3/green/x.png", "blue")
    write(folder, "glitched/intensity_level_1/blue/deeper/x.png", "green")
    (folder / "manifest.json").write_text("{}")
    return folder


def test_the_figures_are_those_counted_by_hand(root, tmp_path):
    write(tmp_path, "clean/red/x.png", "red")
    write(tmp_path, "clean/blue/x.png", "blue")
    evaluation = evaluate_folder(classifier(), root, MAPPER, clean=tmp_path / "clean", batch_size=2)
    summary = evaluation.summary()
    assert evaluation.cells() == {
        ("clean", 0): (2, 1.0), ("glitched", 1): (1, 0.0), ("mosaic", 1): (3, 1.0), ("mosaic", 3): (2, 0.5),
    }  # fmt: skip
    assert summary["mean"] == pytest.approx((0 + 1 + 0.5) / 3), "over cells, not over images"
    assert summary["clean"] == 1
    assert summary["by_distortion"] == {"glitched": 0, "mosaic": 0.75}
    assert summary["by_level"] == {"1": 0.5, "3": 0.5}
    assert {k: (v["images"], v["accuracy"]) for k, v in summary["by_superclass"].items()} == {
        "blue": (2, 0.5), "green": (2, 0.5), "red": (2, 1.0),
    }  # fmt: skip
    assert summary["benchmark_mean"] is None
    assert len(summary["missing"]) == 27
    assert "stickers/5" in summary["missing"]


def test_the_leaderboard_figure_is_given_for_all_thirty_cells(tmp_path):
    from hexad.vision_robustness.laion_c import DISTORTIONS

    for number, name in enumerate(DISTORTIONS):
        for level in range(1, 6):
            write(tmp_path, f"{name}/intensity_level_{level}/red/x.png", "red" if number < 2 else "blue")
    summary = evaluate_folder(classifier(), tmp_path, MAPPER).summary()
    assert summary["benchmark_mean"] == pytest.approx(1 / 3)
    assert summary["missing"] == []


def test_a_folder_of_superclasses_alone_is_scored_as_clean(tmp_path):
    write(tmp_path, "red/x.png", "red")
    write(tmp_path, "blue/x.png", "red")
    summary = evaluate_folder(classifier(), tmp_path, MAPPER).summary()
    assert (summary["clean"], summary["mean"], summary["missing"]) == (0.5, None, [])


def test_the_files_hold_the_same_figures(root, tmp_path):
    evaluation = evaluate_folder(classifier(), root, MAPPER)
    (tmp_path / "report").mkdir()
    files = evaluation.write(tmp_path / "report")
    assert [path.name for path in files] == ["report.json", "report.csv", "predictions.csv", "accuracy.png"]
    assert json.loads(files[0].read_text()) == evaluation.summary()
    cells = list(csv.DictReader(files[1].open()))
    assert [(c["distortion"], c["level"], c["images"], float(c["accuracy"])) for c in cells] == [
        ("glitched", "1", "1", 0.0), ("mosaic", "1", "3", 1.0), ("mosaic", "3", "2", 0.5),
    ]  # fmt: skip
    answers = list(csv.DictReader(files[2].open()))
    assert len(answers) == 6
    wrong = [row for row in answers if row["correct"] == "False"]
    assert [(row["path"], row["label"], row["predicted"]) for row in wrong] == [
        ("glitched/intensity_level_1/blue/deeper/x.png", "blue", "green"),
        ("mosaic/intensity_level_3/green/x.png", "green", "blue"),
    ]
    with Image.open(files[3]) as image:
        assert image.size[0] > 600


def test_the_model_s_own_normalisation_is_used(root):
    assert evaluate_folder(classifier(), root, MAPPER).summary()["mean"] == pytest.approx(0.5)
    plain = Classifier("raw", Brightest(), (0.0,) * 3, (1.0,) * 3, 64, torch.device("cpu"))
    # Without it all three channels pass the threshold, and on ties the figures change.
    images = np.full((1, 64, 64, 3), 10, np.uint8)
    assert not np.allclose(plain.logits(images), classifier().logits(images))


def test_other_images_than_224_are_framed_then_scaled(photograph):
    assert model_input(photograph, 224) is photograph
    large = np.asarray(Image.fromarray(photograph).resize((500, 375)))
    assert np.array_equal(model_input(large, 224), benchmark_frame(large))
    assert model_input(photograph, 300).shape == (300, 300, 3)


# -- outputs computed elsewhere ---------------------------------------------------------------------------


def test_stored_logits_and_probabilities_are_scored(tmp_path):
    paths = ["mosaic/intensity_level_1/red/a.png", "mosaic/intensity_level_1/green/b.png", "blue/c.png"]
    logits = np.array([[3.0, 1, 0], [3, 1, 0], [0, 1, 3]])
    np.savez(tmp_path / "logits.npz", paths=paths, logits=logits)
    np.savez(tmp_path / "probs.npz", paths=paths, probs=np.exp(logits) / np.exp(logits).sum(1, keepdims=True))
    for name in ("logits", "probs"):
        evaluation = evaluate_predictions(tmp_path / f"{name}.npz", MAPPER)
        assert evaluation.cells() == {("clean", 0): (1, 1.0), ("mosaic", 1): (2, 0.5)}
    assert error_consistency(evaluation.correct, np.array([True, False, True])) == 1


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"logits": np.zeros((1, 3))}, "must hold `paths`"),
        ({"paths": ["red/a"]}, "must hold `paths` and either"),
        ({"paths": ["red/a"], "logits": np.zeros((1, 3)), "probs": np.zeros((1, 3))}, "must hold `paths`"),
        ({"paths": ["red/a"], "logits": np.zeros((2, 3))}, r"`logits` of .* must have shape \(1, classes\)"),
        ({"paths": ["red/a"], "logits": np.float64(3)}, r"`logits` of .*not \(\)"),
        ({"paths": np.array([], "U1"), "logits": np.zeros((0, 3))}, "list no image"),
        ({}, "they hold no array"),
        ({"paths": ["red/a", "red\\a"], "logits": np.zeros((2, 3))}, "list the path 'red/a' 2 times"),
        ({"paths": ["red/a"], "logits": np.array([["1", "2", "3"]])}, "must be real numbers, not <U1"),
        ({"paths": ["red/a"], "logits": np.zeros((1, 3), complex)}, "must be real numbers, not complex128"),
        ({"paths": ["red/a"], "probs": np.full((1, 3), 0.5)}, "probabilities of row 0 add up to 1.5"),
        ({"paths": ["mozaic/intensity_level_1/red/a"], "logits": np.zeros((1, 3))}, "did you mean 'mosaic'"),
        ({"paths": ["mosaic/intensity_level_7/red/a"], "logits": np.zeros((1, 3))}, "is no intensity"),
        ({"paths": [1], "logits": np.zeros((1, 3))}, "must be text"),
        ({"paths": ["a"], "logits": np.zeros((1, 3))}, "path 'a' is neither"),
        (
            {"paths": ["rde/a"], "logits": np.zeros((1, 3))},
            "'rde' in path 'rde/a' is no superclass; did you mean",
        ),
        ({"paths": ["red/a"], "logits": np.zeros((1, 4))}, r"must have shape \(batch, 3\)"),
        ({"paths": ["red/a"], "logits": np.full((1, 3), np.nan)}, "NaN"),
        ({"paths": ["red/a"], "probs": np.full((1, 3), 7.0)}, "outside"),
    ],
)
def test_stored_outputs_that_make_no_sense_are_refused(arrays, message, tmp_path):
    np.savez(tmp_path / "preds.npz", **arrays)
    with pytest.raises(InputError, match=message):
        evaluate_predictions(tmp_path / "preds.npz", MAPPER)


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    (tmp_path / "preds.npz").write_bytes(b"no archive")
    with pytest.raises(InputError, match=r"are no \.npz of plain arrays$"):
        evaluate_predictions(tmp_path / "preds.npz", MAPPER)
    with pytest.raises(InputError, match="does not exist"):
        evaluate_predictions(tmp_path / "other.npz", MAPPER)


# -- folders that are refused -----------------------------------------------------------------------------


def test_a_folder_without_superclass_subfolders_is_refused(tmp_path):
    write(tmp_path / "flat", "x.png", "red")
    with pytest.raises(InputError, match="holds no superclass folders"):
        find_labelled(tmp_path / "flat", MAPPER.names)
    write(tmp_path / "deep", "mosaic/intensity_level_1/x.png", "red")
    with pytest.raises(InputError, match=r"intensity_level_1 holds no superclass folders"):
        find_labelled(tmp_path / "deep", MAPPER.names)


def test_unknown_superclasses_are_refused_with_the_nearest(root):
    write(root, "mosaic/intensity_level_3/gren/x.png", "green")
    with pytest.raises(
        InputError, match=r"'gren' in .*intensity_level_3 is no superclass; did you mean 'green'"
    ):
        evaluate_folder(classifier(), root, MAPPER)


def test_an_empty_superclass_folder_is_refused(root):
    (root / "mosaic/intensity_level_3/blue").mkdir()
    with pytest.raises(InputError, match=r"no images in .*blue"):
        evaluate_folder(classifier(), root, MAPPER)


def test_a_stray_folder_among_the_types_is_refused(root):
    (root / "clean").mkdir()
    with pytest.raises(InputError, match="clean holds no folders intensity_level_1"):
        evaluate_folder(classifier(), root, MAPPER)


def test_types_and_intensities_that_there_are_not_are_refused(root):
    write(root, "mozaic/intensity_level_1/red/x.png", "red")
    with pytest.raises(InputError, match=r"unknown distortion 'mozaic' in .*did you mean 'mosaic'"):
        find_labelled(root, MAPPER.names)
    (root / "mozaic").rename(root / "stickers")
    for name in ("intensity_level_7", "intensity_level_x", "more"):
        write(root, f"stickers/{name}/red/x.png", "red")
        with pytest.raises(InputError, match=f"'{name}' in .*stickers is no intensity"):
            find_labelled(root, MAPPER.names)
        (root / "stickers" / name).rename(root.parent / name)


def test_the_folder_of_one_type_or_intensity_is_refused_with_the_one_to_name(root):
    for place in (root / "mosaic", root / "mosaic/intensity_level_1"):
        with pytest.raises(InputError, match=f"name the folder of all types, {root}$"):
            find_labelled(place, MAPPER.names)


def test_images_outside_superclass_folders_are_counted(root):
    for name in ("x.png", "mosaic/x.png", "mosaic/intensity_level_3/x.png"):
        write(root, name, "red")
    with pytest.warns(UserWarning, match="3 images lie in no superclass folder"):
        assert len(find_labelled(root, MAPPER.names)) == 6


def test_broken_links_are_refused(root):
    link = root / "mosaic/intensity_level_1/red/link.png"
    link.symlink_to("nowhere")
    with pytest.raises(InputError, match=r"link\.png: broken link"):
        find_labelled(root, MAPPER.names)
    link.unlink()
    (root / "mosaic/intensity_level_3/blue").symlink_to("nowhere")
    with pytest.raises(InputError, match="blue is a broken link"):
        find_labelled(root, MAPPER.names)


def test_an_unreadable_image_stops_the_evaluation_with_its_name(root):
    (root / "mosaic/intensity_level_1/red/cut.png").write_bytes(b"\x89PNG")
    with pytest.raises(InputError, match=r"cut\.png"):
        evaluate_folder(classifier(), root, MAPPER)


def test_clean_must_be_undistorted_and_given_once(root, tmp_path):
    with pytest.raises(InputError, match="holds distorted images"):
        evaluate_folder(classifier(), root, MAPPER, clean=root)
    write(tmp_path / "plain", "red/x.png", "red")
    with pytest.raises(InputError, match="leave out --clean"):
        evaluate_folder(classifier(), tmp_path / "plain", MAPPER, clean=tmp_path / "plain")


def test_a_batch_size_below_1_is_refused(root):
    with pytest.raises(InputError, match="batch size"):
        evaluate_folder(classifier(), root, MAPPER, batch_size=0)


# -- models -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    import timm

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "small.pth"
    model = timm.create_model("test_resnet", pretrained=False).eval()
    torch.save(model.state_dict(), path)
    return path, model


def test_a_timm_model_has_its_weights_normalisation_and_size(checkpoint):
    path, model = checkpoint
    loaded = load_classifier(f"timm:test_resnet,{path}", device="cpu")
    assert loaded.mean == pytest.approx(model.pretrained_cfg["mean"])
    assert loaded.std == pytest.approx(model.pretrained_cfg["std"])
    assert loaded.size == model.pretrained_cfg["input_size"][-1]
    images = np.random.default_rng(0).integers(0, 256, (2, loaded.size, loaded.size, 3), dtype=np.uint8)
    mean, std = np.array(loaded.mean), np.array(loaded.std)
    normal = torch.from_numpy(((images / 255 - mean) / std).transpose(0, 3, 1, 2)).float()
    with torch.inference_mode():
        np.testing.assert_allclose(loaded.logits(images), model(normal).numpy(), rtol=1e-4, atol=1e-4)


def test_a_checkpoint_of_other_classes_gets_a_head_of_that_width(tmp_path):
    import timm

    torch.save(timm.create_model("test_resnet", num_classes=7).state_dict(), tmp_path / "seven.pth")
    loaded = load_classifier(f"timm:test_resnet,{tmp_path / 'seven.pth'}", device="cpu")
    assert loaded.logits(np.zeros((1, loaded.size, loaded.size, 3), np.uint8)).shape == (1, 7)


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
def test_exported_programs_and_torchscript_are_loaded(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)
    expected = classifier().logits(images)
    batch = torch.export.Dim("batch")
    example = torch.zeros(2, 3, 64, 64)
    program = torch.export.export(Brightest(), (example,), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "model.pt2")
    torch.jit.save(torch.jit.trace(Brightest(), example), tmp_path / "model.ts")
    for name in ("model.pt2", "model.ts"):
        half = (0.5, 0.5, 0.5)
        loaded = load_classifier(str(tmp_path / name), mean=half, std=half, size=64, device="cpu")
        np.testing.assert_allclose(loaded.logits(images), expected, rtol=1e-5)


def test_a_program_of_a_fixed_batch_size_is_given_full_batches(tmp_path, root):
    program = torch.export.export(Brightest(), (torch.zeros(4, 3, 64, 64),))
    torch.export.save(program, tmp_path / "four.pt2")
    half = (0.5, 0.5, 0.5)
    loaded = load_classifier(str(tmp_path / "four.pt2"), mean=half, std=half, size=64, device="cpu")
    assert loaded.batch == 4
    images = np.random.default_rng(0).integers(0, 256, (9, 64, 64, 3), dtype=np.uint8)
    for count in (1, 4, 9):
        expected = classifier().logits(images[:count])
        np.testing.assert_allclose(loaded.logits(images[:count]), expected, rtol=1e-5)
    assert (
        evaluate_folder(loaded, root, MAPPER).cells() == evaluate_folder(classifier(), root, MAPPER).cells()
    )


def test_a_function_s_module_is_loaded_with_its_own_normalisation(monkeypatch, tmp_path):
    (tmp_path / "my_models.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    pretrained_cfg = {'mean': (0.1, 0.2, 0.3), 'std': (1, 1, 1), 'input_size': (3, 96, 96)}\n"
        "    def forward(self, x):\n"
        "        return x.mean((2, 3))\n"
        "def make(): return Net()\n"
        "def wrong(): return 3\n"
        "def needs(depth): return Net()\n"
        "number = 5\n"
        "class Short(Net):\n"
        "    def forward(self, x):\n"
        "        return x.mean((2, 3))[:1]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    loaded = load_classifier("my_models:make", device="cpu")
    assert (loaded.mean, loaded.std, loaded.size) == ((0.1, 0.2, 0.3), (1.0, 1.0, 1.0), 96)
    with pytest.raises(InputError, match=r"must return a torch\.nn\.Module, not int"):
        load_classifier("my_models:wrong")
    with pytest.raises(InputError, match="cannot be imported"):
        load_classifier("my_models:nothing")
    with pytest.raises(InputError, match="cannot be imported"):
        load_classifier("no_such_module:make")
    for name in ("needs", "number"):
        with pytest.raises(InputError, match="must be a function without arguments"):
            load_classifier(f"my_models:{name}")
    with pytest.raises(InputError, match="must be finite"):
        load_classifier("my_models:make", mean=(float("nan"), 0, 0))
    short = load_classifier("my_models:Short", device="cpu")
    with pytest.raises(InputError, match="gives 1 rows of logits for 2 images"):
        short.logits(np.zeros((2, 96, 96, 3), np.uint8))


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
def test_a_module_that_does_not_say_its_normalisation_needs_it(tmp_path):
    torch.jit.save(torch.jit.trace(Brightest(), torch.zeros(1, 3, 64, 64)), tmp_path / "model.ts")
    with pytest.raises(InputError, match="--mean and --std"):
        load_classifier(str(tmp_path / "model.ts"))
    with pytest.raises(InputError, match="must be positive"):
        load_classifier(str(tmp_path / "model.ts"), mean=(0.0,) * 3, std=(1.0, 0.0, 1.0))


def test_an_unknown_timm_name_gets_a_hint(checkpoint):
    with pytest.raises(InputError, match=r"timm has no model 'resnet5O'; did you mean 'resnet50'"):
        load_classifier("timm:resnet5O,weights.pth")


def test_weights_are_never_downloaded():
    with pytest.raises(InputError, match="which are not downloaded"):
        load_classifier("timm:resnet50")


def test_checkpoints_that_are_missing_damaged_or_of_another_network_are_refused(checkpoint, tmp_path):
    path, _ = checkpoint
    with pytest.raises(InputError, match="does not exist"):
        load_classifier("timm:test_resnet,nowhere.pth")
    (tmp_path / "damaged.pth").write_bytes(path.read_bytes()[:1000])
    with pytest.raises(
        InputError, match="cannot be read as weights: it is damaged, or holds more than tensors"
    ):
        load_classifier(f"timm:test_resnet,{tmp_path / 'damaged.pth'}")
    (tmp_path / "junk.pt2").write_bytes(b"junk")
    with pytest.raises(InputError, match="it is damaged, or of another kind"):
        load_classifier(str(tmp_path / "junk.pt2"))
    with pytest.raises(InputError, match="does not fit timm's test_vit"):
        load_classifier(f"timm:test_vit,{path}")


def test_pickled_code_is_not_run(tmp_path):
    torch.save(_Trap(), tmp_path / "trap.pth")
    for spec in (f"timm:test_resnet,{tmp_path / 'trap.pth'}", str(tmp_path / "trap.pth")):
        with pytest.raises(InputError):
            load_classifier(spec)
    assert not _Trap.sprung


class _Trap:
    sprung = False

    def __reduce__(self):
        return _spring, ()


def _spring() -> _Trap:
    _Trap.sprung = True
    return _Trap()


def test_an_unknown_device_is_refused(checkpoint):
    path, _ = checkpoint
    for device in ("warp", "cuda:77"):
        with pytest.raises(InputError, match=rf"device '{device}' cannot be used"):
            load_classifier(f"timm:test_resnet,{path}", device=device)


def test_a_network_that_fails_or_gives_no_logits_is_named(root):
    class Pooled(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.mean()

    with pytest.raises(InputError, match="must give logits"):
        evaluate_folder(classifier(Pooled()), root, MAPPER)
    with pytest.raises(InputError, match="brightest fails on a batch of shape"):
        evaluate_folder(classifier(nn.Linear(5, 3)), root, MAPPER)


def test_logits_of_another_width_than_the_mapping_wants_are_refused(root):
    from hexad.vision_robustness.laion_c import SUPERCLASSES

    for name in ("dog", "cat", "bird"):
        assert name in SUPERCLASSES
    with pytest.raises(InputError, match=r"must have shape \(batch, 4\), not \(6, 3\)"):
        evaluate_folder(
            classifier(), root, SuperclassMapper({name: [i] for i, name in enumerate(COLOURS)}, classes=4)
        )
