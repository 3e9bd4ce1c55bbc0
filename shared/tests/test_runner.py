import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from toy import BROKEN, STUDY, Config, deadly

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


def test_no_flipped_bit_is_taken_for_a_record_or_ends_the_program(tmp_path):
    whole = run_study(STUDY, "tiny", out=tmp_path, arms=["low"], seeds=1)
    path = whole.folder / "records" / "low--0.parquet"
    good = path.read_bytes()
    for place in range(0, len(good), 40):  # Polars answers some of them with a panic
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x41]) + good[place + 1 :])
        with open_store(tmp_path, STUDY, "tiny") as store:
            kept = values(store.records)
            assert kept in ([], values(whole.records))
            assert bool(store.warnings) == (not kept)
        for aside in path.parent.glob("*.damaged"):
            aside.unlink()


def test_records_of_other_settings_are_not_mixed(tmp_path):
    run_study(STUDY, "tiny", out=tmp_path)
    other = dataclasses.replace(STUDY, presets={"tiny": Preset(Config(n=7), 1)})
    with pytest.raises(InputError, match=r"other settings \(n: 100 -> 7\); --fresh"):
        run_study(other, "tiny", out=tmp_path)
    with pytest.raises(InputError, match="version: 1 -> 2"):
        run_study(dataclasses.replace(STUDY, version=2), "tiny", out=tmp_path)


def test_what_a_killed_run_leaves_is_neither_a_record_nor_an_error(tmp_path):
    proof = run_study(STUDY, "tiny", out=tmp_path)
    updated = json.loads((proof.folder / "manifest.json").read_text())["updated"]
    records = proof.folder / "records"
    (records / ".high--0-1a2b3c.parquet").write_bytes((records / "high--0.parquet").read_bytes()[:50])
    (proof.folder / "errors").mkdir()
    (proof.folder / "errors" / "high--0.txt").write_text("killed after the record, before this was removed")
    time.sleep(1.1)  # times are stored to the second
    again = load_proof(tmp_path, STUDY, "tiny")
    assert (again.warnings, again.errors) == ([], {})
    assert not list(records.glob(".*"))
    # Looking is no measuring: the date in the report stays that of the last record.
    assert json.loads((proof.folder / "manifest.json").read_text())["updated"] == updated


def test_an_arm_named_twice_runs_once(tmp_path, toy_log):
    run_study(STUDY, "tiny", out=tmp_path, arms=["low", "low"])
    assert sorted(toy_log()) == ["low 0", "low 1"]


@pytest.mark.parametrize("name", ["a b", "a--b", "A", "../a", ""])
def test_a_name_that_names_no_file_is_refused(name):
    with pytest.raises(InputError, match="names files"):
        dataclasses.replace(STUDY, arms=(Arm(name, "A", "method", deadly),), claims=())


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
    twice = dataclasses.replace(
        study, arms=(Arm("a", "A", "method", lambda trial: 2 * [Measurement("mean", 1.0, "c")]),)
    )
    assert "measured mean c 2 times" in run_task(Task(twice, "a", 0, Config(), tmp_path)).error
    empty = dataclasses.replace(study, arms=(Arm("a", "A", "method", lambda trial: []),))
    assert "measured nothing" in run_task(Task(empty, "a", 0, Config(), tmp_path)).error


def test_bad_requests_are_refused_before_anything_runs(tmp_path, toy_log):
    for options, message in [
        ({"preset": "ful"}, "unknown preset"),
        ({"preset": "tiny", "seeds": 0}, "seeds is 0"),
        ({"preset": "tiny", "seeds": True}, "seeds is True"),
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


def test_a_worker_that_dies_is_an_error_of_its_trial_alone(tmp_path):
    study = dataclasses.replace(STUDY, arms=(Arm("high", "High", "method", deadly),), claims=())
    tasks = [Task(study, "high", seed, Config(), tmp_path / str(seed)) for seed in range(5)]
    found = {task.seed: outcome for task, outcome in run_tasks(tasks, workers=2)}
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert {seed for seed, outcome in found.items() if outcome.error} == {1}
    assert "process died" in found[1].error


def _sleepers(tmp_path: Path) -> subprocess.Popen:
    """A process whose two workers sleep in their trials for a minute."""
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from toy import STUDY\nfrom hexad.core.runner import run_study\n"
        "from hexad.core.studies import Preset\nfrom toy import Config\nimport dataclasses\n"
        "if __name__ == '__main__':\n"
        "    study = dataclasses.replace(STUDY, presets={'slow': Preset(Config(sleep=60.0), 2)})\n"
        f"    run_study(study, 'slow', out={str(tmp_path / 'out')!r}, workers=2)\n"
    )
    script, log = tmp_path / "script.py", tmp_path / "log"
    script.write_text(code)
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "HEXAD_TOY_LOG": str(log)},
        stderr=subprocess.DEVNULL,
    )
    _wait_until(lambda: log.exists() and len(log.read_text().splitlines()) == 2)
    return process


def test_workers_end_with_a_killed_parent(tmp_path):
    # Or they would write into the trials' folders beside the run that resumes them.
    process = _sleepers(tmp_path)
    children = [
        int(child) for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ]
    assert len(children) >= 2
    process.kill()
    process.wait(timeout=30)
    _wait_until(lambda: not any(_runs(child) for child in children))
    assert not any(_runs(child) for child in children)


def test_ctrl_c_ends_a_pool_at_once(tmp_path):
    # Polars, which the runner imports, makes an untimed wait deaf to Ctrl-C until a trial ends.
    process = _sleepers(tmp_path)
    process.send_signal(signal.SIGINT)
    process.wait(timeout=10)


def _wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


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
