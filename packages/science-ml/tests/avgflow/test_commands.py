"""The commands as a user calls them: train, reflow, distill, sample, evaluate."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from rdkit import Chem

from hexad.core.cli import main
from hexad.science_ml.avgflow import generator
from hexad.science_ml.avgflow.ensembles import EmbedConfig, make_ensemble
from hexad.science_ml.avgflow.molecules import canonical_smiles

SMALL = EmbedConfig(embeds=4)
TINY = ("--layers", "1", "--width", "16", "--heads", "2", "--pairs-width", "8", "--batch-size", "4")


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """Call the command line in this process and folder; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hexad", "science-ml", "avgflow", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def write_sdf(path: Path, smiles: list[str]) -> None:
    with Chem.SDWriter(str(path)) as writer:
        for text in smiles:
            mol = make_ensemble(text, SMALL).molecule()
            for conformer in mol.GetConformers():
                writer.write(mol, confId=conformer.GetId())


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with data and a network of 1 layer after 3 steps: what it makes is nonsense, but it is one."""
    folder = tmp_path_factory.mktemp("trained")
    write_sdf(folder / "data.sdf", ["CCCO", "CC(C)=O", "C[C@H](F)CO"])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["hexad", "science-ml", "avgflow", "train", "data.sdf", "--out", "run",
                                    "--steps", "3", *TINY])  # fmt: skip
        with pytest.raises(SystemExit, match=r"^(0|None)?$"):
            main()
    return folder


@pytest.fixture
def base(trained, run, tmp_path) -> Path:
    """The checkpoint of `trained` in this test's own folder."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run/base.safetensors"


def test_three_stages_and_resume(run, base, tmp_path):
    code, out, _ = run("train", "data.sdf", "--out", "run", "--steps", "5", "--json", *TINY)
    assert code == 0
    described = json.loads(out)
    assert described["kind"] == "base"
    assert described["elements"] == ["H", "C", "O", "F"]
    assert described["molecules"] == 3
    assert described["max_atoms"] == 12
    assert described["training"]["steps"] == 5
    options = ("--pairs", "2", "--teacher-steps", "2", "--steps", "2", "--batch-size", "4", "--out", "run")
    Path("mols.smi").write_text("CCCO\nCC(C)=O\nOCCC\n")
    code, out, err = run("reflow", base, "mols.smi", *options)
    assert code == 0, err
    assert "reflow" in out
    assert "2 molecules" in out, "the same molecule twice counts once"
    pairs = list((tmp_path / "run/pairs").iterdir())
    stamps = [path.stat().st_mtime_ns for path in pairs]
    code, _, err = run("distill", "run/reflow.safetensors", "mols.smi", "--teacher", base, *options)
    assert code == 0, err
    assert [path.stat().st_mtime_ns for path in pairs] == stamps, "the pairs are used again"
    assert len(list((tmp_path / "run/pairs").iterdir())) == len(pairs)
    code, out, _ = run("sample", "CCO", "-c", "run/distilled.safetensors", "-o", "a.sdf", "-n", "3")
    assert code == 0
    assert "3 conformers of 1 molecule in a.sdf: 1 step," in out
    code, _, err = run("distill", "run/distilled.safetensors", "mols.smi", *options)
    assert code == 2
    assert "is distilled to one step" in err


def test_sample_writes_names_conformers_energies_and_a_picture(run, base):
    Path("mols.smi").write_text("CCCO propanol\nCC=O\n")
    arguments = ("-c", base, "--steps", "2", "-n", "4", "-o", "out.sdf")
    code, out, err = run("sample", "mols.smi", *arguments, "--relax", "200", "--picture", "grid.png")
    assert code == 0, err
    assert "8 conformers of 2 molecules in out.sdf: 2 steps" in out
    mols = list(Chem.SDMolSupplier("out.sdf", removeHs=False))
    assert [mol.GetProp("_Name") for mol in mols] == ["propanol"] * 4 + ["CC=O"] * 4
    assert [mol.GetIntProp("conformer") for mol in mols] == [0, 1, 2, 3] * 2
    assert all(mol.GetConformer().Is3D() and mol.GetNumAtoms() in (12, 7) for mol in mols)
    assert [canonical_smiles(mol) for mol in mols[::4]] == ["CCCO", "CC=O"]
    assert np.isfinite([mol.GetDoubleProp("mmff94_kcal_per_mol") for mol in mols]).all()
    assert Path("grid.png").stat().st_size > 5_000
    first = Path("out.sdf").read_text()
    run("sample", "mols.smi", *arguments, "--relax", "200")
    assert Path("out.sdf").read_text() == first, "the same seed gives the same file"


