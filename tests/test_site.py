"""The site: its sidebar, its links, and every page in a browser; and that each of these checks can fail."""
import ast
import functools
import http.server
import json
import re
import shutil
import sys
import threading
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
NBS, SITE = ROOT / "nbs", ROOT / "_docs"
sys.path.insert(0, str(ROOT / "tools"))
import check_site  # noqa: E402
import contents  # noqa: E402
import finish  # noqa: E402
import npm  # noqa: E402

# ------------------------------------------------------------------ the sidebar

def sidebar_sources(contents):
    for entry in contents:
        if isinstance(entry, str): yield entry
        else:
            if "href" in entry: yield entry["href"]
            yield from sidebar_sources(entry.get("contents", []))


def listed():
    return list(sidebar_sources(yaml.safe_load((ROOT / "_quarto.yml").read_text())["website"]["sidebar"]["contents"]))


def notebooks():
    return {p.relative_to(NBS).as_posix() for p in NBS.rglob("*.ipynb") if not any(part[0] in "._" for part in p.relative_to(NBS).parts)}


def test_the_sidebar_lists_every_page_once():
    there = notebooks() | {p.relative_to(NBS).as_posix() for p in NBS.glob("*") if p.suffix in (".qmd", ".md")}
    assert sorted(listed()) == sorted(set(listed())), "a page is listed twice"
    assert sorted(there - set(contents.elsewhere()) - set(listed())) == [], "not in the sidebar of _quarto.yml"
    assert sorted(set(listed()) - there) == [], "in the sidebar of _quarto.yml, but not under nbs/"


def test_a_notebook_that_is_no_page_is_told_of_on_one():
    "A chapter that its page names, the table of the laboratory, or a page of contents; and the renderer leaves it out."
    pages = listed()
    for notebook in contents.elsewhere():
        page, _ = contents.home(notebook)
        assert page in pages and notebook not in pages
        if contents.chapter_of(notebook): assert notebook in contents.companions(page) or notebook.startswith("lab/"), notebook
    left_out = [pattern[1:] for pattern in yaml.safe_load((ROOT / "_quarto.yml").read_text())["project"]["render"] if pattern.startswith("!")]
    assert {name for name in notebooks() if any(fnmatch(name, pattern) for pattern in left_out)} == set(contents.elsewhere())


def test_the_book_ends():
    "Fifty chapters for readers, twenty on mechanisms, each once and in the order of the plan."
    chapters = [name for name in listed() if contents.volume_of(name)]
    assert [contents.chapter_of(name) for name in chapters] == contents.IN_ORDER and len(set(contents.IN_ORDER)) == len(contents.IN_ORDER)
    assert [sum(contents.volume_of(name) == volume for name in chapters) for volume in contents.VOLUMES] <= [50, 20] and len(listed()) <= 140
    assert not {chapter for told in contents.TOLD.values() for chapter in told} & set(contents.IN_ORDER)
    assert {chapter for some in (contents.TOLD, *contents.TOLD.values(), *contents.LABORATORY.values()) for chapter in some} <= contents.chapters().keys()


def test_a_part_counts_its_chapters_in_the_order_of_reading():
    "One, two, three ... in every part, and what the two volumes have of it in their order."
    for part, letter in contents.LETTERS.items():
        there = [chapter for chapter in contents.chapters() if chapter.startswith(f"{part}/")]
        assert [contents.number_of(contents.chapters()[chapter]) for chapter in there] == [f"{letter}{i}" for i in range(1, len(there) + 1)]
        listed = [chapter for chapter in contents.IN_ORDER if chapter.startswith(f"{part}/")]
        assert [chapter for chapter in there if chapter in listed] == listed


def test_cells_of_a_chapter_that_import_do_nothing_else():
    "`nbdev_docs` runs every cell of a chapter that holds an import, and no other: what else such a cell needs would be missing."
    mixed = []
    for path in sorted(NBS.rglob("*.ipynb")):
        cells = ["".join(c["source"]) for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]
        if not any("default_exp" in source for source in cells): continue
        for source in cells:
            if source.startswith(("#| export", "%")) or "nbdev_export()" in source: continue
            kinds = {isinstance(n, (ast.Import, ast.ImportFrom)) for n in ast.parse(source).body}
            if kinds == {True, False}: mixed.append(f"{path.name}: {source[:60]!r}")
    assert not mixed, "\n".join(mixed)


def test_a_section_whose_heading_says_so_is_folded_whole():
    inner = '<section id="b" class="level3">\n<h3>B</h3>b</section>'
    text = f'<section id="a" class="level2 folded">\n<h2>A</h2>a{inner}</section><section id="c" class="level2">\n<h2>C</h2>c</section>'
    folded = finish.folded_sections(text)
    assert re.search(r"<details[^>]*><summary><h2>A</h2></summary>a(.*)</details></section><section id=\"c\"", folded, re.S)[1] == inner
    assert folded.endswith("<h2>C</h2>c</section>") and folded.count("<details") == folded.count("</details>") == 1


@pytest.mark.parametrize("summary, inside", [("messages", True), ("test of Prop W1.2", True), ("test of Prop W1.2, 9 lines", False), ("code of the picture", False)])
def test_what_a_cell_prints_goes_behind_the_fold_that_its_chapter_asks_for(summary, inside):
    printed = '<div class="cell-output cell-output-stdout">\n<pre tabindex="0"><code>1.0</code></pre>\n</div>'
    text = f'<details class="code-fold">\n<summary>{summary}</summary>\ncode\n</details>\n{printed}\n<p>after</p>'
    shown = finish.folded_outputs(text)
    assert (shown.index(printed) < shown.index("</details>")) is inside
    assert shown.endswith("<p>after</p>") and shown.count("<details") == shown.count("</details>") == 1


@pytest.mark.parametrize("collapse, is_open", [("true", False), ("false", True)])
def test_a_callout_that_opens_does_so_without_a_script(collapse, is_open):
    markdown = pytest.importorskip("smalldocs.markdown")
    text = markdown.render(f'before\n\n:::: {{.callout-tip collapse="{collapse}"}}\n## Solution\none\n\n::: {{.callout-note}}\ninner\n:::\n\n::: {{.x}}\ntwo\n:::\n::::\n\nafter\n', {}, "")
    shown = finish.callouts(text)
    found = re.search(r"<details class=\"callout [^>]*>(.*)</details>(.*)", shown, re.S)
    assert re.search(r"<summary[^>]*>Solution</summary>.*one.*inner.*two", found[1], re.S) and "after" in found[2] and "data-bs-toggle" not in shown
    assert ("open>" in shown) is is_open and all(part.count("<div") == part.count("</div>") for part in (found[1], shown))


