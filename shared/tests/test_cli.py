import dataclasses
import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
from toy import STUDY
from typer.core import TyperGroup

from hexad.core import cli, methods
from hexad.core.errors import HexadError, InputError, MissingExtraError
from hexad.core.studies import Figure


@pytest.fixture
def announced(monkeypatch):
    """The toy methods are installed, and nothing else."""

    def announce(**values):
        points = [EntryPoint(name, value, methods.GROUP) for name, value in values.items()]
        monkeypatch.setattr(methods, "entry_points", lambda **_: points)
        methods.methods.cache_clear()

    announce(
        **{
            "toy": "toy_methods:TOY",
            "toy-broken": "toy_methods:BROKEN",
            "bare": "toy_methods:BARE",
            "unmet": "toy_methods:UNMET",
        }
    )
    yield announce
    methods.methods.cache_clear()


@pytest.fixture
def hexad(announced, monkeypatch, capsys, tmp_path):
    """Run the command line as the shell does; returns exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["hexad", *map(str, arguments)])
        # The consoles were made with the streams of another test.
        monkeypatch.setattr(cli, "stdout", cli.Console(highlight=False, width=200))
        monkeypatch.setattr(cli, "stderr", cli.Console(stderr=True, highlight=False, width=200))
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        out, err = capsys.readouterr()
        return exit_.value.code or 0, out, err

    return run


def test_list_and_show(hexad):
    code, out, _ = hexad("list", "--json")
    assert code == 0
    listed = {item["name"]: item for item in json.loads(out)}
    assert set(listed) == {"toy", "toy-broken", "bare", "unmet"}
    assert listed["toy"]["has_study"]
    assert not listed["bare"]["has_study"]
    code, out, _ = hexad("show", "TOY")
    assert code == 0
    assert "Two is more than a half." in out
    assert "the gap is one and a half" in out
    code, out, _ = hexad("show", "toy", "--json")
    assert json.loads(out)["study"]["presets"]["slow"]["config"] == {"n": 100, "sleep": 0.1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("prove", "tyo"), "no installed method is called 'tyo'; did you mean 'toy'?"),
        (
            ("prove", "toy", "--preset", "tinny"),
            "unknown preset 'tinny' of study 'toy'; did you mean 'tiny'?",
        ),
        (("prove", "toy", "-p", "tiny", "--arms", "hi"), "did you mean 'high'?"),
        (("prove", "bare"), "has no study"),
        (("prove", "unmet"), "'a_package_that_nobody_has', which is not installed; run: pip install"),
        (("prove",), "name at least one method"),
        (("prove", "toy", "--all"), "not both"),
        (("prove", "toy", "-p", "tiny", "--engine", "rya"), "did you mean 'ray'?"),
        (("report", "nowhere"), "results folder nowhere does not exist"),
        (("report", "."), "no measured study below"),
        (("show", "nothing-like-it-at-all"), "known: bare, toy"),
        (("list", "--domain", "vision"), "unknown domain 'vision'"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_two(hexad, arguments, message):
    code, out, err = hexad(*arguments)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert out == ""


def test_an_unwritable_folder_is_refused_before_measuring(hexad, tmp_path, toy_log):
    (tmp_path / "file").write_text("")
    code, _, err = hexad("prove", "toy", "-p", "tiny", "-o", "file")
    assert code == 2
    assert "results folder file is a file" in err
    code, _, err = hexad("prove", "toy", "-p", "tiny", "-o", "/proc/nothing")
    assert code == 2
    assert "/proc/nothing cannot be written" in err
    assert toy_log() == []


def test_prove_prints_verdicts_and_writes_a_report(hexad, tmp_path):
    code, out, err = hexad("prove", "toy", "-p", "tiny")
    assert code == 0
    assert "✓ holds" in out
    assert "✗ fails" in out
    assert "toy [4/4]" in err
    index = out.strip().splitlines()[-1].removeprefix("Report: ")
    assert index == str(tmp_path / "hexad-results" / "index.html")
    page = (tmp_path / "hexad-results" / "toy" / "tiny" / "index.html").read_text()
    assert "the gap is one and a half" in page
    assert "figures/means.png" in page
    picture = tmp_path / "hexad-results" / "toy" / "tiny" / "figures" / "means.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert 'href="toy/tiny/index.html"' in (tmp_path / "hexad-results" / "index.html").read_text()


def test_strict_and_failed_trials_exit_with_one(hexad):
    assert hexad("prove", "toy", "-p", "tiny", "--strict")[0] == 1
    code, out, err = hexad("prove", "toy-broken", "-p", "tiny")
    assert code == 1
    assert "broken (seed 0) failed: ZeroDivisionError: this arm is broken" in err
    assert "not measured" in out


def test_another_studys_damaged_record_is_told(hexad, tmp_path):
    assert hexad("prove", "toy", "-p", "tiny")[0] == 0
    record = tmp_path / "hexad-results" / "toy" / "tiny" / "records" / "high--0.parquet"
    record.write_bytes(record.read_bytes()[:80])
    # Measuring another study neither reads nor moves it; the report tells.
    code, _, err = hexad("prove", "toy-broken", "-p", "tiny", "--arms", "low")
    assert (code, record.is_file()) == (0, True)
    code, _, err = hexad("report")
    assert code == 0
    assert "high--0.parquet is damaged" in err


def test_a_method_whose_study_lacks_something_is_shown(hexad):
    code, out, _ = hexad("show", "unmet")
    assert code == 0
    assert "Needs something" in out
    assert "Its study is not shown" in out


def test_all_stores_are_checked_before_anything_is_measured(hexad, tmp_path, toy_log):
    hexad("prove", "toy-broken", "-p", "tiny", "--arms", "low")
    manifest = tmp_path / "hexad-results" / "toy-broken" / "tiny" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"n": 100', '"n": 99'))
    ran = len(toy_log())
    code, _, err = hexad("prove", "toy", "toy-broken", "-p", "tiny")
    assert code == 2
    assert "measured with other settings (n: 99 -> 100)" in err
    assert len(toy_log()) == ran


def test_a_figure_that_cannot_be_drawn_loses_nothing(hexad, tmp_path, monkeypatch):
    def fail(results):
        raise KeyError("[an arm] that was left out")

    monkeypatch.setattr("toy.STUDY", dataclasses.replace(STUDY, figures=(Figure("bad", "Bad", fail),)))
    code, out, _ = hexad("prove", "toy", "-p", "tiny")
    assert code == 0
    assert "figure bad: KeyError: '[an arm] that was left out'" in out
    assert (tmp_path / "hexad-results" / "index.html").is_file()


def test_a_report_that_was_moved_is_written_where_it_lies_now(hexad, announced, tmp_path):
    hexad("prove", "toy", "-p", "tiny", "--out", "here")
    (tmp_path / "here").rename(tmp_path / "there")
    announced()  # the method is gone: the page that was stored is shown
    code, _, _ = hexad("report", "there")
    assert code == 0
    assert (tmp_path / "there" / "toy" / "tiny" / "index.html").is_file()
    assert not (tmp_path / "here").exists()


def test_json_is_all_that_goes_to_standard_output(hexad):
    code, out, _ = hexad("prove", "toy", "-p", "tiny", "--json")
    assert code == 0
    content = json.loads(out)
    (page,) = content["pages"]
    assert {item["name"]: item["verdict"] for item in page["judgements"]}["gap"] == "holds"
    assert page["environments"][0]["packages"]["polars"]
    assert content["report"].endswith("index.html")


def test_report_shows_what_is_stored_even_of_a_method_that_is_gone(hexad, announced, tmp_path):
    hexad("prove", "toy", "-p", "tiny")
    announced(bare="toy_methods:BARE")
    code, out, err = hexad("report", "hexad-results")
    assert code == 0
    assert "shown as it was measured (method 'toy' is not installed)" in err
    assert "✓ holds" in out
    (tmp_path / "hexad-results" / "toy" / "tiny" / "manifest.json").write_text("{")
    code, _, err = hexad("report", "hexad-results")
    assert code == 2
    assert "manifest.json is damaged" in err


def test_report_takes_a_study_or_a_preset_in_the_results_folder(hexad, tmp_path, monkeypatch):
    for arguments in (
        ("toy", "-p", "tiny"),
        ("toy", "-p", "slow", "--seeds", 1),
        ("toy-broken", "-p", "tiny"),
    ):
        hexad("prove", *arguments)
    root = tmp_path / "hexad-results"
    index = root / "index.html"
    for folder, shown in (
        ("hexad-results/toy", ["toy slow", "toy tiny"]),
        (root / "toy" / "slow", ["toy slow"]),
    ):
        index.unlink()
        code, out, err = hexad("report", folder, "--json")
        assert (code, err) == (0, "")
        found = json.loads(out)
        assert [f"{page['study']} {page['preset']}" for page in found["pages"]] == shown
        assert found["report"] == str(index)
        assert all(
            f'href="{link}/index.html"' in index.read_text() for link in ("toy/tiny", "toy-broken/tiny")
        )
    assert sorted(path.name for path in root.rglob("index.html")) == ["index.html"] * 4  # none elsewhere
    monkeypatch.chdir(root / "toy" / "tiny")
    code, out, _ = hexad("report", ".")
    assert code == 0
    assert "toy, preset tiny" in out
    assert "preset slow" not in out
    monkeypatch.chdir(tmp_path)
    (root / "toy" / "tiny").rename(root / "toy" / "tiny.20261130")
    code, _, err = hexad("report", root / "toy" / "tiny.20261130")
    assert code == 2
    assert "holds toy at preset tiny, set aside or moved from its place" in err
    (root / "toy" / "slow").rename(tmp_path / "slow")
    code, _, err = hexad("report", "slow")
    assert code == 2
    assert "make it <results>/toy/slow" in err


def test_a_folder_with_another_tools_manifest_is_no_study(hexad, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "manifest.json").write_text('{"images": 3}')
    hexad("prove", "toy", "-p", "tiny", "-o", ".")
    code, out, _ = hexad("report", ".", "--json")
    assert code == 0
    assert json.loads(out)["report"] == str(tmp_path / "index.html")


def test_tour_without_a_study_says_what_to_install(hexad, announced):
    announced(bare="toy_methods:BARE")
    code, _, err = hexad("tour")
    assert code == 2
    assert "no installed method has a study" in err


def test_tour_leaves_out_what_cannot_run_and_says_how_to_mend_it(hexad, announced):
    announced(unmet="toy_methods:UNMET")
    code, _, err = hexad("tour")
    assert code == 2
    assert "unmet is left out" in err
    assert '[study]"' in err  # not eaten as markup


def test_announcements_that_do_not_load_or_clash_are_named(announced):
    announced(gone="no_such_module:METHOD")
    with pytest.raises(HexadError, match="'gone' = 'no_such_module:METHOD' does not load"):
        methods.methods()
    announced(a="toy_methods:TOY", b="toy_methods:TOY")
    with pytest.raises(HexadError, match="announce a method 'toy'"):
        methods.methods()


def test_an_error_in_our_own_code_is_not_called_a_missing_extra(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "wrong_inside.py").write_text("import hexad.no_such_part")
    with pytest.raises(ModuleNotFoundError) as error:
        methods.load_object("wrong_inside:x", "hexad")
    assert not isinstance(error.value, MissingExtraError)
    with pytest.raises(InputError):
        methods.Method("m", "t", "p", "c").load_commands()


def test_the_core_starts_without_numerical_libraries():
    code = (
        "import sys, hexad.core.cli, hexad.core.methods as m; m.methods()\n"
        "heavy = {'torch', 'numpy', 'scipy', 'polars', 'matplotlib', 'ray', 'jinja2'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_ctrl_c_in_a_command_is_said(hexad, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    for owner, name in ((cli, "methods"), (TyperGroup, "parse_args"), (cli, "app")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, interrupted)
            code, out, err = hexad("list")
        assert (code, out, err) == (130, "", "interrupted\n"), name


def test_a_width_of_zero_is_an_unknown_one():
    listed = subprocess.run(
        [sys.executable, "-m", "hexad.core.cli", "list"],
        env={**os.environ, "COLUMNS": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "what it is" in listed.stdout
