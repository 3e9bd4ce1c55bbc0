"""The commands as a user calls them: `hexad vision-robustness laion-c ...`."""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hexad.core.cli import main
from hexad.core.data import load_photograph
from hexad.vision_robustness import laion_c
from hexad.vision_robustness.laion_c import SUPERCLASSES


@pytest.fixture
def run(monkeypatch, capfd):
    """Call the command line in this process; gives exit code, stdout and stderr."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hexad", "vision-robustness", "laion-c", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return call


@pytest.fixture
def photos(tmp_path) -> Path:
    for name, photograph in (("dog/a.png", "china"), ("bird/b.jpg", "flower")):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(load_photograph(photograph)).resize((320, 240)).save(tmp_path / "photos" / name)
    return tmp_path / "photos"


def test_apply_distorts_a_folder_and_says_what_it_did(run, photos, tmp_path):
    out = tmp_path / "out"
    code, stdout, _ = run(
        "apply", photos, out, "--types", "glitched,vertical_lines", "--levels", "1-2,4", "-j", 1
    )
    assert code == 0
    assert "12 images written from 2 sources" in stdout
    assert (out / "vertical_lines/intensity_level_4/dog/a_vertical_lines_4.JPEG").is_file()
    code, stdout, _ = run("apply", photos, out, "--types", "glitched", "--levels", "1", "--json")
    assert code == 0
    assert {key: json.loads(stdout)[key] for key in ("images", "written", "kept")} == {
        "images": 2, "written": 0, "kept": 2,
    }  # fmt: skip


def test_apply_names_and_counts_unreadable_images_and_exits_with_1(run, photos, tmp_path):
    data = (photos / "bird/b.jpg").read_bytes()
    (photos / "bird/cut.jpg").write_bytes(data[: len(data) // 2])
    code, stdout, stderr = run(
        "apply", photos, tmp_path / "out", "--types", "glitched", "--levels", "1", "-j", 1
    )
    assert code == 1
    assert "2 images written" in stdout
    assert "skipped bird/cut.jpg: image file is truncated" in stderr
    assert str(photos) not in stderr, "the path is named once"
    assert "truncated" in stderr
    assert "1 source could not be read" in stderr


def test_apply_strict_stops_at_once(run, photos, tmp_path):
    (photos / "bird/a_cut.jpg").write_bytes(b"\xff\xd8")
    code, _, stderr = run(
        "apply", photos, tmp_path / "out", "--types", "glitched", "--levels", "1", "-j", 1, "--strict"
    )
    assert code == 2
    assert stderr.startswith("error: ")
    assert "a_cut.jpg" in stderr
    assert stderr.count("\n") == 1, "one line, no traceback"


def test_alpha_is_reported(run, photos, tmp_path):
    Image.new("RGBA", (64, 64), (255, 0, 0, 40)).save(photos / "dog/clear.png")
    _, stdout, _ = run("apply", photos, tmp_path / "out", "--types", "glitched", "--levels", "1", "-j", 1)
    assert "alpha of 1 image was composited on white" in stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--types", "fog"], "unknown distortion 'fog'"),
        (["--levels", "0-3"], "severity is 0"),
        (["--levels", "6"], "severity is 6"),
        (["--levels", "one"], "--levels is 'one'"),
        (["--levels", ""], "names none"),
        (["--seed", "-1"], "seed is -1"),
        (["--glitch-seed", "some"], "--glitch-seed is 'some'"),
        (["--jobs", "0"], "jobs is 0"),
        (["--tiles", "nowhere"], "tile folder nowhere does not exist"),
        (["--tiles", "nowhere.npz"], "tile bank nowhere.npz does not exist"),
    ],
)
def test_apply_refuses_bad_options_in_one_line(arguments, message, run, photos, tmp_path):
    code, _, stderr = run("apply", photos, tmp_path / "out", *arguments)
    assert code == 2
    assert message in stderr
    assert stderr.count("\n") == 1
    assert not (tmp_path / "out" / "glitched").exists()


def test_apply_refuses_a_missing_or_empty_folder_and_one_inside_the_other(run, photos, tmp_path):
    (tmp_path / "empty").mkdir()
    for source, target, message in (
        (tmp_path / "nowhere", tmp_path / "out", "does not exist"),
        (tmp_path / "empty", tmp_path / "out", "no images in"),
        (photos, photos / "out", "must lie beside each other"),
    ):
        code, _, stderr = run("apply", source, target)
        assert (code, message in stderr) == (2, True)


def test_preview_draws_all_thirty_distortions(run, photos, tmp_path):
    code, stdout, _ = run("preview", photos / "dog/a.png", tmp_path / "sheet.png", "--tiles", "source")
    assert code == 0
    assert "2000 crops of source images" in stdout
    with Image.open(tmp_path / "sheet.png") as image:
        assert image.width > image.height > 900
        pixels = np.asarray(image.convert("L")).astype(int)
    # The last row is the luminance checkerboard: by the fifth level it is nearly black and white.
    last = pixels[-170:-10, -170:-10]
    assert np.isin(last, range(40)).mean() + np.isin(last, range(215, 256)).mean() > 0.8


def test_preview_refuses_other_formats_and_its_own_input(run, photos, tmp_path):
    assert ".png" in run("preview", photos / "dog/a.png", tmp_path / "sheet.jpg")[2]
    assert "is the input itself" in run("preview", photos / "dog/a.png", photos / "dog/a.png")[2]
    assert "does not exist" in run("preview", photos / "dog/z.png", tmp_path / "sheet.png")[2]


def test_tiles_makes_a_bank_that_apply_takes(run, photos, tmp_path):
    (tmp_path / "many").mkdir()
    for number in range(100):
        Image.fromarray(load_photograph("flower")[number : number + 64, :64]).save(
            tmp_path / f"many/{number}.png"
        )
    code, stdout, _ = run("tiles", tmp_path / "many", tmp_path / "bank.npz")
    assert code == 0
    assert "100 tiles of 4, 6, 8, 16, 28 pixels" in stdout
    code, stdout, _ = run(
        "apply", photos, tmp_path / "out", "--types", "stickers", "--levels", "1",
        "--tiles", tmp_path / "bank.npz", "-j", 1,
    )  # fmt: skip
    assert code == 0
    assert "tiles: 100 saved bank" in stdout


def test_evaluate_scores_what_apply_wrote_with_weights_from_a_wheel(run, photos, tmp_path):
    run("apply", photos, tmp_path / "out", "--types", "glitched", "--levels", "1,5", "-j", 1)
    code, stdout, _ = run(
        "evaluate", tmp_path / "out", "--clean", photos, "--device", "cpu", "--out", tmp_path / "report",
        "--model", "hexad.vision_robustness.efficientnet:load_efficientnet_lite0",
    )  # fmt: skip
    assert code == 0
    assert "glitched" in stdout
    assert "28 of the benchmark's 30 cells are missing" in stdout
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == [
        "accuracy.png", "predictions.csv", "report.csv", "report.json",
    ]  # fmt: skip


def test_evaluate_scores_stored_outputs_with_a_custom_mapping(run, tmp_path):
    np.savez(tmp_path / "preds.npz", paths=["pet/a", "car/b"], logits=np.array([[0.0, 3, 1], [0, 3, 1]]))
    (tmp_path / "mapping.json").write_text(json.dumps({"pet": ["cat", "dog"], "car": ["car"]}))
    (tmp_path / "index.json").write_text(json.dumps({"car": 0, "cat": 1, "dog": 2}))
    code, stdout, _ = run(
        "evaluate", "--preds", tmp_path / "preds.npz", "--mapping", tmp_path / "mapping.json",
        "--class-index", tmp_path / "index.json", "--out", tmp_path / "report", "--json",
    )  # fmt: skip
    assert code == 0
    assert json.loads(stdout)["clean"] == 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either a folder and --model (timm:NAME,CHECKPOINT; FILE.pt2;"),
        (["--model", "timm:resnet50,x.pth"], "needs a labelled folder"),
        (["out", "--preds", "p.npz"], "leave out the folder"),
        (["nowhere", "--model", "timm:resnet50,x.pth"], "labelled folder nowhere does not exist"),
        ([".", "--model", "timm:resnet5O,x.pth"], "did you mean 'resnet50'"),
        ([".", "--model", "nowhere.pt2"], "model nowhere.pt2 does not exist"),
        ([".", "--model", "timm:resnet50"], "not downloaded"),
        ([".", "--model", "resnet50"], "write --model timm:resnet50,CHECKPOINT"),
        ([".", "--model", "a:b", "--mean", "1,2"], "--mean is '1,2'"),
        (["--preds", "nowhere.npz"], "predictions nowhere.npz does not exist"),
    ],
)
def test_evaluate_refuses_bad_options_in_one_line(arguments, message, run, tmp_path):
    code, _, stderr = run("evaluate", *arguments, "--out", tmp_path / "report")
    assert code == 2
    assert message in stderr
    assert stderr.count("\n") == 1
    assert not (tmp_path / "report").exists()


def test_a_report_inside_the_scored_folder_is_refused_before_it_is_made(run, photos):
    for option in ((photos,), ("elsewhere", "--clean", photos)):
        code, _, stderr = run("evaluate", *option, "--model", "a:b", "--out", photos / "report")
        assert (code, "is scored; name another by --out" in stderr) == (2, True)
    assert not (photos / "report").exists()


def test_images_without_a_superclass_are_counted_and_a_failed_run_leaves_no_report(run, photos, tmp_path):
    model = "hexad.vision_robustness.efficientnet:load_efficientnet_lite0"
    Image.new("RGB", (40, 40)).save(photos / "loose.png")
    code, _, stderr = run(
        "evaluate", photos, "--model", model, "--device", "cpu", "--out", tmp_path / "report"
    )
    assert code == 0
    assert "warning: 1 images lie in no superclass folder and are not scored, the first: " in stderr
    assert "loose.png" in stderr
    (photos / "dog/cut.png").write_bytes(b"cut")
    code, *_ = run(
        "evaluate", photos, "--model", model, "--device", "cpu", "--out", tmp_path / "other/report"
    )
    assert code == 2
    assert not (tmp_path / "other").exists()


def test_large_images_pass_without_a_warning_and_larger_ones_are_named(run, photos, tmp_path, monkeypatch):
    # Pillow warns from its limit on and raises from twice that on.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50_000)
    Image.new("RGB", (400, 400)).save(photos / "dog/large.png")
    code, _, stderr = run("apply", photos, tmp_path / "out", "--types", "glitched", "--levels", "1", "-j", 1)
    assert code == 1
    assert stderr.splitlines() == [
        "skipped dog/large.png: it has more than 100,000 pixels; make a smaller copy",
        "1 source could not be read",
    ]


def test_every_superclass_is_a_folder_name_that_evaluate_knows():
    assert all(name == name.lower() and "/" not in name for name in SUPERCLASSES)


def test_the_light_face_imports_nothing_heavy():
    code = (
        "import sys, hexad.vision_robustness.laion_c.method\n"
        "heavy = {'numpy', 'torch', 'PIL', 'scipy', 'timm', 'typer', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "import hexad.vision_robustness.laion_c\n"
        "assert 'numpy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there_and_no_module():
    assert all(not inspect.ismodule(getattr(laion_c, name)) for name in laion_c.__all__)


def test_distorting_needs_no_torch():
    code = (
        "import sys, numpy as np\n"
        "from hexad.vision_robustness.laion_c import corrupt\n"
        "corrupt(np.zeros((40, 40, 3), np.uint8), 'glitched', 1)\n"
        "import hexad.vision_robustness.laion_c.folders\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