@pytest.mark.parametrize("text, shown", [
    ("<td><code>soft_topk_mask or is_doubly_stochastic</code></td>", "soft_topk_mask or is_|doubly_|stochastic"),
    ("<td><a><code>P.log_prob(order).mean()</code></a></td>", "P|.log_|prob(|order)|.mean()"),
    ("<td><code>TransposedPermutation</code></td>", "Transposed|Permutation"),
    ("<h4 id='a'>SoftPermutation.__matmul__</h4>", "Soft|Permutation|.__matmul__"),
    ("<a href='#a' data-scroll-target='#a'>softsortlib.rowwise.sparse_rows</a>", "softsortlib|.rowwise|.sparse_|rows"),
    ("<h2>How sharp the rows are</h2>", "How sharp the rows are"),
    ("<p><code>soft_topk_mask</code></p>", "soft_topk_mask"),
    ("<p><code>softsortlib table --preset paper</code></p>", "softsortlib table [--preset] paper"),
    ("<code>[-3.7253e-09, 1.0]</code>", "[[-3.7253e-09], 1.0]"),
    ('<code class="sourceCode python">x <span class="op">=</span> f(1)      <span class="co"># short</span></code></pre>', "x = f(1)      # short"),
    ('<code class="sourceCode python">loss <span class="op">=</span> <span class="op">-</span>sort(net(items))<span class="op">.</span>log_prob(orders)<span class="op">.</span>mean()</code></pre>', "loss = [-sort](|net(|items))|.log_prob(|orders)|.mean()"),
    ('<code class="sourceCode python">scores <span class="op">=</span> torch<span class="op">.</span>tensor([<span class="fl">2.0</span>, 5.0, 4.0])      <span class="co"># three</span></code></pre>', "scores = torch.tensor(|[2.0, 5.0, 4.0])  {    }# three"),
])
def test_a_line_that_is_too_long_for_a_phone_goes_on_where_a_reader_expects_it(text, shown):
    "| is a place where it may, [] what stays whole, {} what a phone does not show."
    pytest.importorskip("smalldocs")
    from build_docs import tidy
    found = re.sub(r'<span class="whole">((?:<span class="op">-</span>)?[^<]*)</span>', r"[\1]", tidy(text).replace("<wbr>", "|"))
    found = re.sub(r'<span class="gap">([^<]*)</span>', r"{\1}", found)
    assert re.sub(r"<[^>]*>", "", found) == shown


def test_a_chapter_says_why_a_cell_is_folded():
    book = pytest.importorskip("book")
    from execnb.nbio import mk_cell, new_nb
    from nbdev.process import NBProcessor
    sources = ["#| default_exp core.x", "#| export\n#| fold the product\ndef product(x):\n    return x", "#| fold test\nassert product(1)",
               "#| exporti\n#| show\ndef _idea(x):\n" + "    x = x + 1\n" * 9]
    nb = new_nb([mk_cell(text) for text in sources])
    nb.path_ = str(NBS / "core" / "99_x.ipynb")
    NBProcessor(nb.path_, procs=[book.show_code], nb=nb).process()
    shown = [cell.source for cell in nb.cells]
    assert [re.search(r'code-summary: "(.*)"', text)[1] for text in shown[1:3]] == ["the product", "test"]
    assert all(text.count("code-fold") == 1 and not re.search(r"#\| (fold|show)", text) for text in shown[1:])
    assert "code-fold: false" in shown[3] and "code-summary" not in shown[3]


def test_the_use_of_a_folded_definition_is_in_its_fold():
    book = pytest.importorskip("book")
    from execnb.nbio import mk_cell, new_nb
    from nbdev.process import NBProcessor
    hidden = "#| exporti\n#| fold\ndef twice(x):\n    'Two of x.'\n    return 2 * x"
    sources = ["#| default_exp core.x", hidden, "#| fold use of twice\ntwice(1)", "#| exporti\ndef once(x):\n    return x", "#| fold use of once\nonce(1)"]
    nb = new_nb([mk_cell(text) for text in sources])
    nb.cells[2].outputs = [dict(output_type="stream", name="stdout", text="2")]
    nb.path_ = str(NBS / "core" / "99_x.ipynb")
    NBProcessor(nb.path_, procs=[book.show_code], nb=nb).process()
    shown = [cell.source for cell in nb.cells]
    assert len(shown) == 4 and shown[1].endswith("return 2 * x\n\ntwice(1)") and shown[1].count("code-summary") == 1
    assert nb.cells[1].outputs[0]["text"] == "2" and "use of once" in shown[3]      # its definition is not folded


def test_the_first_cell_of_a_page_is_its_title_and_description_alone():
    "nbdev makes the page's header of it and drops what else it holds: the prose begins in the second cell."
    for path in sorted(p for p in NBS.rglob("*.ipynb") if not any(part[0] in "._" for part in p.relative_to(NBS).parts)):
        first = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
        assert re.fullmatch(r"# .+\n+> .+\n*(- aliases: \[.+\])?\n*|---\n(.|\n)*---\n*", first), f"{path.name} loses {first.splitlines()[-1][:60]!r}: begin a new cell below the description"


