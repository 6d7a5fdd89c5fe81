"""The notebook runs from top to bottom, with its asserts; and so do the solutions of its exercises."""

import os
import re
from pathlib import Path

import pytest

nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
ROOT = Path(__file__).parent.parent
FILE = ROOT / "notebooks" / "lab.ipynb"


@pytest.fixture
def notebook():
    return nbformat.read(FILE, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def solutions(notebook):
    hidden = re.findall(r"<details>.*?</details>", "\n".join(c.source for c in notebook.cells), re.S)
    return [re.search(r"```python\n(.*?)```", text, re.S)[1] for text in hidden]


def test_the_notebook_and_its_solutions_run(notebook, monkeypatch, tmp_path):
    monkeypatch.setenv("MINICL_LAB_STEPS", "12")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    assert len(solutions(notebook)) == 5
    notebook.cells += [nbformat.v4.new_code_cell(code) for code in solutions(notebook)]
    for cell in code_cells(notebook):
        cell.outputs = []
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    pictures = [o for c in code_cells(notebook) for o in c.outputs if "image/png" in o.get("data", {})]
    assert len(pictures) == 8
    assert os.listdir(tmp_path), "the runs were trained there"


def test_the_notebook_is_committed_with_the_outputs_of_a_whole_run(notebook):
    cells = code_cells(notebook)
    assert len(cells) == 10
    assert [cell.execution_count for cell in cells] == list(range(1, 11)) and all(cell.outputs for cell in cells)
    kinds = {output.output_type for cell in cells for output in cell.outputs}
    assert kinds <= {"stream", "execute_result", "display_data"}, "no errors"
    text = "".join(output.get("text", "") for cell in cells for output in cell.outputs)
    assert "ready: minicl" in text and not re.search(r"/(tmp|home|root|work|usr|Users)\b|Warning", text)
    assert not [output for cell in cells for output in cell.outputs if output.get("name") == "stderr"]
    assert FILE.stat().st_size < 600_000
