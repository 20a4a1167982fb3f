"""The playground page: its numbers against the package, and what hands can do with it, in a browser.

The page is put together here from its sources under nbs/, so that no built site is needed, and opened as a file.
"""
import json
import math
import random
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
import torch

from softsortlib import LapSum, LaplaceRank, NeuralSort, Permutahedron, SinkhornSort, SoftSort, SortingNetwork, soft_rank, soft_sort

ROOT = Path(__file__).resolve().parent.parent
NBS, BUILT = ROOT / "nbs", ROOT / "_docs" / "playground.html"
sys.path.insert(0, str(ROOT / "tools"))
import check_site  # noqa: E402

CHROMIUM = check_site.chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium")

START = [1.2, -0.4, 2.1, 0.5, -1.7]
TAU = float(SoftSort()._temperature(torch.tensor(START, dtype=torch.float64), None))     # what the page begins with
OPERATORS = {
    "softsort": lambda tau, descending, sigmoid: SoftSort(tau, descending=descending),
    "softsort2": lambda tau, descending, sigmoid: SoftSort(tau, power=2, descending=descending),
    "neuralsort": lambda tau, descending, sigmoid: NeuralSort(tau, descending=descending),
    "lapsum": lambda tau, descending, sigmoid: LapSum(tau, descending=descending),
    "sinkhorn": lambda tau, descending, sigmoid: SinkhornSort(tau, squash="linear", descending=descending),
    "odd_even": lambda tau, descending, sigmoid: SortingNetwork("odd_even", sigmoid, tau=tau, descending=descending),
    "bitonic": lambda tau, descending, sigmoid: SortingNetwork("bitonic", sigmoid, tau=tau, descending=descending),
}
SIGMOIDS = ["cauchy", "logistic", "gaussian", "reciprocal", "optimal"]


def assembled():
    "The page of nbs/playground.qmd without the site around it: raw HTML as it is, fenced divs as divs, the rest as paragraphs"
    text = (NBS / "playground.qmd").read_text(encoding="utf-8").split("---\n", 2)[2]
    out = []
    for k, part in enumerate(re.split(r"```\{=html\}\n(.*?)```\n", text, flags=re.S)):
        if k % 2: out.append(part); continue
        for line in part.splitlines():
            opening = re.fullmatch(r"::: \{#([\w-]+) \.([\w-]+)\}", line)
            out.append(f'<div id="{opening[1]}" class="{opening[2]}">' if opening else "</div>" if line == ":::" else line)
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Playground</title><link rel="icon" href="data:,"><link rel="stylesheet" href="styles.css">'
    return f'{head}<style>body {{ margin: 0 16px; font: 16px sans-serif }} *, ::before {{ box-sizing: border-box }}</style><body><main class="content"><h1>Playground</h1>{"".join(x + chr(10) for x in out)}</main>'


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("playground")
    for name in ("operators.js", "playground.js", "playground.css", "styles.css"): shutil.copy(NBS / name, folder / name)
    (folder / "index.html").write_text(assembled(), encoding="utf-8")
    return (folder / "index.html").as_uri()


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with playwright.sync_playwright() as p:
        running = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def pages(browser):
    "What a browser with some options has open, [(page, what went wrong there)]: pages are used again by the next test"
    return {}


@pytest.fixture
def visit(browser, address, pages):
    "A function that opens the page; at the end, that nothing went wrong on it unseen"
    in_use = []
    def open_page(hash="", where=None, width=1280, height=1100, **options):
        free = pages.setdefault(json.dumps(options), [])
        if len(free) == sum(kind == json.dumps(options) for kind, *_ in in_use):
            tab, wrong = browser.new_context(**{"reduced_motion": "reduce", **options}).new_page(), []
            tab.set_default_timeout(60000)       # a slow machine is no fault of the page
            tab.on("console", lambda m: wrong.append(f"console: {m.text}") if m.type in ("error", "warning") else None)
            tab.on("pageerror", lambda e: wrong.append(f"script error: {e}"))
            tab.on("request", lambda r: None if r.url.startswith(("file:", "data:", "about:")) else wrong.append(f"asks another host: {r.url}"))
            tab.on("requestfailed", lambda r: wrong.append(f"did not load: {r.url}"))
            free.append((tab, wrong))
        tab, wrong = free[sum(kind == json.dumps(options) for kind, *_ in in_use)]
        in_use.append((json.dumps(options), wrong))
        tab.set_viewport_size({"width": width, "height": height})
        tab.goto("about:blank")
        wrong.clear()
        tab.goto((where or address) + hash)
        return tab
    yield open_page
    problems = [w for _, wrong in in_use for w in wrong]
    assert not problems, "\n".join(problems)


def state(tab): return tab.evaluate("playground.state()")
def message(tab): return tab.locator("#pg-message").inner_text()
def handle(tab, j): return tab.locator(".pg-handle").nth(j)
def cell(tab, i, j): return tab.locator(f'.pg-cell[data-i="{i}"][data-j="{j}"]')
def middle(tab, j): return (lambda b: (b["x"] + b["width"] / 2, b["y"] + b["height"] / 2))(handle(tab, j).locator(".pg-dot").bounding_box())
def link(s, **rest): return "#s=" + ",".join(map(str, s)) + "".join(f"&{k}={v}" for k, v in rest.items())


# ------------------------------------------------------------------ the numbers

def draw_case(rng, operator):
    "Scores of any number and spread, some of them equal; tau over many decades"
    n, spread = rng.randint(2, 12), rng.choice([0.3, 1, 10])
    s = [round(rng.gauss(0, spread), rng.choice([0, 2, 3])) + 0.0 for _ in range(n)]
    low, high = (-3.5, 2) if operator == "sinkhorn" else (-5, 5)
    return dict(operator=operator, s=s, tau=10 ** rng.uniform(low, high), descending=rng.random() < 0.5, sigmoid=rng.choice(SIGMOIDS))