def test_readme_is_made_from_the_home_page():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.startswith("<!-- Generated from nbs/index.ipynb by `make docs`")
    prose = ["".join(c["source"]) for c in json.loads((NBS / "index.ipynb").read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "markdown"]
    for sentence in (re.match(r"[^\[`|#>:]{20,60}", text)[0] for text in prose if re.match(r"[^\[`|#>:]{20,60}", text)): assert " ".join(sentence.split()) in " ".join(readme.split()), f"README.md lacks {sentence!r}: run `make docs`"


# ------------------------------------------------------------------ the built site, without a browser

class Sidebar(HTMLParser):
    "The addresses in the sidebar of a page"
    def __init__(self, html):
        super().__init__()
        self.depth, self.found = 0, []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        if tag == "nav" and a.get("id") == "quarto-sidebar" or self.depth and tag == "nav": self.depth += 1
        elif self.depth and tag == "a" and (a.get("href") or "#").split("#")[0].endswith(".html"): self.found.append(a["href"].removeprefix("./"))

    def handle_endtag(self, tag):
        if self.depth and tag == "nav": self.depth -= 1


def built_pages():
    home = SITE / "index.html"
    return list(dict.fromkeys(Sidebar(home.read_text(encoding="utf-8")).found)) if home.exists() else []


PAGES = built_pages()
needs_site = pytest.mark.skipif(not PAGES, reason="there is no built site: run `make docs`")
CHROMIUM = check_site.chromium()
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium")


@needs_site
def test_links_anchors_and_files_are_there():
    problems = check_site.check(SITE)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("body, complaint", [
    ('<a href="nowhere.html">x</a>', "broken link"),
    ('<a href="other.html#nothing">x</a>', "broken anchor"),
    ('<a href="#nothing">x</a>', "broken anchor"),
    ('<script src="https://cdn.example.org/x.js"></script>', "asks another host"),
    ('<link rel="stylesheet" href="//fonts.example.org/x.css">', "asks another host"),
    ('<img src="missing.png" alt="a picture">', "missing file"),
    ('<img src="data:image/png;base64,AAAA" alt="">', "without `#| fig-alt`"),
    ("<p>so that $$x^2$$ is</p>", "unrendered markup"),
    ("<p>where $x$ is</p>", "unrendered markup"),
    ("<p>::: {.callout-note}</p>", "unrendered markup"),
    ("<p>the cell `# of a table that a bar has cut</p>", "unrendered markup"),
    ("<p>[a link](that/is none)</p>", "unrendered markup"),
    ('<p id="a">x</p><p id="a">y</p>', "two elements have the id a"),
    ("<h1>another title</h1>", "headings of level 1"),
    ("<h2>section</h2><h4>too deep</h4>", "level 4 below one of level 2"),
])
def test_a_broken_page_is_found(tmp_path, body, complaint):
    (tmp_path / "other.html").write_text("<h1>other</h1>")
    page = tmp_path / "index.html"
    page.write_text('<h1>title</h1><a href="other.html">good</a><p>a price of $5 and $6, and <code>$x$</code></p>')
    assert check_site.check(tmp_path) == []
    page.write_text(page.read_text() + body)
    assert any(complaint in problem for problem in check_site.check(tmp_path))


@needs_site
@pytest.mark.skipif(not shutil.which("node"), reason="there is no node to set formulas with")
def test_a_formula_that_does_not_typeset_is_found(tmp_path):
    page = tmp_path / "index.html"
    page.write_text(r'<h1>title</h1><span class="math inline">\(\frac{1}{2} \tag{1}\)</span><span class="math inline">\(x &lt; 1\)</span>')
    katex = SITE / "site_libs" / "katex"
    assert len(check_site.check(tmp_path, katex)) == 1      # a tag belongs to display maths
    page.write_text(r'<h1>title</h1><span class="math display">\[\frac{1}{2} \tag{1}\]</span>')
    assert check_site.check(tmp_path, katex) == []


# ------------------------------------------------------------------ in a browser

CONTRAST = r"""() => {
  const parse = c => { const m = c.match(/[\d.]+/g).map(Number); return c.startsWith("color(srgb") ? [m[0]*255, m[1]*255, m[2]*255, m[3] ?? 1] : [m[0], m[1], m[2], m[3] ?? 1]; };
  const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
  const luminance = c => { const [r, g, b] = c.slice(0, 3).map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
  const background = e => {
    const layers = [];
    for (let x = e; x; x = x.parentElement) { const s = getComputedStyle(x); if (s.backgroundImage !== "none") return null; layers.push(parse(s.backgroundColor)); if (layers.at(-1)[3] === 1) break; }
    return layers.reverse().reduce((under, c) => over(c, under), [255, 255, 255, 1]);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), poor = new Map();
  for (let node; node = walker.nextNode();) {
    const e = node.parentElement;
    if (!node.data.trim() || !e.checkVisibility({opacityProperty: true, visibilityProperty: true}) || e.closest(".katex-mathml, script, style, svg, .visually-hidden")) continue;
    const s = getComputedStyle(e), behind = background(e);
    if (!behind) continue;
    const size = parseFloat(s.fontSize), need = size >= 24 || (size >= 18.66 && s.fontWeight >= 700) ? 3 : 4.5;
    const [a, b] = [luminance(over(parse(s.color), behind)), luminance(behind)].sort((x, y) => y - x), ratio = (a + .05) / (b + .05);
    if (ratio < need - .01) poor.set(s.color + behind, `${node.data.trim().slice(0, 30)} (${e.tagName.toLowerCase()}.${e.className}): ${ratio.toFixed(2)} < ${need}, ${s.color} on ${behind.slice(0, 3).map(Math.round)}`);
  }
  return [...poor.values()];
}"""
OVERFLOW = """() => {
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= width) return [];
  const scrolls = e => { for (let x = e.parentElement; x; x = x.parentElement) if (["auto", "scroll", "hidden"].includes(getComputedStyle(x).overflowX)) return true; return false; };
  const wide = [...document.body.querySelectorAll("*")].filter(e => e.getBoundingClientRect().right > width + 1 && !scrolls(e));
  return [`${document.documentElement.scrollWidth} pixels wide: ` + wide.slice(0, 4).map(e => e.tagName.toLowerCase() + "." + e.className).join(", ")];
}"""
WRAPPED = """() => {
  const folded = [...document.querySelectorAll("main details:not([open])")], lines = [...document.querySelectorAll("main pre.python > code.sourceCode > span.line")];
  folded.forEach(d => d.open = true);
  const wrapped = lines.filter(l => l.checkVisibility() && l.getBoundingClientRect().height > 30).map(l => "wrapped: " + l.textContent.slice(0, 60));
  folded.forEach(d => d.open = false);
  return wrapped;
}"""
FORMULAS = """() => {
  const set = [...document.querySelectorAll("span.math")].filter(e => !e.querySelector(".katex")).map(e => "not typeset: " + e.textContent.slice(0, 60));
  const wrong = [...document.querySelectorAll(".katex-error")].map(e => "KaTeX error: " + e.title);
  const plain = document.querySelector("main").cloneNode(true);
  plain.querySelectorAll("pre, code, script, style, .katex").forEach(e => e.remove());
  return set.concat(wrong, plain.textContent.match(/\\$\\$|\\\\\\(|\\\\\\[/) ? ["raw formula in the text"] : []);
}"""
# a formula and a block of code are hundreds of elements each, of which axe needs the text alone
FLATTEN = """() => document.querySelectorAll(".katex-html, .katex-mathml, pre > code").forEach(e => { e.textContent = e.textContent; })"""
AXE = """(rules) => axe.run({include: [["body"]], exclude: [[".katex-html"], ["pre > code"]]}, {resultTypes: ["violations"], ...rules})
  .then(r => r.violations.filter(v => ["serious", "critical"].includes(v.impact)).map(v => `${v.id}: ${v.help}: ${v.nodes.slice(0, 2).map(n => n.html.slice(0, 120)).join(", ")}`))"""
PICTURES = """() => [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => "broken picture " + i.src.slice(0, 80))"""


@pytest.fixture(scope="session")
def axe():
    "The source of axe-core, which finds what keeps people with disabilities from using a page"
    name, version, *_ = npm.AXE
    if not (ROOT / ".cache" / f"{name}-{version}").exists() and not shutil.which("npm"): pytest.skip(f"{name} {version} is not in .cache and there is no npm to fetch it")
    return (npm.fetch(npm.AXE, ROOT / ".cache") / "axe.min.js").read_text(encoding="utf-8")


CUT_OFF = "() => [...document.querySelectorAll('.math.display')].filter(f => f.clientWidth && f.scrollWidth > f.clientWidth + 2).map(f => `a formula is cut off: ${f.id} ${f.textContent.slice(0, 30)}`)"
IS_DARK = "() => { const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/\\d+/g); return +r + +g + +b < 384; }"
TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
# The sidebar is the same on every page, and half of what axe would look at: it does so on some pages, and there at both widths.
WHOLE = ("index.html", "networks/operator.html", "api/ranks.html", "changelog.html", "references.html")


def inspect_page(tab, address, host, axe, patience=(0, 60, 400, 1000), whole=False):
    "Everything that is wrong with a page: as it loads, light and dark, wide and narrow"
    problems = []
    def console(m):
        if m.type == "error": problems.append(f"console: {m.text}")
    def crash(e): problems.append(f"script error: {e}")
    def request(r):
        if not r.url.startswith((host, "data:", "blob:", "about:")): problems.append(f"asks another host: {r.url[:100]}")
    def failed(r):
        if r.failure != "net::ERR_ABORTED": problems.append(f"did not load: {r.url[:100]}")      # aborted: the tab moved on before it came
    handlers = {"console": console, "pageerror": crash, "request": request, "requestfailed": failed}
    for event, handler in handlers.items(): tab.on(event, handler)
    try:
        tab.set_viewport_size({"width": 1440, "height": 900})
        tab.emulate_media(color_scheme="light")
        tab.goto(address, wait_until="load")
        tab.add_style_tag(content="* { transition: none !important; animation: none !important }")
        problems += [found for script in (FORMULAS, PICTURES, WRAPPED, OVERFLOW, CUT_OFF) for found in tab.evaluate(script)]
        tab.evaluate(axe)
        for mode, is_dark in (("light", False), ("dark", True)):
            tab.emulate_media(color_scheme=mode)
            for wait in patience:        # the page changes its colours a moment later
                tab.wait_for_timeout(wait)
                if tab.evaluate(IS_DARK) != is_dark: found = [f"{mode} mode is not {mode}"]
                elif not (found := [f"{mode}: poor contrast: {p}" for p in tab.evaluate(CONTRAST)]): break
            problems += found
            # CONTRAST has checked the colours, and axe, which takes long, does so on some pages once more
            if whole: problems += [f"{mode}: {p}" for p in tab.evaluate(AXE, {"runOnly": ["color-contrast"]})]
        rules = {"runOnly": ["wcag2a", "wcag2aa"], "rules": {"color-contrast": {"enabled": False}}}
        if whole: problems += tab.evaluate(AXE, rules)
        tab.set_viewport_size({"width": 390, "height": 844})
        tab.evaluate(TWO_FRAMES)
        problems += tab.evaluate(OVERFLOW)
        tab.evaluate(FLATTEN)
        if not whole:
            tab.evaluate("() => document.getElementById('quarto-sidebar')?.replaceChildren()")
            rules["rules"]["link-in-text-block"] = {"enabled": False}        # a question to the stylesheet, which takes axe half of its time
            rules["preload"] = False                                        # of films and sound, of which there is none
        problems += tab.evaluate(AXE, rules)
    finally:
        for event, handler in handlers.items(): tab.remove_listener(event, handler)
    return problems


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args): pass


