"""What a newcomer meets first: importing, the scripts, the files that README names."""

import re
import subprocess
import sys
from pathlib import Path

from conftest import assert_one_line

import minicl

ROOT = Path(__file__).parent.parent


def test_import_is_quick_and_loads_nothing_heavy():
    code = "import sys, minicl; print([m for m in ('torch', 'numpy', 'matplotlib') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_public_names_resolve():
    for name in minicl.__all__:
        assert getattr(minicl, name) is not None
    assert "nonsense" not in dir(minicl) and not hasattr(minicl, "nonsense")


def test_plot_script_reads_what_the_audit_prints(cli, tmp_path):
    (tmp_path / "a.json").write_text(cli("audit", "--mask", "invicl", "--layers", 1, "--json").stdout)
    script = [sys.executable, str(ROOT / "plots" / "masks.py")]
    subprocess.run([*script, "a.json", "-o", "m.pdf"], cwd=tmp_path, check=True)
    assert (tmp_path / "m.pdf").read_bytes().startswith(b"%PDF")
    (tmp_path / "bad.json").write_text("{")
    bad = subprocess.run([*script, "bad.json", "-o", "m.pdf"], cwd=tmp_path, capture_output=True, text=True)
    assert bad.returncode == 2 and "bad.json: cannot be read as JSON" in bad.stderr
    for other in ("[]", "3", '[{"a": 1}]'):
        (tmp_path / "bad.json").write_text(other)
        bad = subprocess.run([*script, "bad.json", "-o", "m.pdf"], cwd=tmp_path, capture_output=True, text=True)
        assert bad.returncode == 2 and len(bad.stderr.splitlines()) == 1 and "bad.json" in bad.stderr


def test_output_that_cannot_be_written():
    minicl = [sys.executable, "-m", "minicl", "audit", "--mask", "prefix", "--layers", "1"]
    with open("/dev/full", "w") as full:
        result = subprocess.run(minicl, stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1
    ascii_only = subprocess.run(minicl, capture_output=True, text=True, env={"PYTHONIOENCODING": "ascii"})
    assert ascii_only.returncode == 0 and "y1 ? x1" in ascii_only.stdout
    closed = subprocess.run(f"{' '.join(minicl)} --json | head -c 1", shell=True, capture_output=True, text=True)
    assert closed.stderr == ""


def test_help_versions_and_slips(cli):
    bare = cli()
    assert bare.returncode == 0 and "commands:" in bare.stdout and "evaluate" in bare.stdout
    assert cli("--version").stdout.strip() == f"minicl {minicl.__version__}"
    slip = cli("evalaute", "runs/a")
    assert_one_line(slip, "'evalaute' (did you mean evaluate?)", "train, evaluate, audit")
    assert_one_line(cli("train", "--step", "30"), "--step", "did you mean --steps?")
    assert subprocess.run([sys.executable, "-m", "minicl"], capture_output=True, text=True).stdout == bare.stdout


def test_one_version():
    """setup.py reads the package's, and the newest entry of the change log is that one."""
    assert (
        "__version__" in (ROOT / "setup.py").read_text() and minicl.__version__ not in (ROOT / "setup.py").read_text()
    )
    newest = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)[1]
    assert newest == minicl.__version__


def test_a_script_beside_the_clone_imports_the_package(tmp_path):
    """A clone is a folder named minicl that is no package. An import there must not stop at that folder."""
    (tmp_path / "minicl" / "tests").mkdir(parents=True)
    (tmp_path / "script.py").write_text("import minicl; print(minicl.__version__)")
    found = subprocess.check_output([sys.executable, "script.py"], cwd=tmp_path, text=True)
    assert found.strip() == minicl.__version__
