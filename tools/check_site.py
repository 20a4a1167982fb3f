"""Check a built site: links and anchors, formulas, requests to other hosts, sizes. No network.

    python tools/check_site.py _docs --katex .cache/katex-0.16.11
"""
import json, re, shutil, subprocess, sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import repo

LOADS = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src"), ("audio", "src"), ("embed", "src"), ("object", "data"), ("link", "href")}
QUIET_RELS = {"canonical", "license", "author", "next", "prev"}      # <link rel> that a browser does not fetch
PAGE_LIMIT = 1_000_000                                               # bytes of HTML in a page
VERBATIM = {"code", "pre", "script", "style", "textarea", "title", "option"}

class Page(HTMLParser):
    "The ids, links, loads, formulas and stray dollar signs of a page"
    def __init__(self, path):
        super().__init__(convert_charrefs=True)
        self.ids, self.links, self.loads, self.formulas, self.stray, self.open = Counter(), [], [], [], [], []
        self.formula = None
        self.no_alt, self.headings, self.levels = 0, Counter(), []
        text = path.read_text(encoding="utf-8")
        self.size = len(text.encode())
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        if a.get("id"): self.ids[a["id"]] += 1
        if tag == "a" and a.get("name"): self.ids[a["name"]] += 1
        if tag == "a" and a.get("href") is not None: self.links.append(a["href"])
        if tag == "img" and not (a.get("alt") or "").strip() and (a.get("src") or "").startswith("data:"): self.no_alt += 1
        if tag in ("h1",): self.headings[tag] += 1
        if re.fullmatch("h[1-6]", tag) and not {"nav", "aside"} & set(self.open): self.levels.append(int(tag[1]))
        for key in ("src", "href", "data"):
            if (tag, key) in LOADS and a.get(key) and not (tag == "link" and set((a.get("rel") or "").split()) & QUIET_RELS): self.loads.append(a[key])
        if a.get("style"): self.loads += re.findall(r"url\(['\"]?([^'\")]+)", a["style"])
        if tag == "span" and "math" in (a.get("class") or "").split(): self.formula = ["display" in a["class"].split(), "", len(self.open)]
        if tag not in ("br", "img", "hr", "meta", "link", "input", "col", "source", "wbr"): self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in self.open:
            while self.open.pop() != tag: pass
        if self.formula and len(self.open) <= self.formula[2]:
            self.formulas.append((self.formula[0], re.sub(r"^\\[\[(]|\\[\])]$", "", self.formula[1].strip())))
            self.formula = None

    def handle_data(self, data):
        if self.formula: self.formula[1] += data
        elif not VERBATIM & set(self.open):
            if "style" not in self.open and re.search(r"\$\$|(?<![\\$\w])\$[^$\d\s][^$]*\$", data): self.stray.append(data.strip()[:60])
            self.stray += [m[0] for m in re.finditer(r"\\(?:frac|sum|mathrm|mathbb|tau|begin|left|text)\b.{0,40}", data)]
            self.stray += [m[0] for m in re.finditer(r"\]\(\S{1,40}", data)]
            self.stray += [m[0] for m in re.finditer(r"^\s*:::.*|\{\{<.*|\{[#.][\w-]+\}|`.{0,40}", data)]

ERRORS = "fs => fs.map(([d, t]) => {try {katex.renderToString(t, {displayMode: d, throwOnError: true, strict: 'error', trust: false}); return null} catch (e) {return e.message}})"

def typeset(formulas, katex):
    "formulas: [(display, tex)] -> the error of each that KaTeX cannot set, or None where there is neither node nor a browser to ask"
    if not formulas: return {}
    script, node = str((katex / "katex.min.js").resolve()), shutil.which("node")
    if node:
        code = f"const katex = require(process.argv[1]); console.log(JSON.stringify(({ERRORS})(JSON.parse(require('fs').readFileSync(0, 'utf8')))))"
        errors = json.loads(subprocess.run([node, "-e", code, script], input=json.dumps(formulas), capture_output=True, text=True, check=True).stdout)
    else: errors = in_browser(formulas, script)
    return errors and {tuple(f): e for f, e in zip(formulas, errors) if e}

