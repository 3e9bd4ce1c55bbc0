"""Training: folders, augmentation, losses, schedule, averages, and runs that go on where they stopped."""

import math
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from hexad.core.errors import InputError
from hexad.vision_robustness.shufflemamba.datasets import PlainPictures, read_labelled, read_pictures
from hexad.vision_robustness.shufflemamba.recipe import (
    Recipe,
    make_objective,
    make_optimizer,
    make_scheduler,
    training_transform,
)
from hexad.vision_robustness.shufflemamba.storage import Description, load_network, save_network
from hexad.vision_robustness.shufflemamba.training import Machine, fit, predict, score_of

SMALL = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "d_state": 2}


def describe(**more):
    return Description("", SMALL | more, ["bright", "dark"], 16, [0.5] * 3, [0.25] * 3, 1.0)


def quick(**more):
    return Recipe(**({"epochs": 3, "batch_size": 8, "slws_rate": 0.5, "flip": False} | more))


# -- folders ----------------------------------------------------------------------------------------------


def test_a_tree_with_a_validation_part(data):
    pictures = read_pictures(data)
    assert pictures.classes == ("bright", "dark")
    assert (len(pictures.train), len(pictures.val)) == (24, 10)
    assert pictures.train[0][1] == 0
    assert pictures.val[9][1] == 1


def test_one_tree_is_split_the_same_way_each_time(data):
    first, second = (read_pictures(data / "train", 0.25) for _ in range(2))
    assert (len(first.train), len(first.val)) == (18, 6)
    held = [path for path, _ in first.val.reader.samples]
    assert held == [path for path, _ in second.val.reader.samples]
    assert not set(held) & {path for path, _ in first.train.reader.samples}
    assert sorted(label for _, label in first.val.reader.samples) == [0, 0, 0, 1, 1, 1]


def test_the_digest_knows_the_data(data):
    before = read_pictures(data).digest
    assert read_pictures(data).digest == before
    (data / "train/dark/00.png").rename(data / "train/dark/renamed.png")
    assert read_pictures(data).digest != before


def test_bad_folders_are_refused(data, tmp_path):
    with pytest.raises(InputError, match=r"data folder .* does not exist"):
        read_pictures(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no images in .*empty; looked for bmp, gif"):
        read_pictures(tmp_path / "empty")
    (data / "val/red").mkdir()
    Image.new("RGB", (8, 8)).save(data / "val/red/0.png")
    with pytest.raises(InputError, match=r"val has the class 'red', which .*train lacks"):
        read_pictures(data)
    shutil.rmtree(data / "val/red")
    (data / "train/dark/notes.png").write_text("no picture")
    with pytest.raises(InputError, match=r"notes\.png cannot be read as a picture"):
        read_pictures(data)
    one = tmp_path / "one" / "dark"
    one.mkdir(parents=True)
    for number in range(3):
        Image.new("RGB", (8, 8)).save(one / f"{number}.png")
    with pytest.raises(InputError, match="one class, 'dark'"):
        read_pictures(tmp_path / "one")
    (tmp_path / "single/a").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "single/a/0.png")
    with pytest.raises(InputError, match="a class has a single picture"):
        read_pictures(tmp_path / "single")
    (tmp_path / "half/train/a").mkdir(parents=True)
    with pytest.raises(InputError, match="has train/ but none of val/"):
        read_pictures(tmp_path / "half")
    with pytest.raises(InputError, match=r"held_out is 1.0"):
        read_pictures(data / "train", 1.0)
    with pytest.raises(InputError, match="class 'bright', which the network does not know"):
        read_labelled(data / "train", ["dark", "grey"])


def test_labels_to_score_follow_the_network_not_the_alphabet(data):
    found = read_labelled(data / "train", ["dark", "bright"])
    assert {label for path, label in found.reader.samples if "dark" in path} == {0}


def test_pictures_of_16_bits_are_refused(data):
    deep = data / "train/dark/deep.png"
    Image.fromarray(np.full((16, 16), 40_000, np.uint16)).save(deep)
    with pytest.raises(InputError, match=r"deep\.png cannot be read .*mode I;16 has more than 8 bits"):
        read_pictures(data)
    assert "more than 8 bits" in PlainPictures(data / "train").unreadable[str(deep)]


