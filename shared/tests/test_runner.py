import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from toy import BROKEN, STUDY, Config

from hexad.core.engines import run_task, run_tasks
from hexad.core.errors import InputError, MissingExtraError
from hexad.core.runner import load_proof, run_study
from hexad.core.store import open_store
from hexad.core.studies import Arm, Measurement, Preset, Study, Task


def values(records: pl.DataFrame) -> list[tuple]:
    """Everything measured but the process numbers."""
    rows = records.filter(pl.col("metric") == "mean").select("arm", "seed", "case", "value").sort(pl.all())
    return rows.rows()


def test_a_study_is_measured_stored_and_judged(tmp_path, toy_log):
    proof = run_study(STUDY, "tiny", out=tmp_path)
    assert sorted(toy_log()) == ["high 0", "high 1", "low 0", "low 1"]
    verdicts = {judged.claim.name: judged for judged in proof.judgements}
    # Both arms share their noise, so that the paired difference is exactly 1.5 in every pair.
    gap = verdicts["gap"].estimate
    assert (gap.value, gap.low, gap.high) == pytest.approx((1.5, 1.5, 1.5), abs=1e-12)
    assert verdicts["gap"].verdict == "holds"
    assert verdicts["too-much"].verdict == "fails"
    table = pl.read_parquet(tmp_path / "toy" / "tiny" / "records" / "*.parquet")
    assert table.height == 12
    assert set(table["unit"]) == {"m", ""}


def test_nothing_finished_is_measured_twice(tmp_path, toy_log):
    run_study(STUDY, "tiny", out=tmp_path, arms=["low"])
    before = toy_log()
    proof = run_study(STUDY, "tiny", out=tmp_path, seeds=3)
    assert proof.resumed == 2
    assert sorted(toy_log()[len(before) :]) == ["high 0", "high 1", "high 2", "low 2"]
    ran = len(toy_log())
    assert run_study(STUDY, "tiny", out=tmp_path, seeds=3).resumed == 6
    assert len(toy_log()) == ran
    run_study(STUDY, "tiny", out=tmp_path, fresh=True)
    assert len(toy_log()) == ran + 4
    assert len(list((tmp_path / "toy").glob("tiny.*"))) == 1  # the old records, set aside