def chromium():
    "Where a Chromium is, or None"
    return next((p for n in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable") if (p := shutil.which(n))), None)

def in_browser(formulas, script):
    "The errors by a headless Chromium, through Playwright, or None where there is none"
    try: from playwright.sync_api import sync_playwright
    except ImportError: return None
    if not chromium(): return None
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.add_script_tag(path=script)
        errors = page.evaluate(ERRORS, formulas)
        browser.close()
    return errors

def check(site, katex=None):
    "Every problem of the site, one line each"
    site, problems = Path(site).resolve(), []
    pages = {p: Page(p) for p in sorted(site.rglob("*.html"))}
    if not pages: return [f"{site} holds no page"]
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        def target(href):
            u = urlsplit(href)
            if u.scheme in ("http", "https", "mailto", "data", "javascript") or u.netloc: return None, ""
            return ((path.parent / unquote(u.path)).resolve() if u.path else path), unquote(u.fragment)
        for href in page.links:
            to, anchor = target(href)
            if to is None: continue
            if to.is_dir(): to = to / "index.html"
            if not to.exists(): problems.append(f"{name}: broken link {href}")
            elif anchor and to in pages and anchor not in pages[to].ids: problems.append(f"{name}: broken anchor {href}")
        for src in page.loads:
            u = urlsplit(src)
            if u.scheme in ("http", "https") or u.netloc: problems.append(f"{name}: asks another host for {src}")
            elif u.scheme != "data" and u.path and not (path.parent / unquote(u.path)).exists(): problems.append(f"{name}: missing file {src}")
        problems += [f"{name}: two elements have the id {i}" for i, n in page.ids.items() if n > 1]
        problems += [f"{name}: unrendered markup {s!r}" for s in dict.fromkeys(page.stray)]
        if page.no_alt: problems.append(f"{name}: {page.no_alt} picture(s) without `#| fig-alt`")
        if page.headings["h1"] != 1: problems.append(f"{name}: {page.headings['h1']} headings of level 1 instead of one")
        problems += [f"{name}: a heading of level {b} below one of level {a}" for a, b in sorted(set(zip(page.levels, page.levels[1:]))) if b > a + 1]
        if page.size > PAGE_LIMIT: problems.append(f"{name}: {page.size / 1e6:.2f} MB of HTML, more than {PAGE_LIMIT / 1e6:.0f}")
    for css in site.rglob("*.css"):
        text = re.sub(r"/\*.*?\*/", "", css.read_text(encoding="utf-8"), flags=re.S)
        for src in re.findall(r"(?:url\(|@import )\s*['\"]?([^'\")\s;]+)", text):
            if re.match(r"(https?:)?//", src): problems.append(f"{css.relative_to(site)}: asks another host for {src}")
    formulas = list(dict.fromkeys(f for p in pages.values() for f in p.formulas))
    if katex:
        errors = typeset(formulas, Path(katex))
        if errors is None: problems.append("formulas are not checked: install node, or Playwright and Chromium")
        for f, e in (errors or {}).items():
            where = ", ".join(p.relative_to(site).as_posix() for p, page in pages.items() if f in page.formulas)
            problems.append(f"{where}: {e} in formula {f[1][:100]!r}")
    return problems

if __name__ == "__main__":
    ap = repo.arguments(__doc__)
    ap.add_argument("site", type=Path, nargs="?", default=Path("_docs"))
    ap.add_argument("--katex", type=Path, help="the dist/ folder of KaTeX; without it formulas are not set")
    args = ap.parse_args()
    found = check(args.site, args.katex)
    print("\n".join(found) or f"{args.site}: no problem")
    sys.exit(bool(found))