def test_a_picture_that_is_cut_off_is_not_scored_as_another(data):
    whole = (data / "val/dark/00.png").read_bytes()
    (data / "val/dark/cut.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"cut\.png cannot be read as a picture"):
        read_labelled(data / "val", ["dark", "bright"])
    with pytest.raises(InputError, match=r"cut\.png cannot be read as a picture"):
        read_pictures(data)


def test_the_digest_knows_the_pixels(data):
    before = read_pictures(data).digest
    path = data / "train/dark/00.png"
    content = path.read_bytes()
    path.write_bytes((data / "train/dark/01.png").read_bytes())
    assert read_pictures(data).digest != before
    path.write_bytes(content)
    assert read_pictures(data).digest == before


def test_pictures_belong_in_the_folder_of_a_class(data):
    stray = data / "train/stray.png"
    Image.new("RGB", (8, 8)).save(stray)
    with pytest.raises(InputError, match=r"stray\.png lies in no class's folder; pictures belong in .*CLASS"):
        read_pictures(data)
    stray.unlink()
    (data / "train/dark/more").mkdir()
    Image.new("RGB", (8, 8)).save(data / "train/dark/more/0.png")
    with pytest.raises(InputError, match="lies deeper than its class's folder"):
        read_pictures(data)


def test_other_suffixes_are_read_and_hidden_files_are_not(data):
    Image.new("RGB", (8, 8)).save(data / "train/dark/more.WEBP")
    (data / "train/dark/._00.png").write_text("a resource fork of macOS")
    (data / "train/.cache").mkdir()
    Image.new("RGB", (8, 8)).save(data / "train/.cache/0.png")
    pictures = read_pictures(data)
    assert len(pictures.train) == 25
    assert pictures.classes == ("bright", "dark")


# -- recipe -----------------------------------------------------------------------------------------------


def test_augmentations():
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8))
    plain = training_transform(Recipe(augment="none"), 16)
    assert plain(picture).shape == (3, 16, 16)
    assert torch.equal(plain(picture), plain(picture))
    torch.manual_seed(0)
    for augment in ("light", "full"):
        transform = training_transform(Recipe(augment=augment), 16)
        assert transform(picture).shape == (3, 16, 16)
        assert not torch.equal(transform(picture), transform(picture))
    half = Image.fromarray(np.tile(np.array([0, 255], np.uint8).repeat(20)[None, :, None], (40, 1, 3)))
    upright = training_transform(Recipe(flip=False), 16)
    assert all(upright(half)[0, :, -1].mean() > upright(half)[0, :, 0].mean() for _ in range(20))


def test_the_losses_are_timms():
    logits, labels = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([1])
    objective, mixup = make_objective(Recipe(smoothing=0.1), 3)
    log_shares = logits.log_softmax(1)[0]
    assert mixup is None
    assert objective(logits, labels).item() == pytest.approx(
        float(-0.9 * log_shares[1] - 0.1 * log_shares.mean())
    )
    objective, mixup = make_objective(Recipe(augment="full"), 3)
    _, targets = mixup(torch.zeros(4, 3, 8, 8), torch.tensor([0, 1, 2, 0]))
    assert torch.allclose(targets.sum(1), torch.ones(4))
    assert objective(logits.expand(4, 3), targets) > 0


def test_the_rate_rises_and_falls_by_a_cosine():
    recipe = Recipe(lr=0.01, warmup=0.2, min_lr=0.1)
    optimizer = make_optimizer(torch.nn.Linear(2, 2), recipe)
    scheduler, rates = make_scheduler(optimizer, recipe, 100), []
    for _ in range(100):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates[:20] == pytest.approx(np.linspace(1e-5, 0.01, 21)[:20].tolist())
    cosine = [0.001 + 0.009 * (1 + math.cos(math.pi * step / 100)) / 2 for step in range(20, 100)]
    assert rates[20:] == pytest.approx(cosine)
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.95)
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.05}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"lr": 0.0}, r"lr is 0.0; it must lie in \(0"),
        ({"slws_rate": 1.5}, "slws_rate is 1.5"),
        ({"drop_path": 1.0}, "drop_path is 1.0"),
        ({"augment": "full", "batch_size": 7}, "batch_size is 7; mixup pairs pictures"),
        ({"augment": "heavy"}, "unknown augment 'heavy'"),
        ({"slws_schedule": "cosine"}, "unknown slws_schedule 'cosine'"),
    ],
)
def test_bad_recipes_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        Recipe(**options)


# -- runs -------------------------------------------------------------------------------------------------