def compare(case, found, entries, weights):
    "Every number of a state that the page computed against the package"
    s = torch.tensor(case["s"], dtype=torch.float64, requires_grad=True)
    operator = OPERATORS[case["operator"]](case["tau"], case["descending"], case["sigmoid"])
    P = operator(s)
    D = P.to_dense()
    def near(name, a, b):
        b = b.detach().double()
        a = torch.tensor(a, dtype=torch.float64)
        scale = max(1.0, b.abs().max().item())
        assert a.shape == b.shape and ((a - b).abs() <= 1e-6 * scale).all(), f"{name} of {case}: {a.tolist()} on the page, {b.tolist()} in Python"
    near("matrix", found["P"], D)
    near("sorted values", found["sorted"], P @ s)
    near("ranks", found["ranks"], soft_rank(s, descending=case["descending"], method=operator))
    near("column sums", found["columnSums"], D.sum(0))
    for (i, j), g in zip(entries, found["gradients"]): near(f"gradient of P[{i}, {j}]", g, torch.autograd.grad(D[i, j], s, retain_graph=True)[0])
    near("weighted gradient", found["mixed"], torch.autograd.grad((D * torch.tensor(weights, dtype=torch.float64)).sum(), s)[0])


@pytest.mark.parametrize("operator", OPERATORS)
def test_numbers_are_those_of_the_package(visit, operator):
    rng = random.Random(f"numbers of {operator}")
    cases = [draw_case(rng, operator) for _ in range(40)]
    for case in cases: case |= dict(entries=[[rng.randrange(len(case["s"])) for _ in "ij"] for _ in range(3)], weights=[[rng.gauss(0, 1) for _ in case["s"]] for _ in case["s"]])
    assert {len(c["s"]) for c in cases} >= {2, 12} and {c["descending"] for c in cases} == {True, False} and any(len({*c["s"]}) < len(c["s"]) for c in cases)
    found = visit().evaluate("""cases => cases.map(c => {
        const r = softOperators.evaluate(c.operator, c.s, c.tau, {descending: c.descending, sigmoid: c.sigmoid});
        const mixed = c.s.map(() => 0);
        c.weights.forEach((row, i) => row.forEach((w, j) => r.gradient(i, j).forEach((g, k) => { mixed[k] += w * g; })));
        return {...r, gradients: c.entries.map(([i, j]) => r.gradient(i, j)), mixed}; })""", cases)
    for case, one in zip(cases, found, strict=True): compare(case, one, case["entries"], case["weights"])


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_loss_of_an_order_is_that_of_the_package(visit, operator):
    s, order = [0.3, -0.2, 0.9, 0.5], [2, 0, 3, 1]
    found = visit().evaluate("([op, s, order]) => softOperators.orderLoss(softOperators.evaluate(op, s, .3), order)", [operator, s, order])
    x = torch.tensor(s, dtype=torch.float64, requires_grad=True)
    loss = -OPERATORS[operator](0.3, False, "cauchy")(x).log_prob(torch.tensor(order)).mean()
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert found["slope"] == pytest.approx(torch.autograd.grad(loss, x)[0].tolist(), rel=1e-4, abs=1e-6)