@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT"])
def test_a_killed_run_resumes_and_repeats_no_finished_arm(tmp_path, toy_log, how):
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from toy import STUDY\nfrom hexad.core.runner import run_study\n"
        f"run_study(STUDY, 'slow', out={str(tmp_path)!r})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    folder = tmp_path / "toy" / "slow" / "records"
    deadline = time.monotonic() + 60
    while len(list(folder.glob("[!.]*.parquet"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(getattr(signal, how))
    process.wait(timeout=30)
    finished = len(list(folder.glob("[!.]*.parquet")))
    assert 2 <= finished < 6
    proof = run_study(STUDY, "slow", out=tmp_path)
    assert proof.resumed == finished
    ran = toy_log()
    assert len(set(ran)) == 6
    assert len(ran) <= 7  # only the trial that was cut off ran twice
    assert proof.judgements[0].verdict == "holds"


def test_a_damaged_record_is_reported_set_aside_and_measured_again(tmp_path, toy_log):
    whole = run_study(STUDY, "tiny", out=tmp_path)
    folder = whole.folder / "records"
    cut = folder / "high--0.parquet"
    cut.write_bytes(cut.read_bytes()[:100])
    # A file that is good Parquet, but with a number changed.
    changed = folder / "low--1.parquet"
    meta = pl.read_parquet_metadata(changed)["hexad"]
    forged = pl.read_parquet(changed, memory_map=False).with_columns(pl.col("value") + 1e-9)
    forged.write_parquet(changed, metadata={"hexad": meta})
    events = []
    again = run_study(STUDY, "tiny", out=tmp_path, watch=events.append)
    warnings = [event.note for event in events if event.kind == "warning"]
    assert len(warnings) == 2
    assert "high--0.parquet is damaged" in warnings[0]
    assert "content does not match its digest" in warnings[1]
    assert {p.name for p in folder.glob("*.damaged")} == {"high--0.parquet.damaged", "low--1.parquet.damaged"}
    assert values(again.records) == values(whole.records)
    assert sorted(toy_log()[4:]) == ["high 0", "low 1"]


def test_records_of_other_settings_are_not_mixed(tmp_path):
    run_study(STUDY, "tiny", out=tmp_path)
    other = dataclasses.replace(STUDY, presets={"tiny": Preset(Config(n=7), 1)})
    with pytest.raises(InputError, match=r"other settings \(n: 100 -> 7\); --fresh"):
        run_study(other, "tiny", out=tmp_path)
    with pytest.raises(InputError, match="version: 1 -> 2"):
        run_study(dataclasses.replace(STUDY, version=2), "tiny", out=tmp_path)


def test_two_processes_do_not_measure_into_one_folder(tmp_path):
    with open_store(tmp_path, STUDY, "tiny"), pytest.raises(InputError, match="another process"):
        run_study(STUDY, "tiny", out=tmp_path)


def test_a_broken_arm_fails_alone(tmp_path):
    proof = run_study(BROKEN, "tiny", out=tmp_path)
    assert proof.errors == {("broken", 0): "ZeroDivisionError: this arm is broken"}
    assert proof.judgements[0].verdict == "not measured"
    assert "this arm is broken" in proof.judgements[0].reason
    assert "Traceback" in (proof.folder / "errors" / "broken--0.txt").read_text()
    assert values(proof.records)
    # A later seed runs it again, and the other arms stay as they are.
    later = run_study(BROKEN, "tiny", out=tmp_path, seeds=2)
    assert later.resumed == 2
    assert later.records.filter(arm="broken").height == 1


@pytest.mark.parametrize(
    ("value", "metric", "message"),
    [(float("nan"), "mean", "measured nan as mean"), (1.0, "meen", "did you mean 'mean'")],
)
def test_what_is_no_finite_number_of_a_known_metric_is_refused(tmp_path, value, metric, message):
    arm = Arm("a", "A", "method", lambda trial: [Measurement(metric, value)])
    study = Study("s", "?", (arm,), STUDY.metrics, (), {"tiny": Preset(Config(), 1)})
    assert message in run_task(Task(study, "a", 0, Config(), tmp_path)).error
    empty = dataclasses.replace(study, arms=(Arm("a", "A", "method", lambda trial: []),))
    assert "measured nothing" in run_task(Task(empty, "a", 0, Config(), tmp_path)).error


def test_bad_requests_are_refused_before_anything_runs(tmp_path, toy_log):
    for options, message in [
        ({"preset": "ful"}, "unknown preset"),
        ({"preset": "tiny", "seeds": 0}, "at least one"),
        ({"preset": "tiny", "arms": ["hihg"]}, "did you mean 'high'"),
        ({"preset": "tiny", "engine": "rya"}, "unknown engine 'rya'; did you mean 'ray'"),
        ({"preset": "tiny", "workers": 0}, "workers is 0"),
    ]:
        with pytest.raises(InputError, match=message):
            run_study(STUDY, out=tmp_path, **options)
    assert toy_log() == []


def test_a_pool_of_processes_gives_the_same_records(tmp_path):
    here = run_study(STUDY, "tiny", out=tmp_path / "here")
    pool = run_study(STUDY, "tiny", out=tmp_path / "pool", workers=2)
    assert values(pool.records) == values(here.records)
    assert os.getpid() not in pool.records.filter(metric="pid")["value"].to_list()


def test_a_worker_that_dies_is_an_error_of_its_trial(tmp_path):
    study = dataclasses.replace(STUDY, arms=(Arm("high", "High", "method", _die),), claims=())
    (outcome,) = [o for _, o in run_tasks([Task(study, "high", 0, Config(), tmp_path)], workers=2)]
    assert "process died" in outcome.error


def _die(trial):
    os._exit(9)


def test_ray_gives_the_same_records_as_local(tmp_path):
    here = run_study(STUDY, "tiny", out=tmp_path / "here")
    cluster = run_study(STUDY, "tiny", out=tmp_path / "ray", engine="ray", workers=2)
    assert not cluster.errors
    assert values(cluster.records) == values(here.records)
    assert os.getpid() not in cluster.records.filter(metric="pid")["value"].to_list()


def test_a_missing_ray_is_said_before_anything_runs(tmp_path, toy_log, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r'run: pip install "hexad-core\[ray\]"'):
        run_study(STUDY, "tiny", out=tmp_path, engine="ray")
    assert toy_log() == []


def test_stored_records_are_judged_without_measuring(tmp_path, toy_log):
    proof = run_study(STUDY, "tiny", out=tmp_path)
    ran = len(toy_log())
    again = load_proof(tmp_path, STUDY, "tiny")
    assert len(toy_log()) == ran
    assert [j.verdict for j in again.judgements] == [j.verdict for j in proof.judgements]
