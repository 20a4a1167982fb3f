"""What prose and tables say about the code: the snippets run, the arguments exist, and the defaults are those of the signatures."""
import ast
import inspect
import json
import re
from pathlib import Path

import pytest
import torch

import softsortlib
from softsortlib import SoftSort, SortingNetwork, calibrate_tau
from softsortlib.core import SoftPermutation

NBS = Path(__file__).resolve().parent.parent / "nbs"
RUN = ("index.ipynb", "tour.ipynb", "howto.ipynb", "choosing.ipynb", "notation.ipynb", *sorted(p.relative_to(NBS).as_posix() for p in NBS.glob("*/index.ipynb")))


def prose(notebook):
    "The text of a notebook as its reader sees it, without blocks of code, a paragraph or a row of a table at a time"
    for cell in json.loads((NBS / notebook).read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "markdown": continue
        text = re.sub(r"^(```|~~~).*?^\1", "", "".join(cell["source"]), flags=re.S | re.M)
        for paragraph in re.split(r"\n\s*\n|\n(?=\s*[-|])", text): yield " ".join(paragraph.split())


def snippets(notebook):
    for paragraph in prose(notebook): yield from re.findall(r"(?<!`)`([^`]+)`(?!`)", paragraph)


def public():
    "Every public name of the library and what it names"
    import pkgutil
    import importlib
    found = {}
    for module in pkgutil.walk_packages(softsortlib.__path__, "softsortlib."):
        if module.name.endswith("__main__") or "triton" in module.name: continue
        try: loaded = importlib.import_module(module.name)
        except ImportError: continue
        for name in getattr(loaded, "__all__", ()): found.setdefault(name, getattr(loaded, name))
    return found


PUBLIC = public()
KINDS = [kind for kind in PUBLIC.values() if isinstance(kind, type) and issubclass(kind, SoftPermutation)]
NOTEBOOKS = sorted(p.relative_to(NBS).as_posix() for p in NBS.rglob("*.ipynb") if not any(part[0] in "._" for part in p.relative_to(NBS).parts))


def expression(snippet):
    "A snippet as Python, or None where it is a formula, a name, a shape or a command"
    try: tree = ast.parse(snippet.strip(), mode="eval")
    except SyntaxError: return None
    return tree if any(isinstance(n, (ast.Call, ast.MatMult)) for n in ast.walk(tree)) else None


def wrong_calls(snippet):
    "What a snippet gives to our functions that they do not take, and what it asks of a soft permutation that it does not have"
    tree = expression(snippet)
    for node in ast.walk(tree) if tree and "regularization_strength" not in snippet else ():      # which is torchsort's
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "P" and not any(hasattr(kind, node.attr) for kind in KINDS): yield f"P.{node.attr}"
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in PUBLIC: continue
        args = [a for a in node.args if not isinstance(a, (ast.Starred, ast.Constant)) or isinstance(a, ast.Constant) and a.value is not ...]
        try: inspect.signature(PUBLIC[node.func.id]).bind_partial(*args, **{k.arg: k for k in node.keywords if k.arg})
        except TypeError as e: yield f"{node.func.id}: {e}"


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_calls_in_prose_fit_the_signatures(notebook):
    assert not [f"`{snippet}`: {wrong}" for snippet in snippets(notebook) for wrong in wrong_calls(snippet)]


def test_a_call_that_does_not_fit_is_found():
    assert not list(wrong_calls('soft_rank(x, method="laplace")')) and not list(wrong_calls("P.mT @ y")) and not list(wrong_calls("SoftSort(...)"))
    assert list(wrong_calls("soft_rank(x, strength=1)")) and list(wrong_calls("P.argmax()")) and list(wrong_calls("SoftSort(0.1, 1, None, False, None, 'softmax', 7)"))
    assert expression("(..., n)") is None and expression("tau") is None and expression("make test") is None


def example():
    "What the letters of a snippet stand for where it runs"
    x = torch.tensor([0.3, 2.0, -1.0, 0.9])
    return {**PUBLIC, "torch": torch, "x": x, "s": torch.tensor([0.1, 0.4, 0.3, 0.8]), "scores": x, "r": x, "q": 0.25, "k": 2, "n": 4, "y": torch.tensor([1.0, 0.0, 2.0, 3.0]), "relevance": torch.tensor([1.0, 0.0, 2.0, 3.0]),
            "mask": torch.tensor([True, True, True, False]), "tau": 0.5, "P": SoftSort(0.5)(x), "t": 0.5, "arange": lambda n: torch.arange(float(n)), "positions": torch.arange(1.0, 5.0), "order": x.argsort(), "target": torch.tensor([1, 0, 2, 1]), "b": 4.0, "h": 2, "p": 2.0, "K": 2, "M": 5, "u": 0.5, "ste": True, "logits": torch.eye(4), "argsort": lambda x=torch.tensor([0.3, 2.0, -1.0, 0.9]), **how: torch.argsort(x, **how),
            "straight_through": SoftSort(0.5)(x).straight_through, "τ": 0.5, "α": 0.5, "β": 4.0, "ε": 0.1, "λ": 0.25, "σ": 0.5, "μ": 1.0, "τ_d": 0.5, "τ_w": 0.5}


# other libraries' calls, which stand beside ours, and what a snippet leaves open
LEFT = re.compile(r"\.\.\.|torchsort\.|softtorch\.|DiffSortNet|torch\.onnx|regularization_strength")


@pytest.mark.parametrize("notebook", RUN)
def test_snippets_of_prose_run(notebook):
    failed = []
    for snippet in snippets(notebook):
        if not expression(snippet) or LEFT.search(snippet): continue
        names = example() | ({"s": 0.5} if notebook == "howto.ipynb" else {})      # the strength, beside torchsort's
        try: eval(snippet, names)
        except Exception as e: failed.append(f"`{snippet}`: {type(e).__name__}: {e}")
    assert not failed, "\n".join(failed)


def test_the_table_of_the_home_page_does_what_it_says():
    x = torch.tensor([0.3, 2.0, -1.0, 0.9])
    said = " ".join(snippets("index.ipynb"))
    assert "P[..., -k:, :] @ x" in said
    largest = eval("P[..., -k:, :] @ x", {"P": SoftSort(1e-3)(x), "k": 2, "x": x})
    torch.testing.assert_close(largest, x.topk(2).values.flip(0))
    torch.testing.assert_close(softsortlib.soft_topk(x, 2, tau=1e-3)[0], x.topk(2).values)
    torch.testing.assert_close(softsortlib.soft_median(x, tau=1e-3), x.quantile(0.5))


def default(f, name): return inspect.signature(f).parameters[name].default


# (page, the sentence, which default it states)
STATED = [
    ("functional/01_temperature.ipynb", r"take the default, (\d\.\d)", default(calibrate_tau, "sharpness")),
    ("choosing.ipynb", r"the default, ([\d.]+), keeps sorted values", default(calibrate_tau, "sharpness")),
    ("tour.ipynb", r"At ([\d.]+), the default, a row", default(calibrate_tau, "sharpness")),
    ("rowwise/01_softsort.ipynb", r"at ([\d.]+), its default, values are close", default(calibrate_tau, "sharpness")),
    ("rowwise/01_softsort.ipynb", r"The default is \$p = (\d)\$", default(SoftSort, "power")),
    ("rowwise/02_neuralsort.ipynb", r"`descending=True`; the default sorts (upwards)", {False: "upwards", True: "downwards"}[default(softsortlib.NeuralSort, "descending")]),
    ("ranks/05_permutahedron.ipynb", r'The square is `regularization="(\w+)"`, the default', default(PUBLIC["Permutahedron"], "regularization")),
    ("networks/03_operator.ipynb", r"The default is the (\w+) sigmoid", default(SortingNetwork, "sigmoid").capitalize()),
    ("sampling/02_perturbed.ipynb", r'the default here is `noise="(\w+)"`', default(PUBLIC["Perturbed"], "noise")),
    ("functional/02_functions.ipynb", r"Why (SoftSort) by default", type(softsortlib.get_operator(default(softsortlib.soft_rank, "method"))).__name__),
    ("choosing.ipynb", r"Without `method`, `soft_rank` uses (SoftSort)", type(softsortlib.get_operator(default(softsortlib.soft_rank, "method"))).__name__),
]


@pytest.mark.parametrize("notebook, sentence, value", STATED)
def test_a_stated_default_is_that_of_the_signature(notebook, sentence, value):
    [said] = re.findall(sentence, " ".join(prose(notebook)))
    assert said == str(value) or float(said) == value


# sentences about defaults of others, or about no number
NOT_OURS = ("POT's default", "else [our defaults]", "are [the defaults]", "the defaults have no gradient", "with other defaults", "serves by default", "sorts as torch does", "and their defaults, are recorded", "no default can be right")


def test_every_sentence_that_states_a_default_is_checked():
    for notebook in NOTEBOOKS:
        if notebook.startswith("api"): continue
        for paragraph in prose(notebook):
            for sentence in re.split(r"(?<=[.:|])\s", paragraph):
                if re.search(r"\bdefaults?\b", sentence) and re.search(r"`|\d", sentence) and not any(others in sentence for others in NOT_OURS):
                    assert any(page == notebook and re.search(said, paragraph) for page, said, _ in STATED), f"{notebook}: {sentence}"


def test_most_operators_have_the_same_default():
    operators = [f for f in (getattr(softsortlib, name) for name in softsortlib.__all__) if isinstance(f, type) and "tau" in inspect.signature(f).parameters]
    assert len(operators) > 8 and sum(default(f, "tau") is None for f in operators) > len(operators) / 2