def test_ranks_without_a_matrix_are_those_of_the_package(visit):
    rng, cases = random.Random("ranks without a matrix"), []
    for _ in range(40):
        case = draw_case(rng, "softsort")
        padded = sorted(rng.sample(range(len(case["s"])), rng.randint(0, len(case["s"]) - 2)))
        cases.append([case["s"], 10 ** rng.uniform(-3, 3), case["descending"], padded])
    found = visit().evaluate("""cases => cases.map(([s, tau, descending, padded]) => ["permutahedron", "laplace"].map(name => softOperators.answers(name, s, tau, {descending}, padded)))""", cases)
    for (s, tau, descending, padded), (flat, laplace) in zip(cases, found, strict=True):
        x, mask = torch.tensor(s, dtype=torch.float64), torch.tensor([j not in padded for j in range(len(s))])
        for one, method in ((flat, Permutahedron(tau)), (laplace, LaplaceRank(tau))):
            torch.testing.assert_close(torch.tensor(one["ranks"], dtype=torch.float64), soft_rank(x, descending=descending, method=method, mask=mask), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(torch.tensor(flat["sorted"], dtype=torch.float64), soft_sort(x, descending=descending, method=Permutahedron(tau), mask=mask), rtol=1e-9, atol=1e-9)
        assert laplace["sorted"] is None


@pytest.mark.parametrize("operator", OPERATORS)
def test_padding_is_that_of_the_package(visit, operator):
    s, padded, tau = [0.3, -0.2, 0.9, 0.5, -1.1], [1, 3], 0.02 if operator == "sinkhorn" else 0.4
    found = visit().evaluate("([op, s, tau, padded]) => { const r = softOperators.evaluatePadded(op, s, tau, {sigmoid: 'cauchy'}, padded); return {...r, gradient: r.gradient(1, 2)}; }", [operator, s, tau, padded])
    x, mask = torch.tensor(s, dtype=torch.float64, requires_grad=True), torch.tensor([j not in padded for j in range(5)])
    P = OPERATORS[operator](tau, False, "cauchy")(x, mask)
    expected = dict(P=P.to_dense(), sorted=P @ x, ranks=soft_rank(x, method=OPERATORS[operator](tau, False, "cauchy"), mask=mask), gradient=torch.autograd.grad(P.to_dense()[1, 2], x)[0])
    for name, value in expected.items(): torch.testing.assert_close(torch.tensor(found[name], dtype=torch.float64), value.detach(), rtol=1e-5, atol=1e-6, msg=name)


def test_networks_are_those_of_the_package(visit):
    from softsortlib.networks.comparators import bitonic_layers, odd_even_layers
    found = visit().evaluate("() => [...Array(17).keys()].slice(2).map(n => ['odd_even', 'bitonic'].map(kind => softOperators.layers(kind, n)))")
    for n, (odd_even, bitonic) in enumerate(found, 2):
        assert odd_even == [layer.tolist() for layer in odd_even_layers(n)]
        assert bitonic == [layer.tolist() for layer in bitonic_layers(n)]


def test_erfc(visit):
    x = [-7.5, -2.0, -0.3, 0.0, 1e-9, 0.5, 1.9999, 2.0, 3.3, 6.0, 26.0]
    found = visit().evaluate("x => x.map(softOperators.erfc)", x)
    assert all(math.isclose(a, math.erfc(b), rel_tol=1e-12) for a, b in zip(found, x, strict=True)), found


def test_what_cannot_be_computed_is_refused(visit):
    tab = visit()
    refused = """({s = [1, 2], tau = 1, operator = "softsort"}) => { try { softOperators.evaluate(operator, s, tau); return null; } catch (e) { return `${e.name}: ${e.message}`; } }"""
    for change, name in [("s: [1]", "scores"), ("s: [1, NaN]", "scores"), ("s: [1, Infinity]", "scores"), ("tau: 0", "tau"), ("tau: -1", "tau"), ("tau: NaN", "tau"), ('operator: "bubble"', "operator")]:
        assert tab.evaluate(f"({refused})({{{change}}})").startswith(f"RangeError: {name} must be"), change


# ------------------------------------------------------------------ what the page shows

def number(text): return float(text.replace("−", "-").translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")).replace("·10", "e"))


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_page_shows_the_numbers_of_its_python_code(visit, operator):
    rng = random.Random(f"page of {operator}")
    n, descending = rng.randint(4, 6), rng.random() < 0.5
    s = [round(rng.uniform(-3, 3), 2) for _ in range(n)]
    tau, at = (0.02 if operator == "sinkhorn" else 0.3), [rng.randrange(n), rng.randrange(n)]
    tab = visit(link(s, operator=operator, tau=tau, order="desc" if descending else "asc", sigmoid="logistic", at=f"{at[0] + 1},{at[1] + 1}"))
    assert message(tab) == "" and state(tab)["s"] == s and state(tab)["descending"] == descending
    code, names, said = tab.locator("#pg-python").inner_text().split("\n"), {}, []
    exec("\n".join(code[:-4]), names)
    matrix, values, ranks, (gradient,) = (eval(line.split("#")[0], names) for line in code[-4:])
    expected = OPERATORS[operator](tau, descending, "logistic")(torch.tensor(s, dtype=torch.float64))
    assert torch.equal(matrix, expected.to_dense())
    shown = tab.evaluate("""() => ({
        cells: [...document.querySelectorAll('.pg-matrix tbody tr')].map(r => [...r.querySelectorAll('.pg-cell')].map(c => [c.textContent, c.title.split(' = ')[1], c.getAttribute('aria-label')])),
        values: [...document.querySelectorAll('.pg-matrix tbody tr')].map(r => r.lastElementChild.textContent),
        ranks: [...document.querySelectorAll('.pg-matrix tfoot tr')[0].querySelectorAll('td')].map(c => c.textContent),
        handles: [...document.querySelectorAll('.pg-handle')].map(h => h.getAttribute('aria-valuetext')),
        gradient: document.querySelector('.pg-gradient svg').getAttribute('aria-label').split(': ')[1].split(', ').map(t => t.slice(2)),
        squares: [...document.querySelectorAll('.pg-values g')].map(g => +g.getAttribute('transform').match(/[-\\d.]+/)[0]), width: document.querySelector('.pg-line svg').viewBox.baseVal.width})""")
    for i, (row, true) in enumerate(zip(shown["cells"], matrix.tolist(), strict=True), 1):
        for j, ((text, title, label), p) in enumerate(zip(row, true, strict=True)):
            assert label == f"{text} at position {i} of score {'abcdef'[j]}" and abs(number(text) - p) < 0.00501 and math.isclose(number(title), p, rel_tol=6e-3, abs_tol=1e-12)
    assert all(abs(number(a) - b) < 0.00501 for a, b in zip(shown["values"], values.tolist(), strict=True))
    assert all(abs(number(a) - b) < 0.00501 for a, b in zip(shown["ranks"][:-1], ranks.tolist(), strict=True))
    assert all(abs(number(a.split("rank ")[1]) - b) < 0.00501 for a, b in zip(shown["handles"], ranks.tolist(), strict=True))
    assert all(math.isclose(number(a), b, rel_tol=6e-3, abs_tol=1e-9) for a, b in zip(shown["gradient"], gradient.tolist(), strict=True))
    assert all(abs(a - (24 + (b + 3) / 6 * (shown["width"] - 48))) < 0.02 for a, b in zip(shown["squares"], values.tolist(), strict=True))


def test_the_picture_without_javascript(visit):
    tab = visit(java_script_enabled=False)
    assert tab.locator(".pg-still svg").is_visible() and not tab.locator(".pg-panel").is_visible()
    assert all(tab.locator(f"#pg-{name}").is_visible() for name in ("tie", "twins", "heat", "far", "columns"))
    drawn = [float(x) for x in re.findall(r'fill-opacity="([\d.]+)"', (NBS / "playground.qmd").read_text(encoding="utf-8"))]
    true = torch.cat([SoftSort(tau)(torch.tensor(START)).to_dense().flatten() for tau in (0.05, 0.5, 5.0)])
    assert len(drawn) == 75 and torch.allclose(torch.tensor(drawn), true, atol=6e-4)


# ------------------------------------------------------------------ hands

def test_dragging_moves_everything(visit):
    tab = visit()
    x, y = middle(tab, 0)
    before = tab.evaluate("playground.result()")
    scale = (tab.locator(".pg-line svg").bounding_box()["width"] - 48) / 6
    tab.mouse.move(x + 4, y)
    tab.mouse.down()
    seen = set()
    for k in range(1, 6):
        tab.mouse.move(x + 4 - 20 * k, y + 30)                              # away from the line: the score follows the pointer's x alone
        seen.add(cell(tab, 2, 3).inner_text() + tab.locator("#pg-entry").inner_text())
        assert state(tab)["s"][0] == pytest.approx(1.2 - 20 * k / scale, abs=0.011)
    tab.mouse.up()
    assert len(seen) == 5 and tab.evaluate("playground.result()")["ranks"] != before["ranks"]
    rested = state(tab)["s"]
    tab.mouse.move(x + 100, y)
    assert state(tab)["s"] == rested and rested[1:] == START[1:]
    x, y = middle(tab, 0)
    tab.mouse.move(x, y)
    tab.mouse.down()
    tab.mouse.move(x + 5000, y)                                             # past the end of the line
    tab.mouse.up()
    assert state(tab)["s"][0] == 3


def test_dragging_by_touch(visit):
    tab = visit(width=390, height=844, has_touch=True, is_mobile=True)
    handle(tab, 1).scroll_into_view_if_needed()
    (x, y), scrolled = middle(tab, 1), tab.evaluate("scrollY")
    scale = (tab.locator(".pg-line svg").bounding_box()["width"] - 48) / 6
    touch = tab.context.new_cdp_session(tab)
    def finger(kind, *points): touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": a, "y": b} for a, b in points]})
    finger("touchStart", (x, y))
    for k in range(1, 9): finger("touchMove", (x + 5 * k, y - 12 * k))
    tab.wait_for_function("goal => Math.abs(playground.state().s[1] - goal) < 0.03", arg=-0.4 + 40 / scale)
    finger("touchEnd")
    assert tab.evaluate("scrollY") == scrolled and not tab.locator(".pg-held").count()


def test_keys_on_a_score(visit):
    tab = visit()
    tab.locator("#pg-message").evaluate("() => document.querySelectorAll('.pg-handle')[1].focus()")
    for key, value in [("ArrowRight", -0.35), ("ArrowUp", -0.3), ("ArrowLeft", -0.35), ("ArrowDown", -0.4), ("PageUp", 0.1), ("PageDown", -0.4), ("Shift+ArrowRight", 0.1), ("Home", -3), ("ArrowLeft", -3), ("End", 3)]:
        tab.keyboard.press(key)
        assert state(tab)["s"] == [1.2, value, *START[2:]], key
        assert float(handle(tab, 1).get_attribute("aria-valuenow")) == value and f"{abs(value):.2f}" in handle(tab, 1).get_attribute("aria-valuetext")
    tab.keyboard.press("Tab")
    assert handle(tab, 2).evaluate("e => e === document.activeElement")
    tab.keyboard.press("Delete")
    assert state(tab)["s"] == [1.2, 3, 0.5, -1.7] and handle(tab, 2).evaluate("e => e === document.activeElement")
    for mark in tab.locator(".pg-handle").all():
        assert mark.get_attribute("role") == "slider" and mark.get_attribute("aria-label").startswith("score ") and (mark.get_attribute("aria-valuemin"), mark.get_attribute("aria-valuemax")) == ("-3", "3")


def test_typed_scores(visit):
    tab = visit()
    box = tab.get_by_label("b", exact=True)
    for text, value, end in [("0.125", 0.125, 3), (" -2.5e-1 ", -0.25, 3), ("−1", -1, 3), ("40", 40, 50), ("-1000", -1000, 1000), ("0", 0, 3)]:
        box.fill(text)
        box.press("Enter")
        assert state(tab)["s"] == [1.2, value, *START[2:]] and message(tab) == ""
        assert box.input_value() == str(value) and handle(tab, 1).get_attribute("aria-valuemax") == str(end)


@pytest.mark.parametrize("field, texts", [("b", ["abc", "", "1,5", "NaN", "Infinity", "1e999", "1001", "1 2", "0x10"]), ("tau", ["0", "-1", "x", "", "1e9", "1e-9", "∞"])])
def test_wrong_input_is_said_and_not_taken(visit, field, texts):
    tab = visit()
    box, before = tab.get_by_label(field, exact=True), tab.evaluate("[playground.state(), playground.result()]")
    for text in texts:
        box.fill(text)
        box.press("Enter")
        assert ("tau" if field == "tau" else "score b") + " stays" in message(tab), text
        assert box.get_attribute("aria-invalid") == "true"
        assert tab.evaluate("[playground.state(), playground.result()]") == before
        assert not re.search("NaN|Infinity|undefined", tab.locator(".pg-panel").inner_html().replace(message(tab), ""))
        assert ("point instead of the comma" in message(tab)) == (text == "1,5")
    box.fill("0.7")
    box.press("Enter")
    assert message(tab) == "" and box.get_attribute("aria-invalid") is None and 0.7 in (state(tab)["tau"], state(tab)["s"][1])
    box.fill("wrong")
    tab.get_by_label("a", exact=True).focus()                              # leaving it brings the number back
    assert box.input_value() == "0.7"


def test_more_and_fewer_scores(visit):
    tab = visit()
    add, remove = tab.get_by_role("button", name="+ add"), tab.get_by_role("button", name="remove score")
    for n in range(6, 13):
        add.click()
        s = state(tab)["s"]
        assert len(s) == n == tab.locator(".pg-handle").count() == tab.locator(".pg-matrix tbody tr").count() and len({*s}) == n
        assert tab.locator(".pg-cell").count() == n * n and tab.locator(".pg-threads path").count() == n * n
    assert add.is_disabled()
    for n in range(11, 1, -1):
        last = state(tab)["s"]
        remove.nth(n // 2).click()
        assert state(tab)["s"] == last[:n // 2] + last[n // 2 + 1:] and tab.locator(".pg-cell").count() == n * n
    assert all(b.is_disabled() for b in remove.all())
    handle(tab, 0).press("Delete")
    assert len(state(tab)["s"]) == 2 and "at least 2" in message(tab)


def test_choosing_an_entry(visit):
    tab = visit()
    told = tab.locator("#pg-entry")
    cell(tab, 0, 4).click()
    assert state(tab)["at"] == [0, 4] and told.inner_text().startswith("P[1, e] = ")
    for key, at in [("ArrowDown", [1, 4]), ("ArrowRight", [1, 4]), ("ArrowLeft", [1, 3]), ("Home", [1, 0]), ("Control+End", [4, 4]), ("ArrowUp", [3, 4]), ("PageUp", [0, 4]), ("Control+Home", [0, 0])]:
        tab.keyboard.press(key)
        assert state(tab)["at"] == at, key
        chosen = tab.locator('.pg-cell[aria-selected="true"]')
        assert chosen.count() == 1 and chosen.evaluate("e => e === document.activeElement && e.tabIndex === 0") and chosen.get_attribute("aria-label").endswith(f" at position {at[0] + 1} of score {'abcde'[at[1]]}")
    assert tab.locator('.pg-cell[tabindex="0"]').count() == 1


def test_controls(visit):
    tab = visit()
    for operator, name in [("softsort2", "SoftSort (x − y)²"), ("neuralsort", "NeuralSort"), ("lapsum", "LapSum"), ("sinkhorn", "Sinkhorn"), ("odd_even", "odd-even"), ("bitonic", "bitonic"), ("softsort", "SoftSort |x − y|")]:
        tab.locator("fieldset").get_by_text(name, exact=True).click()
        assert state(tab)["operator"] == operator and tab.locator("#pg-sigmoid").is_visible() == (operator in ("odd_even", "bitonic"))
    tab.get_by_role("radio", name="ascending", exact=True).focus()
    tab.keyboard.press("ArrowRight")
    assert state(tab)["descending"] and tab.locator(".pg-matrix tbody tr").first.locator("td").last.inner_text() == f"{(SoftSort(descending=True)(torch.tensor(START)) @ torch.tensor(START))[0]:.2f}"
    tab.locator("fieldset").get_by_text("bitonic", exact=True).click()
    first = tab.evaluate("playground.result().P")
    tab.locator("#pg-sigmoid").select_option("gaussian")
    assert state(tab)["sigmoid"] == "gaussian" and tab.evaluate("playground.result().P") != first
    slider = tab.locator("#pg-slider")
    for key, tau in [("Home", 0.001), ("End", 100), ("ArrowLeft", 97.7)]:
        slider.press(key)
        assert state(tab)["tau"] == tau and tab.locator("#pg-tau").input_value() == str(tau) and slider.get_attribute("aria-valuetext") == f"tau {tau}"
    sweep = tab.get_by_role("button", name="sweep")
    sweep.click()
    tab.wait_for_function("playground.state().tau < 80")
    assert sweep.get_attribute("aria-pressed") == "true"
    sweep.click()
    stopped = state(tab)["tau"]
    tab.wait_for_timeout(80)
    assert state(tab)["tau"] == stopped and sweep.get_attribute("aria-pressed") == "false"
    tab.get_by_role("button", name="shuffle").click()
    assert len(state(tab)["s"]) == 5 and state(tab)["s"] != START


def test_the_first_k_and_padding_on_the_page(visit):
    tab = visit(link([1.0, 0.4, -0.2, -0.9], tau=0.5, order="desc"))
    assert not tab.locator(".pg-first").is_visible()
    tab.locator("#pg-k").select_option("2")
    tab.get_by_label("score b is real").uncheck()
    assert (state(tab)["k"], state(tab)["padded"], message(tab)) == (2, [1], "")
    x, mask = torch.tensor([1.0, 0.4, -0.2, -0.9]), torch.tensor([True, False, True, True])
    P = SoftSort(0.5, descending=True)(x, mask)
    shown = [float(t) for t in tab.locator(".pg-first td").all_inner_texts()[:4]]
    assert shown == pytest.approx((P[:2, :].mT @ torch.ones(2)).tolist(), abs=0.006) and "Σ 2.0" in tab.locator(".pg-first").inner_text()
    assert tab.locator(".pg-chosen").count() == 2 and handle(tab, 1).get_attribute("aria-valuetext").endswith("left out")
    code, names = tab.locator("#pg-python").inner_text(), {}
    exec(code, names)
    assert torch.allclose(names["P"].to_dense().float(), P.to_dense())
    for name in "ac":
        if tab.get_by_label(f"score {name} is real").is_enabled(): tab.get_by_label(f"score {name} is real").uncheck()
    assert len(state(tab)["padded"]) == 2                                 # two must stay
    tab.get_by_role("button", name="remove score").first.click()
    assert state(tab)["padded"] in ([0], [1]) or "real" in message(tab)


def test_another_operator_beside_it(visit):
    tab = visit()
    assert tab.locator("#pg-beside table").count() == 0
    for name, method in (("permutahedron", Permutahedron(TAU)), ("laplace", LaplaceRank(TAU)), ("neuralsort", NeuralSort(TAU))):
        tab.locator("#pg-other").select_option(name)
        rows = [[t for t in row.locator("td").all_inner_texts()] for row in tab.locator("#pg-beside table").first.locator("tbody tr").all()]
        assert [number(t) for t in rows[1]] == pytest.approx(soft_rank(torch.tensor(START), method=method).tolist(), abs=0.006)
        if name == "laplace": assert rows[3] == ["–"] * 5
        else: assert [number(t) for t in rows[3]] == pytest.approx(soft_sort(torch.tensor(START), method=method).tolist(), abs=0.006)
        assert tab.locator(".pg-small").count() == (name == "neuralsort")
    tab.locator("#pg-other-tau").fill("2")
    tab.locator("#pg-other-tau").press("Enter")
    assert state(tab)["otherTau"] == 2
    tab.wait_for_function("location.hash.includes('with=neuralsort&withtau=2')")
    assert state(visit(where=tab.url)) == state(tab)
    assert tab.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


# ------------------------------------------------------------------ the default temperature, and a list

@pytest.mark.parametrize("operator", OPERATORS)
def test_the_default_temperature_is_that_of_the_package(visit, operator):
    rng = random.Random(f"default of {operator}")
    cases = [draw_case(rng, operator) for _ in range(30)] + [dict(s=s, sigmoid="logistic") for s in ([1.0, 1.0], [2.0, 2.0, 2.0, 5.0], [1.0, 1.0, 1.0, 1.0, 0.0, 7.0])]
    found = visit().evaluate("([op, cases]) => cases.map(c => softOperators.defaultTau(op, c.s, {sigmoid: c.sigmoid}))", [operator, cases])
    for case, tau in zip(cases, found, strict=True):
        true = OPERATORS[operator](None, False, case["sigmoid"])._temperature(torch.tensor(case["s"], dtype=torch.float64), None)
        assert tau == pytest.approx(float(true), rel=1e-12), case


def test_the_default_follows_the_scores_until_a_temperature_is_set(visit):
    tab = visit()
    default = tab.get_by_role("button", name="default", exact=True)
    true = lambda: float(SoftSort()._temperature(torch.tensor(state(tab)["s"], dtype=torch.float64), None))
    assert default.get_attribute("aria-pressed") == "true" and state(tab)["tau"] == pytest.approx(true()) == pytest.approx(TAU) and tab.locator("#pg-tau").input_value() == "0.112"
    assert tab.evaluate("playground.result().P") == [pytest.approx(row, abs=1e-9) for row in SoftSort()(torch.tensor(START, dtype=torch.float64)).to_dense().tolist()]
    handle(tab, 0).press("End")
    assert state(tab)["tau"] == pytest.approx(true()) != pytest.approx(TAU) and "the package's default" in tab.locator("#pg-hint").inner_text()
    tab.get_by_role("button", name="shuffle").click()
    assert state(tab)["tau"] == pytest.approx(true())
    tab.wait_for_function("location.hash.includes('tau=auto')")
    assert state(visit(where=tab.url)) == state(tab)
    tab.locator("#pg-slider").press("Home")
    handle(tab, 1).press("Home")
    assert state(tab)["tau"] == 0.001 and default.get_attribute("aria-pressed") == "false" and "default" not in tab.locator("#pg-hint").inner_text()
    default.click()
    assert state(tab)["tau"] == pytest.approx(true())
    tab.locator("fieldset").get_by_text("Sinkhorn", exact=True).click()
    assert state(tab)["tau"] == pytest.approx(0.0025)


@pytest.mark.parametrize("text, s, said", [
    ("3, 1.5, -2", [3, 1.5, -2], ""), ("3 1.5 -2", [3, 1.5, -2], ""), ("3\n1.5\n−2\n", [3, 1.5, -2], ""), ("3;1.5;\t-2e0", [3, 1.5, -2], ""), ("tensor([3., 1.5, -2.])", [3, 1.5, -2], "not a number: “tensor”"),
    ("score\n3\n1.5\nNaN\n-2", [3, 1.5, -2], "3 scores are taken; not a number: “score”, “NaN”"), ("1 2 3000", [1, 2], "beyond 1000: “3000”"), ("a b c d 1 2", [1, 2], "“a”, “b”, “c” and 1 more"),
    (" ".join(map(str, range(30))), list(range(12)), "the first 12 of 30 numbers"), ("7", START, "The list was not taken: there must be at least 2 numbers."), ("one two", START, "not a number: “one”, “two”"),
])
def test_a_list_is_read_and_what_cannot_be_read_is_said(visit, text, s, said):
    tab = visit()
    box = tab.get_by_label("or a list")
    box.fill(text)
    box.press("Enter")
    assert state(tab)["s"] == s and said in message(tab) and bool(message(tab)) == bool(said)
    assert box.input_value() == ("" if s != START else text)
    if s != START:
        tab.wait_for_function("text => location.hash.startsWith('#s=' + text + '&')", arg=",".join(f"{x:g}" for x in s))
        assert state(visit(where=tab.url))["s"] == s


def test_pasting(visit):
    tab = visit()
    paste = """([q, text]) => { const data = new DataTransfer(); data.setData("text", text); const e = new ClipboardEvent("paste", {clipboardData: data, bubbles: true, cancelable: true}); return document.querySelector(q).dispatchEvent(e); }"""
    assert not tab.evaluate(paste, ["#pg-list", "1, x, 2"]) and state(tab)["s"] == [1, 2] and "“x”" in message(tab)
    assert not tab.evaluate(paste, ["#pg-score-0", "4\n5\n6"]) and state(tab)["s"] == [4, 5, 6] and message(tab) == ""
    for one in ("7", " 8 ", "1,5"): assert tab.evaluate(paste, ["#pg-score-0", one]) and state(tab)["s"] == [4, 5, 6]       # left to the field


# ------------------------------------------------------------------ the address

def test_a_link_shares_the_state(visit, address):
    tab = visit()
    tab.wait_for_timeout(300)
    assert "#" not in tab.url                                              # who only looks keeps the plain address
    handle(tab, 2).press("Home")
    tab.locator("fieldset").get_by_text("odd-even", exact=True).click()
    tab.get_by_text("descending", exact=True).click()
    cell(tab, 1, 2).click()
    tab.wait_for_function("location.hash.includes('at=2,3')")
    assert state(visit(where=tab.url)) == state(tab) != state(visit())
    tab.evaluate("location.hash = '#s=1,2,3&tau=7'")
    tab.wait_for_function("playground.state().tau === 7")
    assert state(tab)["s"] == [1, 2, 3] and state(tab)["operator"] == "softsort"
    tab.evaluate("location.hash = '#how-to-read-it'")
    assert state(tab)["s"] == [1, 2, 3] and message(tab) == ""


@pytest.mark.parametrize("hash", ["#s=1", "#s=1,x", "#s=", "#s=1,2&tau=0", "#s=1,2&operator=bubble", "#s=1,2&at=3,1", "#s=1,2&at=1", "#s=1,2&order=up", "#s=1,2&sigmoid=step", "#s=1,2,3&pad=4", "#s=1,2,3&pad=1,2", "#s=1,2&k=3", "#s=1,2&with=bubble", "#s=1,2&with=lapsum&withtau=0", "#s=" + ",".join("0" * 13), "#s=1,1e9", "#s=<b>,1"])
def test_a_wrong_link_is_said(visit, hash):
    tab = visit(quote(hash, safe="#=&,"))
    assert message(tab).startswith("The link is not right: ") and state(tab)["s"] == START and tab.locator("#pg-message b").count() == 0


# ------------------------------------------------------------------ the experiments keep what their texts say

def test_experiments(visit):
    tab = visit()
    def begin(name):
        tab.locator(f"[data-try={name}]").click()
        tried = tab.evaluate(f"playground.tries.{name}")
        assert {k: state(tab)[k] for k in tried} == tried and message(tab) == ""
        assert tab.locator(".pg-text:visible").evaluate_all("all => all.map(e => e.id)") == [f"pg-{name}"] and tab.locator(f"[data-try={name}]").get_attribute("aria-pressed") == "true"
        return tab.evaluate("playground.result()")
    def change(js):
        assert tab.evaluate(f"playground.set({js})") == ""
        return tab.evaluate("playground.result()")
    flat = lambda P: max(map(max, P)) - min(map(min, P))

    P = begin("tie")["P"]
    assert P[2] == P[3] and abs(P[2][1] - 0.5) < 0.01 and P[2][1] == P[2][2]
    for tau in (0.1, 1, 10):
        begin("twins")
        gap = lambda: max(abs(a - b) for p, q in zip(change(f"{{operator: 'neuralsort', tau: {tau}}}")["P"], change("{operator: 'softsort2'}")["P"], strict=True) for a, b in zip(p, q, strict=True))
        assert gap() < 1e-12
    begin("twins")
    wide = [change(f"{{s: [0, -2, 1, 2.9, -1], operator: '{op}'}}")["P"][4][3] for op in ("softsort2", "neuralsort")]
    close = [change(f"{{s: [0, -1, .5, 1, -.5], operator: '{op}'}}")["P"][4][3] for op in ("softsort2", "neuralsort")]
    assert wide[0] > wide[1] + 0.05 and close[0] < close[1] - 0.05
    hot = begin("heat")
    assert flat(hot["P"]) < 0.01 and all(abs(r - 4.5) < 0.05 for r in hot["ranks"]) and max(map(abs, hot["gradient"])) < 0.01
    assert flat(change("{operator: 'odd_even', tau: 1e6}")["P"]) > 0.2 and flat(change("{operator: 'bitonic'}")["P"]) < 1e-4
    assert flat(change("{s: playground.state().s.slice(1)}")["P"]) > 0.01
    far = begin("far")
    assert 1e-19 < abs(far["gradient"][3]) < 1e-18
    assert 5e-4 < abs(change("{operator: 'bitonic'}")["gradient"][3]) < 5e-3 and abs(change("{sigmoid: 'logistic'}")["gradient"][3]) < 1e-12
    assert begin("columns")["columnSums"][4] == pytest.approx(0.79, abs=0.005)
    assert all(abs(w - 1) < 1e-12 for w in change("{operator: 'lapsum'}")["columnSums"])
    assert all(abs(w - 1) < 1e-5 for w in change("{operator: 'sinkhorn', tau: .02}")["columnSums"]) and all(abs(w - 1) < 1e-12 for w in change("{operator: 'bitonic'}")["columnSums"])
    crowd = lambda js: max(max(row[:4]) for row in change(js)["P"][:4])
    near, far = crowd("{operator: 'sinkhorn'}"), crowd("{s: [-1.2, -1, -.8, -.6, 30]}")
    assert near > 0.55 and far == pytest.approx(near, abs=1e-6)


def test_descending_sorts_the_scores(visit):
    tab = visit(link([1.0, 0.4, -0.2, -0.9], tau=0.5))
    found = tab.evaluate("() => { const out = []; while (!playground.descend() && out.length < 300) out.push(playground.state().s); return out; }")
    assert 5 < len(found) < 250 and state(tab)["s"] == sorted(state(tab)["s"])
    assert "steps" in tab.locator("#pg-curve").inner_text()
    tab = visit(link([1.0, 0.4], tau=0.5))
    tab.get_by_role("button", name="descend").click()
    tab.wait_for_function("playground.state().s[0] < playground.state().s[1]")


def test_lines_along_tau_are_those_of_the_operator(visit):
    tab = visit()
    assert tab.locator("#pg-ranks path").count() == 0
    tab.locator(".pg-more summary").click()
    tab.wait_for_function("document.querySelectorAll('#pg-ranks path').length === 5")
    hard, soft = re.findall(r"est ([\d., ]+?)(?:, at|$)", tab.locator("#pg-ranks").get_attribute("aria-label"))
    for text, tau in ((hard, 0.001), (soft, 100.0)):
        ranks = soft_rank(torch.tensor(START), method=SoftSort(tau)).tolist()
        assert [float(r) for r in text.split(", ")] == pytest.approx(ranks, abs=0.006)


def test_on_a_phone_the_slider_and_the_matrix_are_on_one_screen(visit):
    tab = visit(width=390, height=844)
    slider, last = tab.locator("#pg-slider").bounding_box(), tab.locator(".pg-cell").last.bounding_box()
    assert last["y"] + last["height"] - slider["y"] < 760
    for box in tab.locator(".pg button:visible, .pg-operators label:visible, .pg-direction label:visible").all():
        name = box.inner_text()
        if name != "×": assert box.bounding_box()["height"] >= 36, name


def test_experiments_glide(visit):
    tab = visit(reduced_motion="no-preference")
    tab.clock.install()
    tab.reload()
    tab.clock.pause_at(tab.evaluate("Date.now()") + 60_000)                # from here on, time is what this test says
    tab.locator("[data-try=heat]").click()                                 # five scores become eight, tau rises to 100
    seen = []
    for _ in range(8):
        tab.clock.run_for(100)
        seen.append(state(tab)["tau"])
    assert TAU <= seen[0] < seen[3] < seen[6] < 100 and seen == sorted(seen) and tab.evaluate("playground.moving()")
    tab.clock.run_for(400)
    assert not tab.evaluate("playground.moving()") and {k: state(tab)[k] for k in ("s", "tau")} == {k: tab.evaluate("playground.tries.heat")[k] for k in ("s", "tau")}
    tab.clock.resume()


# ------------------------------------------------------------------ the form

@pytest.mark.parametrize("width", [390, 320, 768])
def test_nothing_overflows(visit, width):
    tab = visit(width=width, height=844)
    for n in (2, 5, 12):
        for operator in ("softsort", "odd_even"):
            assert tab.evaluate("([n, operator]) => playground.set({s: [...Array(n).keys()].map(k => -999.125 + k), operator, tau: 1e-6})", [n, operator]) == ""
            for name in ("tie", "far"):
                tab.evaluate("name => document.querySelectorAll('.pg-text').forEach(e => { e.hidden = e.id !== `pg-${name}`; })", name)
                wide, page = tab.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
                assert wide <= page, (n, operator)
                outside = tab.evaluate("() => { const r = document.querySelector('.pg').getBoundingClientRect(); return [...document.querySelectorAll('.pg-matrix *, .pg-line svg, .pg-gradient svg, .pg-handle')].filter(e => { const b = e.getBoundingClientRect(); return b.width && (b.left < r.left - 1 || b.right > r.right + 1); }).map(e => e.tagName); }")
                assert outside == []


def test_light_and_dark(visit):
    tab = visit()
    colours = lambda: tab.evaluate("() => ['.pg', '.pg-operators span', '#pg-entry b'].map(q => { const s = getComputedStyle(document.querySelector(q)); return [s.color, s.backgroundColor]; })")
    light = colours()
    tab.evaluate("document.body.classList.add('quarto-dark')")
    tab.wait_for_timeout(50)
    assert all(a != b for a, b in zip(light, colours(), strict=True))


def test_the_miniature_of_the_home_page(browser, tmp_path):
    block = next("".join(c["source"]) for c in json.loads((NBS / "index.ipynb").read_text(encoding="utf-8"))["cells"] if 'id="miniature"' in "".join(c["source"]))
    html = re.search(r"```\{=html\}\n(.*?)```", block, re.S)[1]
    for name in ("operators.js", "miniature.js", "miniature.css", "styles.css"): shutil.copy(NBS / name, tmp_path / name)
    (tmp_path / "index.html").write_text(f'<!doctype html><html lang="en"><meta charset="utf-8"><title>x</title><link rel="stylesheet" href="styles.css"><main class="content"><h1>x</h1>{html}</main>', encoding="utf-8")
    tab = browser.new_page(viewport={"width": 390, "height": 844})
    tab.goto((tmp_path / "index.html").as_uri())
    def same():
        now = tab.evaluate("document.getElementById('miniature').miniature")
        assert torch.allclose(torch.tensor(now["P"], dtype=torch.float64), SoftSort(now["tau"])(torch.tensor(now["s"], dtype=torch.float64)).to_dense(), atol=1e-9)
        return now
    assert same()["s"] == START
    tab.locator(".mini-dot").nth(1).press("PageUp")
    assert same()["s"][1] == 0.1
    box = tab.locator(".mini-dot circle:not(.mini-reach)").first.bounding_box()
    tab.mouse.move(box["x"] + 11, box["y"] + 11)
    tab.mouse.down()
    tab.mouse.move(box["x"] - 50, box["y"] + 40)
    tab.mouse.up()
    assert same()["s"][0] < 1.0
    tab.locator("#mini-tau").press("End")
    assert same()["tau"] == 10 and tab.locator("output").inner_text() == "10"
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    tab.close()


@pytest.mark.skipif(not BUILT.exists(), reason="there is no built site with this page: run `make docs`")
def test_the_built_page(visit):
    tab = visit(where=BUILT.as_uri())
    assert tab.locator(".pg-cell").count() == 25 and tab.locator(".pg-text:visible").count() == 0
    tab.locator("[data-try=columns]").click()
    assert tab.locator("#pg-columns").is_visible() and state(tab)["tau"] == 1
    assert tab.locator("#pg-columns a").get_attribute("href") == "transport/sinkhorn_sort.html"
    for width, least in ((820, 760), (1024, 700)):                         # a tablet, upright and across
        tab.set_viewport_size({"width": width, "height": 900})
        assert tab.locator(".pg").bounding_box()["width"] >= least


def test_the_page_is_self_contained():
    for name in ("operators.js", "playground.js", "playground.css", "playground.qmd", "miniature.js", "miniature.css"):
        text = (NBS / name).read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|@import|\bimport\s*\(|\bfetch\s*\(|XMLHttpRequest|\beval\s*\(|innerHTML", text), name
    resources = json.dumps((ROOT / "_quarto.yml").read_text())
    assert all(name in resources for name in ("operators.js", "playground.js", "playground.css", "miniature.js", "miniature.css"))