def test_failures_are_named_and_counted_in_json(run, base):
    once = ("-c", base, "--steps", "2", "-o", "a.sdf", "--attempts", "1", "--json")
    Path("mols.smi").write_text("C[C@H](F)[C@@H](O)[C@H](F)CO four\nCCO ethanol\n")
    code, _, err = run("sample", "mols.smi", *once)
    assert code == 2
    assert "at most 12" in err
    Path("mols.smi").write_text("C[C@H](F)C=O chiral\nCCO ethanol\n")
    code, out, err = run("sample", "mols.smi", *once, "-n", "40")
    assert code == 0
    found = json.loads(out)
    chiral, ethanol = found["molecules"]
    assert (chiral["name"], ethanol["name"]) == ("chiral", "ethanol")
    assert ethanol["ids"] == list(range(40))
    failed = chiral["ids"].count(-1)
    assert failed > 0, "flat centres fail"
    assert f"chiral ({failed})" in err
    written = [mol for mol in Chem.SDMolSupplier("a.sdf", removeHs=False) if mol.GetProp("_Name") == "chiral"]
    assert len(written) == 40 - failed
    for mol in written:
        Chem.AssignStereochemistryFrom3D(mol)
        assert canonical_smiles(mol) == "C[C@H](F)C=O", "as RDKit sees it in the coordinates"


def test_evaluate_beside_etkdg_and_from_a_file(run, base):
    code, out, err = run("evaluate", "data.sdf", "-c", base, "--steps", "2", "--energies", "--json",
                         "--picture", "e.png")  # fmt: skip
    assert code == 0, err
    rows = json.loads(out)["rows"]
    assert set(rows) == {f"{base}, 2 steps", "ETKDGv3"}
    assert rows["ETKDGv3"]["cov_r"] == 1.0, "near the generator of these references"
    assert rows["ETKDGv3"]["amr_r"] < 0.3
    assert rows[f"{base}, 2 steps"]["amr_r"] > 0.4
    assert Path("e.png").stat().st_size > 5_000
    code, out, err = run("evaluate", "data.sdf", "--generated", "data.sdf")
    assert code == 0, err
    assert "100.0 %" in out
    assert "3 molecules" in out
    references = len(Chem.SDMolSupplier("data.sdf"))
    assert f"3 molecules, {references} conformers" in out
    assert out.splitlines()[1].split()[-1] == "0", "none has failed: nobody was asked for more"
    write_sdf(Path("other.sdf"), ["CCN"])
    code, _, err = run("evaluate", "data.sdf", "--generated", "other.sdf")
    assert code == 2
    assert "none of the reference molecules" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sample", "C1CC"), "cannot be read"),
        (("sample", "missing.smi"), "does not exist"),
        (("sample", "CCO", "-n", "0"), "num_confs is 0"),
        (("sample", "CCO", "--steps", "0"), "steps is 0"),
        (("sample", "CCO", "--relax", "-1"), "--relax is -1"),
        (("sample", "CCO", "-o", "out.xyz"), "must end in .sdf"),
        (("sample", "CCO", "-o", "nowhere/out.sdf"), "folder nowhere"),
        (("sample", "CCO", "--picture", "a.gif"), "must end in .png"),
        (("sample", "CCO", "--device", "cuda:99"), "device 'cuda:99' cannot be used here"),
        (("sample", "CCO", "-c", "bad.safetensors"), "cannot be read"),
        (("sample", "CS"), "element S"),
        (("sample", ""), "give a file of molecules or a SMILES"),
        (("sample", "nothere"), "there is no file of that name"),
        (("sample", "data.sdf", "-o", "data.sdf"), "is the file that is read"),
        (("sample", "data.sdf", "-o", "run/../data.sdf"), "is the file that is read"),
        (("evaluate", "data.sdf", "--generated", "data.sdf", "--steps", "2"), "leave out --checkpoint"),
        (("evaluate", "data.sdf", "--delta", "0"), "--delta"),
        (("evaluate", "data.sdf", "--limit", "0"), "--limit"),
        (("train", "data.sdf", "--steps", "0"), "steps"),
        (("train", "data.sdf", "--width", "30"), "30"),
        (("train", "--allow-pickle"), "name one"),
        (("train", "data.pkl"), "allow-pickle"),
        (("reflow", "missing.safetensors"), "does not exist"),
        (("reflow", "run/base.safetensors", "--pairs", "0"), "pairs is 0"),
    ],
)
def test_bad_input_is_one_line_before_any_file(run, base, arguments, message):
    Path("bad.safetensors").write_bytes(b"nothing")
    Path("data.pkl").write_bytes(b"")
    before = sorted(Path().rglob("*"))
    if arguments[0] in ("sample", "evaluate") and "-c" not in arguments:
        arguments = (*arguments, "-c", base)
    code, out, err = run(*arguments)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) <= 3, "one line, wrapped"
    assert "Traceback" not in err
    assert out == ""
    assert sorted(Path().rglob("*")) == before


