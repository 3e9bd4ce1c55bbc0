"""A sweep over a study's arms: what is left of the study, and the table that is printed."""

import sys
from dataclasses import dataclass

from hexad.core.studies import Arm, Claim, Measurement, Metric, Preset, Study
from hexad.core.sweeps import run_sweep, sweep_of


@dataclass(frozen=True)
class Config:
    rates: tuple[float, ...] = (1.0,)


def measure(trial):
    for rate in trial.config.rates:
        yield Measurement("loss", rate * (2 if trial.arm == "b" else 1), f"{rate:g}")


STUDY = Study(
    name="toy",
    question="Which rate?",
    arms=(Arm("a", "A", "method", measure), Arm("b", "B", "baseline", measure)),
    metrics=(Metric("loss", "loss", better="lower"),),
    claims=(Claim("low", "It is low", metric="loss", arm="a", direction="at most", threshold=1.0),),
    presets={name: Preset(Config(), seeds=1) for name in ("tiny", "quick", "full")},
)


def test_a_sweep_prints_each_arm_at_each_rate(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["sweep", str(tmp_path)])
    # One worker, thus in this process: others cannot import a test.
    monkeypatch.setattr("hexad.core.sweeps.os.cpu_count", lambda: 1)
    sweep = sweep_of(STUDY, Config((0.5, 3.0)))
    assert (sweep.name, sweep.claims, sweep.figures) == ("toy-sweep", (), ())
    run_sweep(sweep, "loss")
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert ["│", "a", "┆", "0.5", "┆", "3.0", "│"] in rows
    assert ["│", "b", "┆", "1.0", "┆", "6.0", "│"] in rows
    assert (tmp_path / "toy-sweep").is_dir()