@pytest.fixture(scope="module")
def serve():
    "folder -> the address of a server of it on the loopback"
    servers = []
    def start(folder):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/"
    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with playwright.sync_playwright() as p:
        running = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def tab(browser):
    context = browser.new_context()
    yield context.new_page()
    context.close()


@pytest.fixture(scope="module")
def site(serve): return serve(SITE)


@needs_site
@needs_browser
@pytest.mark.parametrize("page", PAGES)
def test_page_in_a_browser(tab, site, axe, page):
    problems = inspect_page(tab, site + page, site, axe, whole=page in WHOLE)
    assert not problems, "\n".join(problems)


def search(tab, words):
    "What the search box of the open page offers: [(text, address)]"
    tab.set_viewport_size({"width": 1280, "height": 900})
    tab.evaluate("document.querySelectorAll('.smalldocs-search-results').forEach(e => e.replaceChildren())")
    tab.locator(".smalldocs-search input").first.fill(words)
    tab.wait_for_selector(".search-result:visible, .search-none:visible", timeout=20000)
    return [(r.inner_text(), r.get_attribute("href")) for r in tab.locator(".search-result:visible").all()]


# what a reader types, and a page that ought to be among the first three
ASKED = {"SoftSort": "^./rowwise/softsort.html$", "tau": "how-do-i-choose-tau|/temperature.html", "top-k": "/functions.html#top-k|tutorials/topk_layer", "quantile": "/(functions|quantiles).html", "mask": "tutorials/masks", "Sinkhorn": "/sinkhorn_sort.html",
         "soft rank": "/functions.html#soft_rank", "calibrate_tau": "/temperature.html#calibrate_tau", "bitonic": "/comparators.html|/networks/operator.html", "kNN": "^./losses/knn.html", "install": "/index.html", "permutation matrix": "/core/", "sinkhrn": "sinkhorn"}


@needs_site
@needs_browser
@pytest.mark.parametrize("opened", ["from a server", "as a file"])
def test_search_finds_a_name(tab, site, opened):
    tab.goto(site + "index.html" if opened == "from a server" else (SITE / "index.html").as_uri())
    found = search(tab, "SoftSort")
    assert any("softsort.html" in href for _, href in found[:5]), found[:5]
    assert found[0][0].split("\n")[0] in ("chapter", "tutorial"), found[0]
    assert not search(tab, "qqxyzzyqq") and "Nothing found" in tab.locator(".search-none").first.inner_text()
    assert not [text for text, _ in search(tab, "softmax") if re.search(r"\\\\[a-z]+|\\\\\(", text)], "raw LaTeX in a result"
    for words, page in (("SinkhornSort", "sinkhorn_sort.html"), ("soft_topk", "functions.html"), ("NeuralNDCGLoss", "losses/"), ("is_unimodal_row_stochastic", "core/"), ("cross-entropy of the rows", "losses/"), *ASKED.items()):
        found = tab.evaluate("q => softsortlibSearch(searchIndex, q, 5).map(e => './' + e.href.replace(/^\\.\\//, ''))", words)      # what the box asks
        assert any(re.search(page, href) for href in found[:3]), (words, found)
    assert search(tab, "sinkhrn")
    tab.locator(".search-result:visible").first.click()
    tab.wait_for_url("**/*.html*")
    assert tab.locator("main h1").count() == 1


# what users of this library and of others ask, and the pages that answer
QUESTIONS = {asked: {f"{page}.html" for page in pages} for asked, pages in json.loads((Path(__file__).parent / "questions.json").read_text(encoding="utf-8")).items()}


def longest(asked): return max(re.findall(r"\w+", asked), key=len)


def swapped(asked):
    "With two letters in the middle of the longest word in the wrong order"
    word, i = longest(asked), len(longest(asked)) // 2
    return asked.replace(word, word[:i - 1] + word[i] + word[i - 1] + word[i + 1:]) if len(word) > 3 else asked


def dropped(asked):
    "Without a letter in the middle of the longest word"
    word, i = longest(asked), len(longest(asked)) // 2
    return asked.replace(word, word[:i] + word[i + 1:]) if len(word) > 4 else asked


def plural(asked):
    word = longest(asked)
    return asked.replace(word, word[:-1] if word.endswith("s") else word + "s")


def unanswered(answers):
    return [f"{asked}: {hrefs[:2]}" for (asked, pages), hrefs in zip(QUESTIONS.items(), answers, strict=True) if not {re.sub(r"^\./|#.*", "", href) for href in hrefs[:2]} & pages]