def test_bad_molecules_are_skipped_on_request(run, base):
    Path("mols.smi").write_text("CCO\nC1CC\nCS\n")
    code, _, err = run("sample", "mols.smi", "-c", base, "--steps", "1", "-o", "a.sdf")
    assert code == 2
    assert "line 2" in err
    assert not Path("a.sdf").exists()
    code, out, err = run("sample", "mols.smi", "-c", base, "--steps", "1", "-o", "a.sdf", "--skip-bad")
    assert code == 0
    assert err.count("left out") == 2
    assert "10 conformers of 1 molecule" in out


def test_a_run_refuses_other_data_and_its_own_teacher(run, base):
    write_sdf(Path("other.sdf"), ["CCCN", "CC(C)=N", "C[C@H](Cl)CO"])
    before = base.read_bytes()
    code, _, err = run("train", "other.sdf", "--out", "run", "--steps", "3", *TINY)
    assert code == 2
    assert "other settings (data: " in err
    assert base.read_bytes() == before
    options = ("--pairs", "1", "--teacher-steps", "1", "--steps", "1", "--batch-size", "2", "--out", "run")
    Path("mols.smi").write_text("CCCO\nCC=O\n")
    assert run("reflow", base, "mols.smi", *options)[0] == 0
    before = Path("run/reflow.safetensors").read_bytes()
    code, _, err = run("reflow", "run/reflow.safetensors", "mols.smi", *options)
    assert code == 2
    assert "would be overwritten" in err
    assert Path("run/reflow.safetensors").read_bytes() == before


def test_ctrl_c_keeps_the_molecules_that_are_done(run, base, monkeypatch):
    monkeypatch.setattr(generator, "BLOCK", 2)
    Path("mols.smi").write_text("CCO\nCCC\nCCN\n".replace("N", "F"))
    arguments = ("sample", "mols.smi", "-c", base, "--steps", "1", "-n", "2", "-o", "a.sdf")
    assert run(*arguments)[0] == 0
    whole = Path("a.sdf").read_text()
    integrate, calls = generator.ConformerGenerator._integrate, []

    def interrupted(*given):
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return integrate(*given)

    monkeypatch.setattr(generator.ConformerGenerator, "_integrate", interrupted)
    code, out, err = run(*arguments)
    assert code == 130
    assert "a.sdf holds 2 of 3 molecules" in err
    assert "4 conformers of 2 molecules" in out
    assert whole.startswith(Path("a.sdf").read_text())
    assert whole.count("$$$$") == 6


def test_a_molecule_that_comes_again_gets_other_conformers(run, base):
    Path("mols.smi").write_text("CCO first\nCCO second\n")
    code, _, err = run("sample", "mols.smi", "-c", base, "--steps", "1", "-n", "1", "-o", "a.sdf")
    assert code == 0
    assert "note: 1 of 2 molecules are there before" in err
    first, second = (mol.GetConformer().GetPositions() for mol in Chem.SDMolSupplier("a.sdf", removeHs=False))
    assert np.abs(first - second).max() > 0.1


def test_relaxed_conformers_of_the_wrong_kind_are_failures(run, base, monkeypatch):
    from hexad.science_ml.avgflow import metrics

    relax = metrics.relax

    def losing(mol, iterations):
        relaxed, energies = relax(mol, iterations)
        relaxed.RemoveConformer(1)
        return relaxed, np.delete(energies, 1)

    monkeypatch.setattr(metrics, "relax", losing)
    arguments = ("CCCO", "-c", base, "--steps", "1", "-n", "3", "-o", "a.sdf", "--relax", "5", "--json")
    code, out, err = run("sample", *arguments)
    assert code == 0
    assert json.loads(out)["molecules"][0]["ids"] == [0, -1, 1]
    assert "1 conformers failed" in err
    written = list(Chem.SDMolSupplier("a.sdf", removeHs=False))
    assert [mol.GetIntProp("conformer") for mol in written] == [0, 1]
