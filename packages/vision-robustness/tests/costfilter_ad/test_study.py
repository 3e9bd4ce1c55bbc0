"""The study at its tiny preset, from the command line, and the defects that it is measured on."""

import itertools

import numpy as np
import pytest

from hexad.vision_robustness.costfilter_ad.study_data import (
    QUARTERS,
    Config,
    _crops,
    cut_coins,
    deface,
    prepare,
)
from hexad.vision_robustness.costfilter_ad.textures import packaged


@pytest.fixture(scope="module")
def proof(proof_of):
    return proof_of("costfilter-ad")


def test_the_tiny_study_measures_every_arm_and_judges_nothing(proof):
    page = proof[0]["pages"][0]
    assert not page["errors"]
    assert {item["verdict"] for item in page["judgements"]} == {"not measured"}
    import polars as pl

    records = pl.concat([pl.read_parquet(path) for path in proof[1].rglob("*.parquet")])
    assert len(records) == 6 * (1 + 2 * 5)
    values = records.filter(pl.col("metric") != "lam")["value"]
    assert 0 <= values.min() <= values.max() <= 1
    lam = {row["arm"]: row["value"] for row in records.filter(metric="lam").iter_rows(named=True)}
    assert lam["templates"] == lam["reconstruction"] == 0
    # The detector alone finds defects of a foreign texture in brick.
    found = records.filter(arm="templates", metric="pixel_auroc", case="same/brick")["value"][0]
    assert found > 0.7


def test_the_report_has_both_figures(proof):
    assert len(list(proof[1].rglob("*.png"))) >= 2


def test_foreign_defects_change_what_their_mask_says_and_little_else():
    image = packaged("brick.png")[:128, :128].astype(np.float32) / 255
    coins = cut_coins()
    assert len(coins) > 12
    for kind in ("coin", "scratch", "blur"):
        shares = []
        for seed in range(8):
            made, mask = deface(image, kind, coins, np.random.default_rng(seed))
            changed = np.abs(made - image).max(2) > 1e-3
            shares.append(mask.mean())
            # Soft edges reach a pixel or two beyond the mask.
            assert (changed & ~mask).sum() < 0.5 * mask.sum() + 60
            assert (changed & mask).sum() > 0.7 * mask.sum()
            assert made.min() >= 0
            assert made.max() <= 1
        assert min(shares) > 0.001
        assert max(shares) < 0.15


def test_no_pixel_of_a_photograph_has_two_uses():
    places = np.arange(512 * 512).reshape(512, 512, 1).repeat(3, 2)
    generator = np.random.default_rng(0)
    seen = [
        {
            round(float(value) * 255)
            for crop in _crops([places], use, 6, generator)[0]
            for value in crop[0].ravel()
        }
        for use in QUARTERS
    ]
    assert len(seen) == 4
    for first, second in itertools.combinations(seen, 2):
        assert not first & second


def test_a_seed_is_prepared_once():
    prepare.cache_clear()
    config = Config(("grass",), 2, 2, 1, 1, steps=1, batch_size=2, parts=1)
    data = prepare(config, 5)
    assert data.tests["good"].masks.sum() == 0
    assert data.tests["cross"].masks[0].sum() > 0
    assert prepare(config, 5) is data
    prepare.cache_clear()
