"""Distorting folders: layout, bytes, resuming, and what is refused before a file is touched."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hexad.core.data import load_photograph
from hexad.core.errors import InputError
from hexad.core.files import atomic_path
from hexad.vision_robustness.laion_c import (
    DISTORTIONS,
    ApplyConfig,
    apply_folder,
    corrupt_in_frame,
    tile_sources,
)
from hexad.vision_robustness.laion_c.folders import ApplySummary
from hexad.vision_robustness.laion_c.tile_sources import make_bank
from hexad.vision_robustness.laion_c.tiles import TileBank
from hexad.vision_robustness.laion_c.workers import encode, file_seed

SMALL = ApplyConfig(types=("glitched", "geometric_shapes", "vertical_lines"), levels=(1, 4), tiles="source")
TILED = replace(SMALL, types=("glitched", "geometric_shapes", "mosaic"))


def tree(folder: Path) -> dict[str, bytes]:
    """Contents of all files below a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def images_in(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in tree(folder).items() if not name.startswith(("manifest", "tiles"))}


@pytest.fixture(autouse=True)
def few_crops(monkeypatch):
    """A tenth of the tiles: cutting them takes most of the time."""
    monkeypatch.setattr(tile_sources, "CROPS", 200)


@pytest.fixture
def source(tmp_path) -> Path:
    root = tmp_path / "photos"
    for name, photograph in (("a/one.png", "china"), ("b/c/two.jpg", "flower"), ("three.webp", "china")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(load_photograph(photograph)).resize((300, 240)).save(root / name)
    (root / "notes.txt").write_text("no image")
    return root


def test_the_layout_is_the_benchmark_s_and_folders_are_kept(source, tmp_path):
    summary = apply_folder(source, tmp_path / "out", SMALL)
    assert sorted(images_in(tmp_path / "out")) == sorted(
        f"{name}/intensity_level_{level}/{where}_{name}_{level}.JPEG"
        for name in SMALL.types
        for level in SMALL.levels
        for where in ("a/one", "b/c/two", "three")
    )
    assert (summary.images, summary.written, summary.kept, summary.skipped) == (3, 18, 0, {})


def test_the_input_folder_is_not_touched(source, tmp_path):
    before = tree(source), {path: path.stat().st_mtime_ns for path in source.rglob("*")}
    apply_folder(source, tmp_path / "out", SMALL)
    assert (tree(source), {path: path.stat().st_mtime_ns for path in source.rglob("*")}) == before


def test_outputs_are_jpeg_224_at_quality_100_without_chroma_subsampling(source, tmp_path):
    from PIL import JpegImagePlugin

    apply_folder(source, tmp_path / "out", SMALL)
    for path in (tmp_path / "out").rglob("*.JPEG"):
        with Image.open(path) as image:
            assert image.size == (224, 224)
            assert JpegImagePlugin.get_sampling(image) == 0
            assert max(map(max, image.quantization.values())) == 1, (
                "all quantisation steps of quality 100 are 1"
            )


def test_bytes_follow_from_seed_path_type_and_level(source, tmp_path):
    out = tmp_path / "out"
    apply_folder(source, out, TILED)
    bank, _ = make_bank("source", source, sorted(source.rglob("*.*")))
    with Image.open(source / "b/c/two.jpg") as image:
        pixels = np.asarray(image)
    for name in TILED.types:
        for level in TILED.levels:
            seed = file_seed(0, "b/c/two.jpg", name, level)
            expected = encode(corrupt_in_frame(pixels, name, level, seed, bank), "jpeg")
            written = out / name / f"intensity_level_{level}/b/c/two_{name}_{level}.JPEG"
            assert written.read_bytes() == expected


def test_file_seeds_are_128_bits_of_a_hash_and_differ():
    key = "0\0a.jpg\0mosaic\x003"
    assert file_seed(0, "a.jpg", "mosaic", 3) == int(hashlib.sha256(key.encode()).hexdigest()[:32], 16)
    seeds = {
        file_seed(seed, path, name, level)
        for seed in (0, 1) for path in ("a", "b") for name in DISTORTIONS for level in range(1, 6)
    }  # fmt: skip
    assert len(seeds) == 2 * 2 * 6 * 5


def test_one_and_two_workers_write_the_same_bytes(source, tmp_path):
    config = replace(SMALL, types=tuple(DISTORTIONS), levels=(2,), glitch_seed=None)
    one = apply_folder(source, tmp_path / "one", config, jobs=1)
    two = apply_folder(source, tmp_path / "two", config, jobs=2)
    assert one.written == two.written == 18
    assert tree(tmp_path / "one") == tree(tmp_path / "two"), "the manifests are equal too"


def test_another_seed_gives_other_bytes(source, tmp_path):
    config = replace(SMALL, types=("geometric_shapes",))
    apply_folder(source, tmp_path / "one", config)
    apply_folder(source, tmp_path / "two", replace(config, seed=1))
    one, two = images_in(tmp_path / "one"), images_in(tmp_path / "two")
    assert one.keys() == two.keys()
    assert all(one[name] != two[name] for name in one)


def test_the_size_is_kept_if_asked_for_and_png_is_lossless(source, tmp_path):
    from hexad.vision_robustness.laion_c import corrupt

    apply_folder(source, tmp_path / "out", ApplyConfig(("vertical_lines",), (3,), size="keep", format="png"))
    with Image.open(tmp_path / "out/vertical_lines/intensity_level_3/a/one_vertical_lines_3.png") as image:
        written = np.asarray(image)
    with Image.open(source / "a/one.png") as image:
        assert np.array_equal(written, corrupt(np.asarray(image), "vertical_lines", 3))


def test_images_of_one_stem_do_not_overwrite_each_other(source, tmp_path):
    Image.fromarray(load_photograph("flower")).save(source / "a" / "one.jpg")
    apply_folder(source, tmp_path / "out", ApplyConfig(("glitched",), (1,)))
    names = sorted(path.name for path in (tmp_path / "out/glitched/intensity_level_1/a").iterdir())
    assert names == ["one_jpg_glitched_1.JPEG", "one_png_glitched_1.JPEG"]


# -- the manifest and resuming ----------------------------------------------------------------------------


def test_the_manifest_lists_settings_seeds_and_hashes(source, tmp_path):
    out = tmp_path / "out"
    apply_folder(source, out, TILED)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["complete"] is True
    assert manifest["settings"] == {
        "size": "benchmark", "seed": 0, "glitch_seed": 1, "format": "jpeg", "tiles": "source",
    }  # fmt: skip
    assert manifest["tiles"]["from"] == "crops of source images"
    assert manifest["tiles"]["count"] == 200
    assert {"glitch-this", "numpy", "pillow", "hexad-vision-robustness"} <= manifest["versions"].keys()
    listed = {}
    for relative, record in manifest["images"].items():
        assert record["sha256"] == hashlib.sha256((source / relative).read_bytes()).hexdigest()
        listed |= record["outputs"]
    assert {name: output["sha256"] for name, output in listed.items()} == {
        name: hashlib.sha256(data).hexdigest() for name, data in images_in(out).items()
    }
    name = "mosaic/intensity_level_4/a/one_mosaic_4.JPEG"
    assert int(listed[name]["seed"], 16) == file_seed(0, "a/one.png", "mosaic", 4)


def test_what_is_finished_is_not_made_again(source, tmp_path):
    out = tmp_path / "out"
    apply_folder(source, out, SMALL)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.JPEG")}
    again = apply_folder(source, out, SMALL)
    assert (again.written, again.kept) == (0, 18)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.JPEG")} == before


def test_missing_damaged_and_outdated_outputs_are_made_again(source, tmp_path):
    out = tmp_path / "out"
    apply_folder(source, out, SMALL)
    whole = tree(out)
    (out / "glitched/intensity_level_1/a/one_glitched_1.JPEG").unlink()
    (out / "vertical_lines/intensity_level_4/three_vertical_lines_4.JPEG").write_bytes(b"damaged")
    again = apply_folder(source, out, SMALL)
    assert (again.written, again.kept) == (2, 16)
    assert tree(out) == whole
    Image.fromarray(load_photograph("flower")).save(source / "a" / "one.png")
    again = apply_folder(source, out, SMALL)
    assert (again.written, again.kept) == (6, 12), "an image that has changed is distorted anew"


def test_types_and_levels_may_be_added_later(source, tmp_path):
    out = tmp_path / "out"
    apply_folder(source, out, replace(SMALL, types=("glitched",), levels=(1,)))
    added = apply_folder(source, out, replace(SMALL, types=("glitched", "stickers"), levels=(1, 2)))
    assert (added.written, added.kept) == (9, 3)


def test_an_interrupt_keeps_what_is_finished_and_the_next_run_goes_on(source, tmp_path):
    out = tmp_path / "out"

    def interrupt(done: int, total: int, note: str) -> None:
        if done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apply_folder(source, out, TILED, progress=interrupt)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["complete"] is False
    assert sum(len(record["outputs"]) for record in manifest["images"].values()) == 6
    again = apply_folder(source, out, TILED)
    assert (again.written, again.kept) == (12, 6)
    apply_folder(source, tmp_path / "straight", TILED)
    assert tree(out) == tree(tmp_path / "straight")


def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(source, tmp_path):
    out = tmp_path / "out"
    for number in range(12):
        Image.fromarray(load_photograph("flower")[number:]).save(source / f"many{number}.bmp")
    # Six cells an image give time to kill the process in between.
    config = ApplyConfig(("glitched", "vertical_lines"), (1, 2, 3))
    code = (
        "from hexad.vision_robustness.laion_c import ApplyConfig, apply_folder\n"
        f"apply_folder({str(source)!r}, {str(out)!r}, {config!r}, jobs=2)"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while len(list(out.rglob("*.JPEG"))) < 10 and time.monotonic() < deadline:
        time.sleep(0.02)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    children = workers.read_text().split() if workers.exists() else []
    process.send_signal(signal.SIGKILL)
    process.wait()
    while any(map(_runs, children)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(_runs, children)), "workers end with their parent"
    assert 0 < len(images_in(out)) < 15 * 6
    apply_folder(source, out, config)
    apply_folder(source, tmp_path / "straight", config)
    assert tree(out) == tree(tmp_path / "straight"), "temporary files are gone too"


def _runs(pid: str) -> bool:
    try:
        # What has ended stays a zombie where nobody asks for its exit status.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_resumed_run_has_the_same_tiles_though_images_were_added(source, tmp_path):
    out = tmp_path / "out"
    apply_folder(source, out, TILED)
    before = images_in(out)
    Image.fromarray(load_photograph("flower")).save(source / "zero.png")
    added = apply_folder(source, out, TILED)
    assert (added.written, added.kept) == (6, 18)
    assert before.items() <= images_in(out).items()


# -- tiles ------------------------------------------------------------------------------------------------


def test_a_source_of_a_hundred_images_is_its_own_bank(tmp_path):
    source = tmp_path / "photos"
    source.mkdir()
    for number in range(100):
        Image.fromarray(load_photograph("flower")[number : number + 100, :100]).save(source / f"{number}.png")
    for word in ("auto", "source"):
        bank, described = make_bank(word, source, sorted(source.iterdir()))
        assert (len(bank), described["from"]) == (100, "whole source images")


def test_a_smaller_source_takes_packaged_photographs_or_its_own_crops(source, monkeypatch):
    from hexad.core.errors import MissingExtraError

    images = [path for path in source.rglob("*.*") if path.suffix != ".txt"]
    assert make_bank("auto", source, images)[1]["from"] == "crops of packaged photographs"
    assert make_bank("source", source, images)[1]["from"] == "crops of source images"

    def missing() -> None:
        raise MissingExtraError("not installed")

    monkeypatch.setattr(tile_sources, "load_photographs", missing)
    assert make_bank("auto", source, images)[1]["from"] == "crops of source images"
    with pytest.raises(MissingExtraError):
        make_bank("packaged", source, images)


def test_a_saved_bank_serves(source, tmp_path, bank):
    bank.save(tmp_path / "bank.npz")
    summary = apply_folder(source, tmp_path / "out", replace(TILED, tiles=str(tmp_path / "bank.npz")))
    assert summary.tiles is not None
    assert summary.tiles["sha256"] == bank.digest()


def test_no_bank_is_made_where_no_distortion_needs_one(source, tmp_path):
    summary = apply_folder(source, tmp_path / "out", replace(SMALL, types=("glitched",)))
    assert summary.tiles is None
    assert not (tmp_path / "out" / "tiles.npz").exists()


# -- bad input --------------------------------------------------------------------------------------------


def test_unreadable_images_are_named_skipped_and_tried_again(source, tmp_path):
    whole = (source / "b/c/two.jpg").read_bytes()
    (source / "b/c/two.jpg").write_bytes(whole[: len(whole) // 2])
    Image.new("RGB", (20, 20)).save(source / "small.png")
    out = tmp_path / "out"
    summary = apply_folder(source, out, SMALL)
    assert sorted(summary.skipped) == ["b/c/two.jpg", "small.png"]
    assert "truncated" in summary.skipped["b/c/two.jpg"]
    assert "at least 32" in summary.skipped["small.png"]
    assert summary.written == 12
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["complete"] is False
    assert sorted(manifest["skipped"]) == ["b/c/two.jpg", "small.png"]
    (source / "b/c/two.jpg").write_bytes(whole)
    (source / "small.png").unlink()
    mended = apply_folder(source, out, SMALL)
    assert (mended.written, mended.kept, mended.skipped) == (6, 12, {})


@pytest.mark.parametrize("jobs", [1, 2])
def test_strict_stops_at_the_first_unreadable_image(jobs, source, tmp_path):
    (source / "a" / "broken.jpg").write_bytes(b"\xff\xd8 cut")
    with pytest.raises(InputError, match=r"broken\.jpg.*without --strict"):
        apply_folder(source, tmp_path / "out", SMALL, strict=True, jobs=jobs)


@pytest.mark.parametrize(
    "place", [lambda s: s, lambda s: s / "out", lambda s: s / ".." / s.name / "x", lambda s: s.parent]
)
def test_an_output_folder_in_or_around_the_input_is_refused(place: Callable[[Path], Path], source):
    before = tree(source)
    with pytest.raises(InputError, match="must lie beside each other"):
        apply_folder(source, place(source), SMALL)
    assert tree(source) == before
    assert not (source / "out").exists()


def test_a_link_into_the_input_is_refused_too(source, tmp_path):
    (tmp_path / "link").symlink_to(source, target_is_directory=True)
    with pytest.raises(InputError, match="must lie beside each other"):
        apply_folder(source, tmp_path / "link" / "out", SMALL)


def test_a_folder_with_other_files_is_refused_and_never_emptied(source, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("dear to me")
    with pytest.raises(InputError, match=r"is not empty \(it holds 'thesis\.tex'\).*--overwrite"):
        apply_folder(source, out, SMALL)
    assert tree(out) == {"thesis.tex": b"dear to me"}
    apply_folder(source, out, SMALL, overwrite=True)
    assert (out / "thesis.tex").read_text() == "dear to me"


def test_a_folder_of_other_settings_is_refused_and_replaced_with_overwrite(source, tmp_path):
    out = tmp_path / "out"
    apply_folder(source, out, TILED)
    (out / "mine.txt").write_text("kept")
    before = tree(out)
    for other, message in (
        (replace(TILED, seed=5), "made with seed 0 instead of 5"),
        (replace(TILED, size="keep"), "made with size 'benchmark' instead of 'keep'"),
        (replace(TILED, tiles="packaged"), "made with tiles 'source' instead of 'packaged'"),
    ):
        with pytest.raises(InputError, match=message):
            apply_folder(source, out, other)
    assert tree(out) == before
    apply_folder(source, out, replace(SMALL, seed=5, types=("glitched",), levels=(1,)), overwrite=True)
    assert sorted(images_in(out)) == [
        "glitched/intensity_level_1/a/one_glitched_1.JPEG",
        "glitched/intensity_level_1/b/c/two_glitched_1.JPEG",
        "glitched/intensity_level_1/three_glitched_1.JPEG",
        "mine.txt",
    ]


def test_a_damaged_manifest_is_refused(source, tmp_path):
    out = tmp_path / "out"
    apply_folder(source, out, replace(SMALL, types=("glitched",)))
    for damage in (
        '{"format": 1',
        "[]",
        '{"format": 1, "settings": {}, "tiles": null, "images": {"a": 1}, "skipped": {}}',
        '{"format": 2, "settings": {}, "tiles": null, "images": {}, "skipped": {}}',
    ):
        (out / "manifest.json").write_text(damage)
        with pytest.raises(InputError, match=r"manifest\.json is damaged"):
            apply_folder(source, out, SMALL)


def test_a_manifest_cannot_make_overwrite_delete_files_elsewhere(source, tmp_path):
    out = tmp_path / "out"
    apply_folder(source, out, replace(SMALL, types=("glitched",), levels=(1,)))
    victim = tmp_path / "victim.txt"
    victim.write_text("elsewhere")
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["images"]["a/one.png"]["outputs"]["../victim.txt"] = {"seed": "0", "sha256": "0"}
    (out / "manifest.json").write_text(json.dumps(manifest))
    apply_folder(source, out, SMALL, overwrite=True)
    assert victim.read_text() == "elsewhere"


def test_a_folder_without_images_is_refused_before_anything_is_made(tmp_path):
    (tmp_path / "photos").mkdir()
    with pytest.raises(InputError, match="no images in"):
        apply_folder(tmp_path / "photos", tmp_path / "out", SMALL)
    with pytest.raises(InputError, match="does not exist"):
        apply_folder(tmp_path / "nowhere", tmp_path / "out", SMALL)
    assert not (tmp_path / "out").exists()


def test_an_output_folder_that_is_a_file_is_refused(source, tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(InputError, match="is a file"):
        apply_folder(source, tmp_path / "out", SMALL)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"types": ()}, "types must name at least one"),
        ({"types": ("fog",)}, "unknown distortion 'fog'"),
        ({"types": ("mosaic", "mosaic")}, "each once"),
        ({"levels": (0,)}, "severity is 0"),
        ({"levels": (1, 1)}, "each once"),
        ({"size": "huge"}, "unknown size"),
        ({"format": "gif"}, "unknown format"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"glitch_seed": 0}, "glitch_seed is 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        ApplyConfig(**change)


@pytest.mark.parametrize("jobs", [0, -1, 1.5, True])
def test_a_number_of_workers_below_1_is_refused(jobs, source, tmp_path):
    with pytest.raises(InputError, match="jobs is"):
        apply_folder(source, tmp_path / "out", SMALL, jobs=jobs)


def test_the_order_of_the_file_system_does_not_matter(source, tmp_path, monkeypatch):
    apply_folder(source, tmp_path / "one", SMALL)
    real = os.scandir

    def shuffled(path):
        entries = list(real(path))
        random.Random(3).shuffle(entries)
        return _Entries(entries)

    monkeypatch.setattr(os, "scandir", shuffled)
    summary: ApplySummary = apply_folder(source, tmp_path / "two", SMALL)
    monkeypatch.undo()
    assert summary.written == 18
    assert images_in(tmp_path / "one") == images_in(tmp_path / "two")


class _Entries(list):
    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return None


def test_a_run_killed_with_its_tiles_half_written_goes_on(source, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(TileBank, "save", _die)
        with pytest.raises(RuntimeError, match="power cut"):
            apply_folder(source, out, TILED)
    apply_folder(source, out, TILED)
    whole = tmp_path / "whole"
    apply_folder(source, whole, TILED)
    assert tree(out) == tree(whole)


def _die(bank, path):
    with atomic_path(path) as temporary:
        temporary.write_bytes(b"half")
        raise RuntimeError("power cut")