def test_a_run_learns_and_its_file_says_all_that_is_needed(data, tmp_path):
    pictures = read_pictures(data)
    report = fit(describe(), pictures, quick(epochs=12, lr=3e-3), tmp_path / "run")
    assert report["steps"] == 36
    assert report["validation"]["top1"] == 1.0  # bright and dark are easy
    assert np.mean(report["losses"][-5:]) < np.mean(report["losses"][:5])
    assert report["gap"] == report["train"]["top1"] - report["validation"]["top1"]
    network, description = load_network(tmp_path / "run")
    assert description == describe()
    scores, labels = predict(network, pictures.val, description)
    assert score_of(scores, labels).loss == pytest.approx(report["validation"]["loss"], rel=1e-5)
    assert report["scores"][-1]["loss"] == pytest.approx(report["validation"]["loss"], rel=1e-4)


def test_an_interrupted_run_ends_with_the_same_weights(data, tmp_path):
    machine, recipe = Machine(checkpoint_every=4, accelerator="cpu"), quick(augment="full", drop_path=0.2)
    whole = fit(describe(), read_pictures(data), recipe, tmp_path / "whole", machine)

    def interrupt(fraction, note):
        if fraction > 0.7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(describe(), read_pictures(data), recipe, tmp_path / "cut", machine, progress=interrupt)
    resumed = fit(describe(), read_pictures(data), recipe, tmp_path / "cut", machine)
    assert resumed["losses"] == whole["losses"]
    assert resumed["scores"] == whole["scores"]
    first, second = (load_network(tmp_path / name)[0].state_dict() for name in ("whole", "cut"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_another_recipe_or_other_data_do_not_mix_with_a_run(data, tmp_path):
    fit(describe(), read_pictures(data), quick(epochs=1), tmp_path / "run")
    with pytest.raises(InputError, match=r"other settings \(slws_rate: 0.5 -> 0.1\)"):
        fit(describe(), read_pictures(data), quick(epochs=1, slws_rate=0.1), tmp_path / "run")
    (data / "train/dark/00.png").rename(data / "train/dark/renamed.png")
    with pytest.raises(InputError, match=r"other settings \(data:"):
        fit(describe(), read_pictures(data), quick(epochs=1), tmp_path / "run")


def test_the_averaged_weights_are_the_result(data, tmp_path):
    ends = {}
    for average in (0.0, 0.9):
        fit(describe(), read_pictures(data), quick(average=average, lr=1e-2), tmp_path / str(average))
        ends[average] = load_network(tmp_path / str(average))[0].head.weight
    assert not torch.allclose(ends[0.0], ends[0.9])
    # Of a run that never moved the average is the first weights.
    fit(describe(), read_pictures(data), quick(average=0.9, lr=1e-12), tmp_path / "still")
    torch.manual_seed(0)
    fresh = describe().build().head.weight
    torch.testing.assert_close(load_network(tmp_path / "still")[0].head.weight, fresh, atol=1e-7, rtol=0)


def test_validation_draws_nothing(data):
    pictures, network = read_pictures(data), describe().build(0.9)
    state = torch.get_rng_state()
    predict(network, pictures.val, describe())
    assert torch.equal(torch.get_rng_state(), state)


def test_too_few_pictures_for_a_batch(data, tmp_path):
    with pytest.raises(InputError, match="24 pictures to train on are fewer than a batch of 32"):
        fit(describe(), read_pictures(data), quick(batch_size=32), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_files_that_are_no_network_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        load_network(tmp_path / "run")
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="not written by `shufflemamba train`, or is damaged"):
        load_network(tmp_path)
    save_network(describe(depth=3).build(), describe(), tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="does not fit its own description"):
        load_network(tmp_path)


def test_plain_pictures_skip_what_cannot_be_read(data, tmp_path):
    whole = (data / "val/dark/00.png").read_bytes()
    (data / "val/dark/cut.png").write_bytes(whole[: len(whole) // 2])
    pictures = PlainPictures(data / "val")
    assert len(pictures) == 10
    assert list(pictures.unreadable) == [str(data / "val/dark/cut.png")]
    with pytest.raises(InputError, match="does not exist"):
        PlainPictures(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"holds no picture that can be read; .*cut\.png cannot be read"):
        PlainPictures(data / "val/dark/cut.png")


def test_scores_are_shares_and_cross_entropy():
    scores = np.array([[2.0, 1, 0, -1, -2, -3], [0, 1, 2, 3, 4, 5]], np.float32)
    result = score_of(scores, np.array([0, 0]))
    assert (result.top1, result.top5, result.pictures) == (0.5, 0.5, 2)
    expected = -(np.log(np.exp(scores[:, 0]) / np.exp(scores).sum(1))).mean()
    assert result.loss == pytest.approx(expected, rel=1e-6)
