"""tools/mutate.py: which mistakes it makes, that tests that notice them are seen to, and that what changes nothing is listed."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import mutations  # noqa: E402

EQUIVALENT = json.loads((ROOT / "tests/equivalent_mutations.json").read_text(encoding="utf-8"))


def made(source): return {(m.before, m.after) for m in mutations.mutations("softsortlib.toy.a", source)}


def body(line): return {after for _, after in made(f"def f(x, m, n, i):\n    {line}\n")}


@pytest.mark.parametrize("line, wrong", [
    ("return x + m", {"return x - m", "return x", "return m"}),
    ("return x * m", {"return x / m", "return x", "return m"}),
    ("return -x", {"return x"}),
    ("return x < m", {"return x <= m"}),
    ("return x.sum(-1)", {"return x.sum(-2)", "return x.sum(0)"}),
    ("return x[i]", {"return x[i - 1]"}),
    ("return x[i:n]", {"return x[i + 1:n]", "return x[i:n - 1]"}),
    ("return x.detach()", {"return x"}),
    ("return x.masked_fill(~m, 0)", {"return x", "return x.masked_fill(~m, 1)"}),
    ("return torch.where(m, x, n)", {"return x", "return n"}),
    ("return max(x, n)", {"return min(x, n)"}),
    ("return x.amax(m)", {"return x.amin(m)"}),
    ("x += m", {"x -= m"}),
    ("return 0.5 * x", {"return 0.25 * x", "return 0.75 * x", "return 0.5 / x", "return 0.5", "return x"}),
    ("return range(n)", {"return range(n - 1)"}),
    ("return 'é' if m else x", {"return 'é'", "return x"})])
def test_mistakes_of_a_line(line, wrong):
    assert body(line) == wrong


@pytest.mark.parametrize("source", [
    "def f(x: tuple[int, 2]) -> 3:\n    'not 1 + 1'\n    return x\n", "@g(1 + 1)\ndef f(x):\n    return x\n", "def f(x):\n    raise ValueError(x + 1)\n",
    "def f(x):\n    return f'{x + 1}'\n", "FEW = 24\n", "def f(x):\n    return len(x) <= FEW\n", "def _fake(x):\n    return x + 1\n", "__all__ = ['a', 1]\n"])
def test_no_mistake_where_nothing_is_computed(source):
    assert made(source) == set()


def test_every_mistake_changes_one_line_and_can_be_read():
    source = (ROOT / "softsortlib/core/spread.py").read_text(encoding="utf-8")
    lines, found = source.splitlines(), mutations.mutations("softsortlib.core.spread", source)
    assert len(found) > 100 and len({m.key for m in found}) == len(found)
    for m in found:
        assert lines[m.number - 1].strip() == m.before != m.after
        compile("\n".join([*lines[:m.number - 1], m.text, *lines[m.number:]]), m.path, "exec")


def test_the_choice_for_a_function_does_not_depend_on_other_functions(tmp_path):
    (tmp_path / "softsortlib/toy").mkdir(parents=True)
    here = tmp_path / "softsortlib/toy/a.py"
    here.write_text("def f(x):\n    return x + 1\n\ndef g(x):\n    return x * 2\n")
    before = mutations.choose(tmp_path, "toy", 2, 0)
    assert {m.where for m in before} == {"f", "g"}, "one of each function first"
    here.write_text("def e(x):\n    return x - 1\n\ndef f(x):\n    return x + 1\n\ndef g(x):\n    return x * 2\n")
    assert {m.key for m in before} < {m.key for m in mutations.choose(tmp_path, "toy", 3, 0)}


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    "A checkout of a part with plain functions and kernels, and their tests; the compiler is the library's own."
    root = tmp_path_factory.mktemp("toy")
    files = {"softsortlib/__init__.py": "", "softsortlib/engine/__init__.py": "", "softsortlib/toy/__init__.py": "", "pytest.ini": "[pytest]\nfilterwarnings = error\n",
             "softsortlib/engine/compile.py": (ROOT / "softsortlib/engine/compile.py").read_text(encoding="utf-8"),
             "softsortlib/toy/a.py": "def larger(x):\n    return max(x, x)\n\n\ndef noticed(x):\n    return -x\n\n\ndef unseen(x, y):\n    return x < y\n",
             "softsortlib/toy/b.py": "from ..engine.compile import jit\n\n\n@jit(lent=True)\ndef _inner(x):\n    return x[0]\n\n\n@jit\ndef outer(x):\n    return _inner(x)\n",
             "tests/toy/test_toy.py": "import numpy as np\nfrom softsortlib.toy import a, b\n\ndef test_a(): assert (a.larger(2), a.noticed(1), a.unseen(2, 1)) == (2, -1, False)\n"
                                      "def test_b(): assert b.outer(np.arange(1.0, 4.0)) == 1\n"}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def run(root, *words):
    env = {**os.environ, "TMPDIR": str(root), "PYTHONPATH": ""}
    return subprocess.run([sys.executable, ROOT / "tools/mutate.py", "--root", root, "--parts", "toy", *words], capture_output=True, text=True, env=env, timeout=300)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the tool forks")
def test_a_mistake_is_noticed_and_one_that_changes_nothing_is_listed(toy):
    before = {p: p.read_bytes() for p in toy.rglob("*.py")}
    first = run(toy)
    assert first.returncode == 1 and not first.stderr, first.stdout + first.stderr
    listed = first.stdout.partition("not noticed by any test\n")[2]
    assert "return max(x, x)\n    return min(x, x)" in listed and "return x < y\n    return x <= y" in listed and "-x" not in listed
    verdicts = {one["key"]: one for one in map(json.loads, (toy / ".cache/mutations.jsonl").read_text().splitlines())}
    noticed = {key for key, one in verdicts.items() if one["noticed"]}
    assert "toy.a.noticed: return -x -> return x" in noticed
    assert "toy.b._inner: return x[0] -> return x[1]" in noticed, "the compiled caller was kept from before the mistake"
    assert {p: p.read_bytes() for p in before} == before, "the checkout was written to"

    (toy / "tests/equivalent_mutations.json").write_text(json.dumps({"toy.a.larger: return max(x, x) -> return min(x, x)": "both are x"}))
    with open(toy / "tests/toy/test_toy.py", "a") as f: f.write("def test_unseen(): assert not a.unseen(1, 1)\n")
    again = run(toy, "--again")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "4 mistakes, 1 to try" in again.stdout and "1 change nothing, 0 not noticed" in again.stdout


def test_sentences_are_about_mistakes_that_can_still_be_made():
    for key, why in EQUIVALENT.items():
        module = "softsortlib." + key.split(": ")[0]
        path = next(p for k in range(1, module.count(".") + 1) if (p := ROOT / (module.rsplit(".", k)[0].replace(".", "/") + ".py")).exists())
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        assert key in {m.key for m in mutations.mutations(name, path.read_text(encoding="utf-8"))}, f"no longer there: {key}"
        assert len(why.split()) >= 4 and why.endswith("."), key
