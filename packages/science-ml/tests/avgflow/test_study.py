"""The study at its tiny preset, from the command line, and the parts whose results are known."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from hexad.core.studies import Trial
from hexad.science_ml.avgflow.ensembles import split_of
from hexad.science_ml.avgflow.generator import shipped_kinds
from hexad.science_ml.avgflow.heavy import SIZES, heavy_molecules, sample_heavy
from hexad.science_ml.avgflow.metrics import rmsd_matrix
from hexad.science_ml.avgflow.network import ConformerFlow
from hexad.science_ml.avgflow.study import STUDY


@pytest.fixture(scope="module")
def proof(tmp_path_factory):
    """What `hexad prove avgflow --preset tiny --json` prints."""
    out = tmp_path_factory.mktemp("results")
    command = [sys.executable, "-m", "hexad.core.cli", "prove", "avgflow", "--preset", "tiny", "--json"]
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout), out


def test_the_tiny_study_measures_all_arms(proof):
    page = proof[0]["pages"][0]
    assert not page["errors"]
    verdicts = {item["name"]: item["verdict"] for item in page["judgements"]}
    # Two molecules and 40 draws judge the exact field; trained networks are judged in `full` alone.
    assert verdicts["field-ends"] == verdicts["target-noise"] == verdicts["target-exact"] == "holds"
    for name in ("better-than-rotation", "no-worse-than-alignment", "lower-loss", "one-step"):
        assert verdicts[name] == "not measured"
    assert (verdicts["faster"] != "not measured") == ("distilled" in shipped_kinds())


def test_the_records_are_paired_and_complete(proof):
    records = pl.concat([pl.read_parquet(path) for path in proof[1].rglob("*.parquet")])

    def cases(arm: str, metric: str, part: str) -> set[str]:
        chosen = records.filter(arm=arm, metric=metric)["case"]
        return {case for case in chosen if case.startswith(part)}

    for part in ("train/base, 20 steps", "test/base, 20 steps", "train/base, 1 step"):
        for arm in ("cond-ot", "kabsch"):
            assert cases(arm, "amr_r", part) == cases("avg", "amr_r", part)
        assert len(cases("avg", "amr_r", part)) == 2
    assert len(cases("avg", "amr_p", "train/distilled, 1 step")) == 2
    assert len(cases("shipped", "cov_r", "shipped/")) == 2 * len(shipped_kinds()) >= 2
    assert len(cases("etkdg", "amr_r", "train/ETKDGv3")) == 2
    assert len(cases("avg", "target_noise", "noise")) == 10 * 2
    for metric in ("cov_r", "cov_p", "target_noise"):
        assert records.filter(metric=metric)["value"].is_between(0, 1).all()


def test_the_report_has_its_figures(proof):
    assert len(list(proof[1].rglob("*.png"))) >= 3


def test_noise_of_a_random_rotation_is_what_theory_says_at_the_start(tmp_path):
    # At t = 0 the mean of X R - x0 over R is -x0, so the noise is |X|^2 / (|X|^2 + |x0|^2).
    config = replace(STUDY.preset("tiny").config, exact=1, draws=4000, judged=0)
    trial = Trial("cond-ot", 5, config, tmp_path)
    found = {m.case: m.value for m in STUDY.arm("cond-ot").run(trial) if m.metric == "target_noise"}
    frame = heavy_molecules(1, 0)[0][0].frames[0]
    n = len(frame)
    expected = (frame**2).sum() / ((frame**2).sum() + 3 * (n - 1))
    assert found["noise/t=0.0/m000"] == pytest.approx(expected, abs=0.01)
    assert found["noise/t=0.9/m000"] < 0.1


def test_exact_flow_carries_far_less_than_random_rotations(tmp_path):
    config = replace(STUDY.preset("tiny").config, exact=1, draws=500, judged=0)
    paths = {
        arm: next(
            m.value for m in STUDY.arm(arm).run(Trial(arm, 1, config, tmp_path)) if m.metric == "transport"
        )
        for arm in ("avg", "cond-ot", "kabsch")
    }
    # Alignment is the shortest to a whole conformer; the flow is measured at 0.999 of it, hence 0.5 %.
    assert 0.995 * paths["kabsch"] < paths["avg"] < 0.9 * paths["cond-ot"]


def test_small_problem_keeps_its_sides_apart_and_its_heavy_atoms():
    train, test = heavy_molecules(6, 3)
    assert (len(train), len(test)) == (6, 3)
    assert {split_of(known.graph.smiles) for known in train} == {"train"}
    assert {split_of(known.graph.smiles) for known in test} == {"test"}
    for known in train:
        assert 6 <= known.graph.atoms <= 14
        assert (known.graph.atomic_numbers > 1).all()
        assert known.mol.GetNumConformers() == len(known.frames)
        assert np.abs(rmsd_matrix(known.mol, known.mol).diagonal()).max() < 1e-6


def test_samples_are_twice_the_references_and_share_their_noise():
    train, _ = heavy_molecules(3, 0)
    torch.manual_seed(0)
    network = ConformerFlow(SIZES)
    samples = sample_heavy(network, train, 1, seed=3)
    assert [mol.GetNumConformers() for mol in samples] == [2 * len(known.frames) for known in train]
    # A fresh network's velocity is 0, so the samples are the noise: normal, and the same again.
    again = sample_heavy(network, train, 4, seed=3)
    first = samples[0].GetConformer(0).GetPositions()
    assert np.abs(first - again[0].GetConformer(0).GetPositions()).max() < 1e-6
    assert 0.4 < first.std() < 1.6