@needs_site
@needs_browser
def test_search_answers_questions(tab, site):
    assert len(QUESTIONS) >= 40 and all(page in PAGES for pages in QUESTIONS.values() for page in pages)
    tab.goto(site + "index.html")
    assert not tab.evaluate("() => window.searchIndex"), "the index is loaded before anybody asks"
    typed = {asked: [href for _, href in search(tab, asked)][:2] for asked in list(QUESTIONS)[::8]}
    offered = dict(zip(QUESTIONS, tab.evaluate("asked => asked.map(q => softsortlibSearch(searchIndex, q, 2).map(e => e.href))", list(QUESTIONS))))
    assert {asked: [re.sub(r"^\./", "", href) for href in hrefs] for asked, hrefs in typed.items()} == {asked: [re.sub(r"^\./", "", href) for href in offered[asked]] for asked in typed}
    missed = unanswered(offered.values())
    assert len(missed) <= len(QUESTIONS) / 10, missed
    for change in (swapped, dropped, plural):
        missed = unanswered(tab.evaluate("asked => asked.map(q => softsortlibSearch(searchIndex, q, 2).map(e => e.href))", list(map(change, QUESTIONS))))
        assert len(missed) <= len(QUESTIONS) / 10, (change.__name__, missed)


@needs_site
@needs_browser
def test_search_finds_an_api_name_by_any_part(tab, site):
    tab.goto(site + "index.html")
    search(tab, "sort")
    headings = {heading for heading in re.findall(r'<h3[^>]* id="(\w+)"', (SITE / "api" / "functional.html").read_text(encoding="utf-8")) if "_" in heading}
    assert len(headings) > 8
    found = lambda asked, most=3: tab.evaluate(f"q => softsortlibSearch(searchIndex, q, {most}).map(e => e.section)", asked)
    for name in headings: assert name in found(name) and name in found(name.replace("_", " "), 6), (name, found(name))       # words are titles, too
    for part, name in (("calib", "calibrate_tau"), ("ndcgloss", "NeuralNDCGLoss"), ("steepness", "default_steepness"), ("straight_thr", "SoftPermutation.straight_through"), ("plackett", "plackett_luce_reward")):
        assert any(name in section for section in tab.evaluate("q => softsortlibSearch(searchIndex, q, 12).map(e => e.section)", part)), (part, found(part))


@needs_site
def test_the_search_index_is_small():
    assert 200_000 < (SITE / "search.js").stat().st_size < 800_000
    assert not (SITE / "search.json").exists()


@needs_site
@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_found_can_be_read(browser, site, scheme):
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    tab.goto(site + "index.html")
    tab.wait_for_timeout(300)
    assert not search(tab, "qqxyzzyqq")
    assert not [poor for poor in tab.evaluate(CONTRAST) if "Nothing found" in poor or "search" in poor]
    context.close()


