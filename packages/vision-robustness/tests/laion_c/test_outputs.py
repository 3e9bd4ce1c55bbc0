"""What a folder holds after several runs: names that stay, outputs that go, links, and killed runs."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from hexad.core.errors import InputError
from hexad.vision_robustness.laion_c import ApplyConfig, apply_folder
from hexad.vision_robustness.laion_c.names import output_stems

GLITCHED = ApplyConfig(types=("glitched",), levels=(1,))
PLACE = "glitched/intensity_level_1"


def paint(path: Path, colour: str = "red") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 40), colour).save(path)


def outputs(out: Path) -> list[str]:
    """The outputs on disk; they must be those that the manifest lists."""
    found = sorted(path.relative_to(out).as_posix() for path in out.rglob("*.JPEG"))
    records = json.loads((out / "manifest.json").read_text())["images"].values()
    assert found == sorted(name for record in records for name in record["outputs"])
    return found


@pytest.fixture
def source(tmp_path) -> Path:
    paint(tmp_path / "st/cat/a.png")
    paint(tmp_path / "st/dog/d.png")
    return tmp_path / "st"


# -- names ------------------------------------------------------------------------------------------------


def test_stems_are_told_apart_by_suffix_and_then_by_a_hash():
    assert output_stems(["a/x.png", "x.png"], {}, ".png") == {"a/x.png": "a/x", "x.png": "x"}
    assert output_stems(["a.jpg", "a.png"], {}, ".png") == {"a.jpg": "a_jpg", "a.png": "a_png"}
    stems = output_stems(["same.PNG", "same.png"], {}, ".JPEG")
    assert stems["same.PNG"] == "same_PNG"
    assert stems["same.png"].startswith("same_png_")
    # a.png would be called what a_png.jpg is called by itself.
    stems = output_stems(["a.jpg", "a.png", "a_png.jpg"], {}, ".JPEG")
    assert (stems["a.jpg"], stems["a_png.jpg"]) == ("a_jpg", "a_png")
    assert len({stem.lower() for stem in stems.values()}) == 3


def test_whatever_has_an_output_keeps_its_stem():
    recorded = {"cat/a.png": "mosaic/intensity_level_3/cat/a_mosaic_3.JPEG"}
    assert output_stems(["cat/a.jpg", "cat/a.png"], recorded, ".JPEG") == {
        "cat/a.jpg": "cat/a_jpg", "cat/a.png": "cat/a",
    }  # fmt: skip
    # A record that was tampered with names nothing.
    for name in ("../a.JPEG", "mosaic/intensity_level_3/../../b_mosaic_3.JPEG", ""):
        assert output_stems(["cat/a.png"], {"cat/a.png": name}, ".JPEG") == {"cat/a.png": "cat/a"}


def test_files_that_differ_in_case_alone_are_both_distorted(source, tmp_path):
    paint(source / "cat/a.PNG")
    assert apply_folder(source, tmp_path / "out", GLITCHED).written == 3
    assert len(outputs(tmp_path / "out")) == 3


# -- outputs that are no longer made ----------------------------------------------------------------------


def test_an_added_image_renames_nothing_and_the_outputs_of_a_deleted_one_go(source, tmp_path):
    out = tmp_path / "out"
    apply_folder(source, out, GLITCHED)
    paint(source / "cat/a.jpg")
    added = apply_folder(source, out, GLITCHED)
    assert (added.written, added.kept, added.removed) == (1, 2, 0)
    assert outputs(out) == [f"{PLACE}/{name}_glitched_1.JPEG" for name in ("cat/a", "cat/a_jpg", "dog/d")]
    (source / "dog/d.png").unlink()
    summary = apply_folder(source, out, GLITCHED)
    assert (summary.written, summary.kept, summary.removed) == (0, 2, 1)
    assert len(outputs(out)) == 2
    assert not (out / PLACE / "dog").exists(), "an empty class folder would stop `evaluate`"


def test_all_outputs_of_a_changed_image_go(source, tmp_path):
    out = tmp_path / "out"
    apply_folder(source, out, replace(GLITCHED, types=("glitched", "vertical_lines")))
    paint(source / "cat/a.png", "blue")
    summary = apply_folder(source, out, GLITCHED)
    assert (summary.written, summary.kept, summary.removed) == (1, 1, 1), (
        "its lines were those of the old one"
    )
    assert not (out / "vertical_lines/intensity_level_1/cat").exists()
    assert len(outputs(out)) == 3


def test_a_folder_made_from_other_images_is_refused(source, tmp_path):
    out = tmp_path / "out"
    apply_folder(source, out, GLITCHED)
    before = outputs(out)
    paint(tmp_path / "others/bird/b.png")
    with pytest.raises(InputError, match=r"was made from other images, such as cat/a\.png"):
        apply_folder(tmp_path / "others", out, GLITCHED)
    assert outputs(out) == before
    apply_folder(tmp_path / "others", out, GLITCHED, overwrite=True)
    assert outputs(out) == [f"{PLACE}/bird/b_glitched_1.JPEG"]


def test_overwrite_deletes_nothing_where_the_tiles_are_refused(source, tmp_path):
    out = tmp_path / "out"
    apply_folder(source, out, GLITCHED)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for tiles in ("nowhere", "nowhere.npz", str(source)):
        with pytest.raises(InputError):
            apply_folder(source, out, ApplyConfig(types=("mosaic",), tiles=tiles), overwrite=True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_strict_overwrite_deletes_nothing_where_an_image_cannot_be_read(source, tmp_path):
    out = tmp_path / "out"
    apply_folder(source, out, GLITCHED)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    (source / "dog/z.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"dog/z\.png: no image that Pillow can read; without --strict"):
        apply_folder(source, out, replace(GLITCHED, seed=1), strict=True, overwrite=True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    (source / "dog/z.png").unlink()
    summary = apply_folder(source, out, replace(GLITCHED, seed=1), strict=True, overwrite=True)
    assert (summary.written, summary.kept) == (2, 0)


def test_a_refused_run_leaves_no_folder(source, tmp_path):
    with pytest.raises(InputError, match="tile folder nowhere"):
        apply_folder(source, tmp_path / "a/b", ApplyConfig(types=("mosaic",), tiles="nowhere"))
    assert not (tmp_path / "a").exists()


def test_tiles_bind_a_folder_only_once_they_are_used(source, tmp_path, bank):
    out = tmp_path / "out"
    bank.save(tmp_path / "bank.npz")
    apply_folder(source, out, GLITCHED)
    assert "tiles" not in json.loads((out / "manifest.json").read_text())["settings"]
    tiled = replace(GLITCHED, types=("stickers",), tiles=str(tmp_path / "bank.npz"))
    assert apply_folder(source, out, tiled).written == 2
    assert apply_folder(source, out, GLITCHED).kept == 2
    with pytest.raises(InputError, match="made with tiles"):
        apply_folder(source, out, replace(tiled, tiles="packaged"))


# -- links and folders that cannot be read ----------------------------------------------------------------


def test_links_are_followed_but_not_in_circles(source, tmp_path):
    paint(tmp_path / "elsewhere/b.png")
    (source / "bird").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (source / "cat/again").symlink_to(source, target_is_directory=True)
    (source / "cat/self").symlink_to(source / "cat/self")
    summary = apply_folder(source, tmp_path / "out", GLITCHED)
    assert f"{PLACE}/bird/b_glitched_1.JPEG" in outputs(tmp_path / "out")
    assert (summary.images, list(summary.skipped)) == (3, ["cat/self"])


def test_a_link_from_the_input_to_the_output_folder_is_refused(source, tmp_path):
    out = tmp_path / "out"
    apply_folder(source, out, GLITCHED)
    (source / "more").symlink_to(out, target_is_directory=True)
    with pytest.raises(InputError, match="must lie beside each other"):
        apply_folder(source, out, GLITCHED)


def test_broken_links_and_unreadable_folders_are_named_and_their_outputs_stay(source, tmp_path, monkeypatch):
    paint(tmp_path / "elsewhere/b.png")
    (source / "bird").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    out = tmp_path / "out"
    apply_folder(source, out, GLITCHED)
    before = outputs(out)
    (tmp_path / "elsewhere").rename(tmp_path / "gone")
    real = os.scandir

    def guarded(path):
        if Path(path).name == "dog":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", guarded)
    summary = apply_folder(source, out, GLITCHED)
    assert summary.skipped == {"bird": "broken link", "dog": "Permission denied"}
    assert (summary.kept, summary.removed) == (1, 0)
    with pytest.raises(InputError, match=r"bird: broken link; without --strict"):
        apply_folder(source, out, GLITCHED, strict=True)
    monkeypatch.undo()
    assert outputs(out) == before


# -- killed runs ------------------------------------------------------------------------------------------


def test_a_name_that_is_no_text_is_skipped_and_told(source, tmp_path):
    name = b"caf\xe9.png"
    (source / "cat").mkdir(exist_ok=True)
    image = next(path for path in sorted(source.rglob("*")) if path.is_file())
    with open(os.fsencode(source / "cat") + b"/" + name, "wb") as file:
        file.write(image.read_bytes())
    summary = apply_folder(source, tmp_path / "out", GLITCHED)
    assert summary.written == summary.images
    assert summary.skipped == {"cat/caf\\xe9.png": "its name is not UTF-8; rename it"}


def test_a_second_run_into_the_same_folder_is_refused(source, tmp_path):
    refused = []

    def begin_another(done, total, note):
        if not refused:
            refused.append(None)
            with pytest.raises(InputError, match="another run is writing to"):
                apply_folder(source, tmp_path / "out", replace(GLITCHED, seed=1))

    apply_folder(source, tmp_path / "out", GLITCHED, progress=begin_another)
    assert refused
    assert apply_folder(source, tmp_path / "out", GLITCHED).kept == 2


def test_a_name_without_room_for_more_is_skipped_and_told(source, tmp_path):
    paint(source / "cat" / f"{'x' * 250}.png")
    for _ in range(2):
        summary = apply_folder(source, tmp_path / "out", GLITCHED)
        assert summary.written + summary.kept == 2
        (reason,) = summary.skipped.values()
        assert "would have 266 bytes, more than 255" in reason
    with pytest.raises(InputError, match="without --strict it is skipped"):
        apply_folder(source, tmp_path / "strict", GLITCHED, strict=True)
    assert not (tmp_path / "strict").exists()


def test_what_cannot_be_deleted_is_one_line(source, tmp_path, monkeypatch):
    out = tmp_path / "out"
    apply_folder(source, out, GLITCHED)

    def refuse(path, missing_ok=False):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(InputError, match=r"outdated and cannot be deleted \(Permission denied\)"):
        apply_folder(source, out, replace(GLITCHED, seed=1), overwrite=True)


def test_temporary_files_of_a_killed_run_are_cleaned_and_no_others(source, tmp_path):
    out = tmp_path / "out"
    apply_folder(source, out, GLITCHED)
    manifest = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps(manifest | {"complete": False}))
    mine = [
        ".hidden-0123456789ab.JPEG",
        f"{PLACE}/cat/.a_glitched_1-notes.JPEG",
        f"{PLACE}/.a_glitched_1-0123456789ab.JPEG",
    ]
    left = [
        f"{PLACE}/cat/.a_glitched_1-0f1e2d3c4b5a.JPEG",
        ".manifest-0123456789ab.json",
        ".tiles-0123456789ab.npz",
    ]
    for name in (*mine, *left):
        (out / name).touch()
    apply_folder(source, out, GLITCHED)
    assert all((out / name).exists() for name in mine)
    assert not any((out / name).exists() for name in left)
