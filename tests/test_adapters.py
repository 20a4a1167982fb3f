"""The blocks of nbs/tutorials/other_libraries.ipynb, each with the library it is about, where that is installed."""
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parent.parent / "nbs/tutorials/other_libraries.ipynb"
LIBRARIES = {"LightGBM": "lightgbm", "pytorch-metric-learning": "pytorch_metric_learning", "sentence-transformers": "sentence_transformers", "TensorFlow": "tensorflow"}


def blocks():
    "Heading -> the Python of its section."
    cells = [c for c in json.loads(PAGE.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "markdown"]
    found = {}
    for cell in cells:
        text = "".join(cell["source"])
        if code := re.search(r"```python\n(.*?)```", text, re.S): found[text.split("\n")[0].removeprefix("## ").split(":")[0]] = code[1]
    return found


def test_each_library_has_its_block_with_an_assertion():
    assert blocks().keys() == LIBRARIES.keys()
    for code in blocks().values():
        compile(code, PAGE.name, "exec")
        assert "from softsortlib" in code and "assert " in code


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_block_runs_and_its_assertion_holds(library):
    if importlib.util.find_spec(LIBRARIES[library]) is None: pytest.skip(f"{library} is not installed")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", blocks()[library]], capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}, timeout=300)
    assert done.returncode == 0, done.stderr[-1000:]