@needs_site
@needs_browser
def test_the_reader_can_switch_to_dark_and_it_stays(browser, site):
    context = browser.new_context(color_scheme="light", viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    tab.goto(site + "index.html")
    tab.locator(".quarto-color-scheme-toggle:visible").first.click()
    for address in ("index.html", PAGES[-1]):
        tab.goto(site + address)
        tab.wait_for_function("() => document.documentElement.classList.contains('quarto-dark')")
    context.close()


@needs_site
def test_the_book_can_be_read_from_page_to_page():
    "Each page leads to the one before and the one after it, in the order of the sidebar."
    def neighbour(page, kind):
        html = (SITE / page).read_text(encoding="utf-8")
        found = re.search(rf'nav-page-{kind}"><a href="([^"#]+)"', html)
        return found and (SITE / page).parent.joinpath(found[1]).resolve().relative_to(SITE.resolve()).as_posix()
    for before, after in zip(PAGES, PAGES[1:]):
        assert neighbour(before, "next") == after
        assert neighbour(after, "previous") == before


@needs_site
@needs_browser
def test_on_a_phone_the_drawer_reaches_its_first_and_last_page(tab, site):
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.goto(site + "book.html")
    tab.locator(".quarto-btn-toggle").first.click()
    tab.wait_for_timeout(600)
    ends = """end => { const bar = document.querySelector("#quarto-sidebar"); bar.scrollTop = end ? 1e6 : 0;
      const box = [...bar.querySelectorAll("a")].filter(a => a.offsetParent).at(end ? -1 : 0).getBoundingClientRect(); return [box.top, box.bottom]; }"""
    for end in (0, 1):
        top, bottom = tab.evaluate(ends, end)
        assert 50 < top and bottom <= 844, (end, top, bottom)


def tabs_to(tab, selector, limit):
    "How often Tab is pressed until the focus is inside the selector"
    for count in range(1, limit + 1):
        tab.keyboard.press("Tab")
        if tab.evaluate("s => !!document.activeElement.closest(s)", selector): return count


@needs_site
@needs_browser
def test_the_keyboard_reaches_the_text_in_two_steps_and_opens_every_section(tab, site):
    tab.set_viewport_size({"width": 1280, "height": 900})
    tab.goto(site + "rowwise/softsort.html")
    assert tabs_to(tab, ".skip-link", 1) == 1
    tab.keyboard.press("Enter")
    assert tabs_to(tab, "main", 1) == 1
    for button in tab.locator(".sidebar-section-button").all():
        before = button.get_attribute("aria-expanded")
        button.evaluate("b => { for (let e = b.parentElement; e; e = e.parentElement) if (e.matches('ul.collapse')) e.classList.add('show'); b.focus(); }")
        tab.keyboard.press("Enter")
        assert button.get_attribute("aria-expanded") != before
        assert tab.evaluate("b => document.getElementById(b.getAttribute('aria-controls')).checkVisibility()", button.element_handle()) is (before == "false")


@needs_site
@needs_browser
def test_the_sidebar_shows_the_current_page_and_closes_the_other_sections(tab, site):
    tab.set_viewport_size({"width": 1280, "height": 600})
    for page in ("lab/index.html", "rowwise/softsort.html", "engine/compile.html", "contributing.html"):
        tab.goto(site + page)
        open_, visible, links = tab.evaluate("""() => { const bar = document.querySelector("#quarto-sidebar"), here = bar.querySelector(".active").getBoundingClientRect(), box = bar.getBoundingClientRect();
          return [[...bar.querySelectorAll("ul.collapse.show")].every(u => u.querySelector(".active")), here.top >= box.top && here.bottom <= innerHeight, [...bar.querySelectorAll("a")].filter(a => a.checkVisibility()).length]; }""")
        assert open_ and visible and links < 40, page


@needs_site
@needs_browser
@pytest.mark.parametrize("page", ["ranks/laplace.html", "losses/orders.html", "functional/quantiles.html"])
def test_a_drawing_of_one_panel_fits_a_phone(tab, site, page):
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.goto(site + page)
    boxes = tab.evaluate("() => [...document.querySelectorAll('p:has(svg.drawing)')].map(p => [p.scrollWidth, p.clientWidth])")
    assert boxes and all(wide <= room + 1 for wide, room in boxes), boxes
    letters = tab.evaluate("() => [...document.querySelectorAll('svg.drawing text')].map(t => parseFloat(getComputedStyle(t).fontSize) * Math.hypot(t.getScreenCTM().a, t.getScreenCTM().b))")
    assert min(letters) >= 9


@needs_site
@needs_browser
@pytest.mark.parametrize("page", ["rowwise/softsort.html", "networks/comparators.html", "selection/masks.html", "core/operators.html", "distributed/sample_sort.html"])
def test_on_a_phone_the_letters_of_a_drawing_can_be_read(tab, site, page):
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.goto(site + page)
    sizes = tab.evaluate("() => [...document.querySelectorAll('svg.drawing text')].map(t => parseFloat(getComputedStyle(t).fontSize) * Math.hypot(t.getScreenCTM().a, t.getScreenCTM().b))")
    assert sizes and min(sizes) >= 9, sorted(sizes)[:4]
    assert not tab.evaluate(OVERFLOW)
    boxes = tab.evaluate("() => [...document.querySelectorAll('p:has(svg.drawing)')].map(p => [p.scrollWidth, p.clientWidth])")
    assert any(wide > room for wide, room in boxes)
    last = tab.locator("p:has(svg.drawing)").first
    assert last.evaluate("p => { p.scrollLeft = 1e4; return p.scrollLeft }") == pytest.approx(boxes[0][0] - boxes[0][1], abs=1)


PHONE = ("index.html", "tour.html", "howto.html", "choosing.html", "rowwise/softsort.html", "core/permutation.html", "ranks/permutahedron.html", "api/functional.html", "experiments/sort_mnist.html")


def on_a_phone(tab, address):
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.goto(address)
    tab.wait_for_function("() => !document.querySelector('span.math:not(:has(.katex))')")


@pytest.fixture(scope="module")
def on_phones(tab, site):
    "Of each page, loaded once: which blocks of code are wider than their box, and what scrolls that no key reaches."
    found = {}
    for page in PHONE:
        on_a_phone(tab, site + page)
        wide = tab.evaluate("() => [...document.querySelectorAll('main pre')].filter(p => p.checkVisibility()).map(p => p.scrollWidth > p.clientWidth + 1)")
        stuck = tab.evaluate("""() => [...document.querySelectorAll('main *')].filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1 && /auto|scroll/.test(getComputedStyle(e).overflowX) && e.tabIndex < 0 && !e.querySelector('a, button, [tabindex]'))
          .map(e => e.tagName + '.' + e.className)""")
        found[page] = wide, stuck
    return found


@needs_site
@needs_browser
def test_on_a_phone_code_need_not_be_scrolled(tab, site, on_phones):
    wide = [is_wide for blocks, _ in on_phones.values() for is_wide in blocks]
    assert len(wide) > 100 and sum(wide) / len(wide) < 0.12, (sum(wide), len(wide))
    # what of a line goes on below stands further in than the line
    on_a_phone(tab, site + "rowwise/softsort.html")
    rows = tab.evaluate("""() => [...document.querySelectorAll('main pre.python span.line')].filter(l => l.checkVisibility() && l.offsetHeight > 30).map(l => {
      const range = document.createRange(); range.selectNodeContents(l); const boxes = [...range.getClientRects()].filter(b => b.width > 1), top = Math.min(...boxes.map(b => b.top));
      const text = l.textContent.search(/\\S/) * parseFloat(getComputedStyle(l).fontSize) * .5; return [Math.min(...boxes.filter(b => b.top < top + 5).map(b => b.left)) + text, Math.min(...boxes.filter(b => b.top > top + 8).map(b => b.left))]; })""")
    assert rows and all(below > line + 5 for line, below in rows)


@needs_site
@needs_browser
@pytest.mark.parametrize("page", ["choosing.html", "api.html", "api/rowwise.html", "statements.html"])
def test_on_a_phone_no_name_in_a_table_is_cut_in_two_but_at_its_joints(tab, site, page):
    on_a_phone(tab, site + page)
    words = tab.evaluate("""() => [...document.querySelectorAll('main td code')].filter(c => c.checkVisibility()).flatMap(c => [...c.childNodes]).filter(n => n.nodeType == 3).flatMap(n =>
      [...n.data.matchAll(/[^\\s]{4,}/g)].map(m => { const range = document.createRange(); range.setStart(n, m.index); range.setEnd(n, m.index + m[0].length); return [m[0], range.getClientRects().length]; }))""")
    assert len(words) > 20 and not [word for word, lines in words if lines > 1 and not word.startswith("http")]


@needs_site
@needs_browser
def test_on_a_phone_what_scrolls_can_be_scrolled_by_keyboard(on_phones):
    assert not {page: stuck for page, (_, stuck) in on_phones.items() if stuck}


@needs_site
@needs_browser
@pytest.mark.parametrize("page", ["ranks/line.html", "rowwise/softsort.html"])
def test_on_a_phone_a_caption_stays_on_the_page(tab, site, page):
    on_a_phone(tab, site + page)
    ends = tab.evaluate("() => [...document.querySelectorAll('figcaption')].filter(c => c.checkVisibility()).map(c => c.getBoundingClientRect().right)")
    assert ends and max(ends) <= 390


@needs_site
@needs_browser
@pytest.mark.parametrize("page, picture", [("choosing.html", "img"), ("rowwise/softsort.html", "svg.drawing"), ("functional/temperature.html", "img")])
def test_on_a_phone_a_picture_is_large_enough_and_opens_at_full_size(tab, site, page, picture):
    on_a_phone(tab, site + page)
    # the smallest letters of a plot have 7 points, an inch of it has 88 pixels at its width
    for drawn, shown in tab.evaluate("() => [...document.querySelectorAll('main .picture img')].map(i => [+i.getAttribute('width'), i.clientWidth])"): assert 7 * 88 / 72 * shown / drawn > 8.95
    button = tab.locator(f".picture:has({picture})").first
    for opening in (button.click, lambda: button.press("Enter")):
        opening()
        width, room, name = tab.evaluate("() => { const d = document.querySelector('dialog.full[open]'), i = d.querySelector('img, svg'); return [i.getBoundingClientRect().width, i.naturalWidth || 600, d.getAttribute('aria-label')]; }")
        assert width >= room and len(name) > 20
        assert tab.evaluate("() => { const d = document.querySelector('dialog.full'); d.scrollLeft = 1e4; return d.scrollLeft; }") > 100
        tab.keyboard.press("Escape")
        tab.wait_for_function("() => !document.querySelector('dialog.full')")
    assert not tab.evaluate(OVERFLOW)


@needs_site
@needs_browser
@pytest.mark.parametrize("page", ["choosing.html", "experiments/sort_mnist.html"])
def test_on_a_phone_the_first_column_of_a_table_stays(tab, site, page):
    on_a_phone(tab, site + page)
    for before, after, moved, other in tab.evaluate("""() => [...document.querySelectorAll('main table')].filter(t => t.checkVisibility() && t.rows[0].cells.length > 2).map(t => {
      const cell = t.rows[1].cells, box = t.closest('.sd-table') || t, x = c => c.getBoundingClientRect().left, was = x(cell[0]), then = x(cell[1]); box.scrollLeft = 60; return [was, x(cell[0]), then - x(cell[1]), box.scrollLeft]; })"""):
        assert after == pytest.approx(before, abs=1) and moved == pytest.approx(other, abs=1)


@needs_site
@needs_browser
def test_on_a_phone_a_page_says_what_is_on_it(tab, site):
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.goto(site + "rowwise/softsort.html")
    tab.locator(".toc-phone summary").click()
    tab.locator(".toc-phone a", has_text="How sharp the rows are").click()
    tab.wait_for_function("() => Math.abs(document.getElementById(location.hash.slice(1)).getBoundingClientRect().top) < 200", timeout=5000)


READ = ("core/permutation.html", "rowwise/softsort.html", "rowwise/neuralsort.html", "networks/operator.html", "transport/sinkhorn_sort.html", "ranks/permutahedron.html")


@needs_site
@needs_browser
def test_text_is_narrow_code_is_not_wrapped_and_prose_outweighs_it(tab, site):
    tab.set_viewport_size({"width": 1440, "height": 900})
    for page in READ:
        tab.goto(site + page)
        tab.wait_for_function("() => !document.querySelector('span.math:not(:has(.katex))')")
        width, code, wrapped, scroll = tab.evaluate("""() => {
          const main = document.querySelector("main"), p = [...main.querySelectorAll("p")].find(x => !x.className && !x.closest("figure") && x.textContent.length > 150), probe = document.createElement("span");
          probe.textContent = "the quick brown fox jumps over the lazy dog and runs from it as far"; p.append(probe);
          const width = p.clientWidth / (probe.getClientRects().length === 1 ? probe.offsetWidth : 1e9) * probe.textContent.length; probe.style.whiteSpace = "nowrap";
          const columns = p.clientWidth / probe.offsetWidth * probe.textContent.length; probe.remove();
          const cells = [...main.querySelectorAll(".cell")].filter(c => !c.parentElement.closest(".cell") && c.checkVisibility());
          const pictures = c => [...c.querySelectorAll("img, svg")].reduce((sum, i) => sum + i.getBoundingClientRect().height, 0);
          const code = cells.reduce((sum, c) => sum + c.offsetHeight - pictures(c), 0) / main.offsetHeight;
          const wrapped = [...main.querySelectorAll("pre > code.sourceCode > span.line")].filter(l => l.checkVisibility() && l.getBoundingClientRect().height > 30).length;
          return [columns, code, wrapped, document.documentElement.scrollWidth - document.documentElement.clientWidth]; }""")
        assert 60 <= width <= 80, (page, width)
        assert code <= 0.45, (page, code)
        assert not wrapped and scroll <= 0, page


@needs_site
def test_there_are_long_formulas():
    "Each page is inspected at 1440 pixels, where a formula may be as wide as code is: there are some that come near it."
    assert sum(bool(re.search(r"\$\$[^$]{190,}\$\$", (NBS / name).read_text(encoding="utf-8"))) for name in listed() if name.endswith(".ipynb")) > 20


@needs_site
@pytest.mark.parametrize("page", ("index.html", "choosing.html", "howto.html", "playground.html", "references.html", "404.html", "api/functional.html", "experiments/sort_mnist.html", *READ))
def test_a_page_is_valid_html(page):
    "What the parser of the standard would have to repair: there is nothing."
    parser = pytest.importorskip("html5lib").HTMLParser()
    parser.parse((SITE / page).read_text(encoding="utf-8"))
    assert not [(where, code, str(data)) for where, code, data in parser.errors]


@needs_site
@pytest.mark.parametrize("page", READ)
def test_a_chapter_opens_with_a_picture_and_has_three(page):
    text = (SITE / page).read_text(encoding="utf-8").partition("<main")[2].partition("</main>")[0]
    assert len(re.findall(r'<svg role="img"|<img [^>]*src="data:image', text)) >= 3
    assert text.index('<svg role="img"') < text.index("<summary>imports") < text.index("<h2")


@needs_site
@needs_browser
def test_a_reference_to_a_statement_lands_there_and_shows_it(tab, site):
    tab.set_viewport_size({"width": 1280, "height": 900})
    tab.goto(site + "rowwise/neuralsort.html")
    links = tab.locator("main a.ref")
    assert links.count() > 3
    links.first.hover()
    tab.wait_for_selector(".ref-note")
    assert len(tab.locator(".ref-note").inner_text()) > 20
    for href in {a.get_attribute("href") for a in links.all()}:
        tab.goto(site + "rowwise/" + href if not href.startswith("#") else site + "rowwise/neuralsort.html" + href)
        tab.wait_for_function("() => { const e = document.getElementById(location.hash.slice(1)), b = e?.getBoundingClientRect(); return e?.checkVisibility() && b.bottom > 0 && b.top < innerHeight; }", timeout=5000)


@needs_site
def test_every_statement_that_prose_names_is_a_link():
    for page in PAGES:
        text = (SITE / page).read_text(encoding="utf-8")
        for key, number in re.findall(r'<a class="ref" href="[^"]*#((?:prop|eq)-[A-Z\d.]+)">(?:Prop|Theorem|Lemma|Corollary)? ?\(?([A-Z\d.]*\d)', text): assert key.split("-")[1] == number
        for to, key in re.findall(r'<a class="ref" href="https://[^"]*/nbs/([^"#]*)#(?:prop|eq)-([A-Z\d.]+)"', text): assert contents.number_of(to) == key.split(".")[0] and (NBS / to).exists()
    defined = sum(len(re.findall(r'<strong id="prop-', (SITE / page).read_text(encoding="utf-8"))) for page in PAGES)
    assert defined > 60


@needs_site
def test_a_page_has_what_it_needs_elsewhere():
    settings = (ROOT / "settings.ini").read_text(encoding="utf-8")
    version = re.search(r"^version = (.+)$", settings, re.M)[1]
    for page in PAGES:
        text = (SITE / page).read_text(encoding="utf-8")
        for piece in ('<link rel="canonical" href="https://softsortlib.github.io/softsortlib/', 'property="og:title"', 'property="og:image"', '<meta name="description"', f"softsortlib {version}", "Apache 2.0"):
            assert piece in text, (page, piece)
    assert "edit this page" in (SITE / "rowwise/softsort.html").read_text(encoding="utf-8") and "download the notebook" in (SITE / "rowwise/softsort.html").read_text(encoding="utf-8")
    assert (SITE / "images/card.png").exists() and "There is no such page" in (SITE / "404.html").read_text(encoding="utf-8")
    listed = (SITE / "sitemap.xml").read_text(encoding="utf-8")
    assert all(f"/{page}<" in listed or page.endswith("index.html") for page in PAGES)


@needs_site
@needs_browser
def test_the_first_visit_is_light_and_loads_one_theme(browser, site):
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="dark")
    tab, sizes = context.new_page(), {}
    tab.on("response", lambda r: sizes.setdefault(r.url, len(r.body())))
    tab.goto(site + "index.html", wait_until="load")
    tab.wait_for_timeout(300)
    assert sum(sizes.values()) <= 600_000, sorted(sizes.items(), key=lambda x: -x[1])[:6]
    assert [u for u in sizes if "themes/" in u] == [site + "site_libs/themes/darkly.min.css"]
    assert not [u for u in sizes if u.endswith(("search.js", "notes.js", "fuse.min.js"))]
    context.close()


@needs_site
@needs_browser
def test_nothing_jumps_while_a_page_loads(browser, site):
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.add_init_script("window.shift = 0; new PerformanceObserver(l => l.getEntries().forEach(e => { if (!e.hadRecentInput) window.shift += e.value; })).observe({type: 'layout-shift', buffered: true})")
    tab = context.new_page()
    for page in ("index.html", "rowwise/softsort.html", "playground.html", "api/ranks.html"):
        tab.goto(site + page)
        tab.wait_for_timeout(400)
        assert tab.evaluate("() => window.shift") <= 0.05, page
    context.close()


LANDMARKS = ("index.html", "rowwise/softsort.html", "playground.html", "api/ranks.html", "references.html", "changelog.html", "experiments/knn.html", "tutorials/masks.html", "lab/index.html", "book.html", "notation.html")


@needs_site
@needs_browser
def test_all_content_is_in_a_landmark_that_has_a_name(tab, site, axe):
    for page in LANDMARKS:
        tab.set_viewport_size({"width": 1280, "height": 844})
        tab.goto(site + page)
        tab.evaluate(axe)
        tab.evaluate(FLATTEN)
        for width in (1280, 390):
            tab.set_viewport_size({"width": width, "height": 844})
            found = tab.evaluate("""() => axe.run(document, {resultTypes: ["violations"], runOnly: ["region", "landmark-unique", "landmark-one-main", "landmark-no-duplicate-main", "landmark-no-duplicate-banner", "landmark-banner-is-top-level", "landmark-contentinfo-is-top-level", "landmark-complementary-is-top-level", "skip-link", "bypass"]})
              .then(r => r.violations.map(v => v.id + ": " + v.nodes.map(n => n.html.slice(0, 90)).slice(0, 3).join(", ")))""")
            assert not found, (page, width, found)


@needs_site
def test_a_chapter_says_how_to_open_it_in_jupyter():
    for source, page in (("rowwise/01_softsort.ipynb", "rowwise/softsort.html"), ("tutorials/ranking_loss.ipynb", "tutorials/ranking_loss.html")):
        assert f"make lab FILE={source}" in (SITE / page).read_text(encoding="utf-8")
        assert (NBS / source).exists()


@needs_site
def test_a_chapter_has_its_number_and_begins_with_its_text():
    "What a page is made of stands at its foot; between the title and the text there is nothing but the contents of a small screen."
    for page in ("rowwise/softsort.html", "engine/scan.html", "engine/compile.html"):
        main = (SITE / page).read_text(encoding="utf-8").partition("<main")[2].partition("</main>")[0]
        number = next(contents.number_of(name) for name in contents.chapters().values() if contents.address(name) == page)
        assert re.search(rf'<h1 class="title"><span class="chapter-number">{number}</span> [A-Z]', main)
        between = re.sub(r'<details class="toc-phone">.*?</details>', "", main[main.index("</header>"):main.rindex('<p class="notebook">')], flags=re.S)
        assert "make lab" not in between and "<h2" in between


@needs_site
def test_old_addresses_lead_to_the_page_that_tells_of_the_notebook():
    for notebook in contents.elsewhere():
        (page, anchor), (_, _, old) = contents.home(notebook), contents.opening(notebook)
        for address in (contents.address(notebook), *old):
            text = (SITE / address.lstrip("/")).read_text(encoding="utf-8")
            to, _, at = re.search(r'http-equiv="refresh" content="1; url=([^"]*)"', text)[1].partition("#")
            target = (SITE / address.lstrip("/")).parent.joinpath(to).resolve()
            assert target == (SITE / contents.address(page)).resolve() and at == anchor
            if at: assert f'id="{at}"' in target.read_text(encoding="utf-8"), (notebook, at)


@needs_site
def test_the_changelog_has_a_section_for_the_version():
    from configparser import ConfigParser
    settings = ConfigParser(delimiters=["="])
    settings.read(ROOT / "settings.ini")
    assert re.search(rf"<h2[^>]*>{re.escape(settings['DEFAULT']['version'])}\b", (SITE / "changelog.html").read_text(encoding="utf-8"))


GOOD = "<!doctype html><html lang=en><title>title</title><link rel=icon href='data:,'><style>body{margin:0;background:#fff;color:#000} @media (prefers-color-scheme: dark) {body{background:#111;color:#fff}}</style><main><h1>title</h1>"


@needs_browser
@pytest.mark.parametrize("body, complaint", [
    ("<script>console.error('oh')</script>", "console: oh"),
    ("<script>nothing.here()</script>", "script error"),
    ("<script src='http://127.0.0.2:9/x.js'></script>", "asks another host"),
    ("<script src='missing.js'></script>", "console"),
    (r"<span class='math inline'>\(x\)</span>", "not typeset"),
    ("<span class='katex-error' title='ParseError'>x</span>", "KaTeX error"),
    (r"<p>so \(x\) is</p>", "raw formula"),
    ("<img src='data:image/png;base64,AAAA' alt='x'>", "broken picture"),
    ("<pre class='python' style='white-space: pre-wrap; width: 5rem'><code class='sourceCode'><span class='line' style='display: inline-block'>a line of code that is too long</span></code></pre>", "wrapped: a line of code"),
    ("<p style='color: #999'>pale</p>", "light: poor contrast: pale"),
    ("<p style='color: #333; background: transparent'>dim</p>", "dark: poor contrast: dim"),
    ("<div style='width: 500px'>wide</div>", "500 pixels wide"),
    ("<div style='width: 1500px'>wide</div>", "1500 pixels wide"),
    ("<div class='math display' style='width: 5rem; overflow: hidden'><span class=katex style='display: block; width: 9rem'>x</span></div>", "a formula is cut off"),
    ("<img src='data:image/svg+xml,<svg xmlns=\"http://www.w3.org/2000/svg\"/>'>", "image-alt"),
    ("<button></button>", "button-name"),
    ("<ul><div>x</div></ul>", "list"),
    ("<style>body { background: #fff !important; color: #000 !important }</style>", "dark mode is not dark"),
])
def test_a_page_that_is_broken_in_the_browser_is_found(tab, serve, axe, tmp_path, body, complaint):
    (tmp_path / "bad.html").write_text(GOOD + body)
    host = serve(tmp_path)
    assert any(complaint in problem for problem in inspect_page(tab, host + "bad.html", host, axe, patience=[0]))


@needs_browser
def test_a_link_that_looks_like_text_is_found_on_a_page_that_is_asked_everything(tab, serve, axe, tmp_path):
    (tmp_path / "bad.html").write_text(GOOD + "<p>words around <a href='bad.html' style='color: #ddd; text-decoration: none'>a link</a> that is hardly paler</p>")
    host = serve(tmp_path)
    assert any("link-in-text-block" in problem for problem in inspect_page(tab, host + "bad.html", host, axe, patience=[0], whole=True))


@needs_browser
def test_a_good_page_passes(tab, serve, axe, tmp_path):
    (tmp_path / "good.html").write_text(GOOD + r"<p>a price of $5</p><code>\(x\)</code>")
    host = serve(tmp_path)
    assert inspect_page(tab, host + "good.html", host, axe, patience=[0]) == []
