"""Build _docs/ and README.md without Quarto: nbdev prepares the notebooks (book.py), smalldocs renders them, check_site.py checks them.

Both renderers read the same _quarto.yml; with Quarto on PATH, `nbdev_docs` does the job instead. The site asks no other
host for anything: KaTeX is copied into it, web fonts are taken out, and search also works on pages opened as files.
"""
import base64, html, io, json, os, re, shutil, sys, time
from pathlib import Path, PurePosixPath

from nbdev.config import get_config
from nbdev.doclinks import _build_modidx
from nbdev.quarto import refresh_quarto_yml
from nbdev.serve import proc_nbs
from PIL import Image
try:
    from smalldocs import layout
    from smalldocs.config import load
    from smalldocs.site import Site
except ImportError: sys.exit("the site is rendered by smalldocs, which needs Python 3.11 or newer: make docs PYTHON=python3.12 VENV=.venv-docs")

sys.path.append(str(Path(__file__).resolve().parent.parent))             # nbdev reads `procs = tools.book:...` from settings.ini
import check_site, contents, finish, npm, repo, search_index
from book import is_internal
from repo import replace, rewrite

DUNDER = re.compile(r"^(#{1,6} )([\w.]*__\w+__[\w.]*)[ \t]*$", re.M)   # show_doc headings such as A.__call__
INCH = 88                                                              # pixels that show an inch of a picture: 8 inches fill the column
PHONE, LONG = 40, 15                                                   # characters of code that fit in a line of any phone, and of a name in a column there
UNBROKEN = r"(?<![\w-])--[a-z][\w-]*|-?\d[\d.]*e-\d+"                   # an option of a command, a number with a negative exponent
WHOLE = r'<span class="whole">\1</span>'
WEB_FONT = re.compile(r"@import url\([^)]*fonts\.googleapis[^)]*\);?")
EXPECTED = ("output-file is not read by smalldocs", "aliases is not read by smalldocs", "html-math-method is not read by smalldocs",     # for Quarto, and handled here
            "html-math-method is ignored")

def formulas_on_one_line(text):
    "Join the lines of each $$...$$ outside code: a line of it that begins with + or - is no list, to Pandoc, but it is to smalldocs"
    parts = re.split(r"^((?:`{3,}|~{3,}).*\n(?:.*\n)*?(?:`{3,}|~{3,})[ \t]*$)", text, flags=re.M)
    parts[::2] = [re.sub(r"\$\$(.+?)\$\$", lambda m: "$$" + " ".join(m[1].split()) + "$$", p, flags=re.S) for p in parts[::2]]
    return "".join(parts)

class NbdevSite(Site):
    "smalldocs, plus what Quarto does and nbdev's notebooks rely on"
    def read(self, src):
        page = super().read(src)
        if name := page.front.get("output-file"): page.out = page.out.with_name(str(name))  # 01_softsort.ipynb -> softsort.html
        page.body = formulas_on_one_line(page.body).replace(r"\mathbb{1}", r"\mathbf{1}")     # KaTeX has no blackboard digits and would show a plain one
        page.body = DUNDER.sub(lambda m: m[1] + m[2].replace("_", r"\_"), page.body)
        return page
    def find_page(self, target):
        return super().find_page(target) or next((p for p in self.pages.values() if p.out == target), None)
    def resolve(self, href, page, record=True):  # nbdev's links to our own site become relative
        base = str(self.project.website.get("site-url") or "-").rstrip("/") + "/"
        return super().resolve("/" + href[len(base):] if href.startswith(base) else href, page, record)
    def warn(self, msg):
        if not msg.endswith(EXPECTED): super().warn(msg)

def make_offline(out, dist):
    "KaTeX from the site itself, no web fonts, and a search index that a page opened as a file can read too"
    libs = out / "site_libs"
    names = ["katex.min.css", "katex.min.js", "contrib/auto-render.min.js", *(f"fonts/{f.name}" for f in (dist / "fonts").glob("*.woff2"))]
    for n in names:
        (libs / "katex" / n).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(dist / n, libs / "katex" / n)
    for p in out.rglob("*.html"): rewrite(p, str.replace, layout.KATEX, f"{'../' * (len(p.relative_to(out).parts) - 1)}site_libs/katex")
    for p in (libs / "themes").rglob("*.css"): rewrite(p, lambda css: WEB_FONT.sub("", css))
    (out / "search.json").unlink()
    shutil.rmtree(libs / "fuse", ignore_errors=True)
    replace(libs / "smalldocs.js", 'const r = await fetch(offset + "search.json");\n      index = await r.json();',
            'await new Promise((done, fail) => { const s = document.createElement("script"); s.src = offset + "search.js"; s.onload = done; s.onerror = fail; document.head.append(s); });\n'
            '      index = window.searchIndex;')
    replace(libs / "smalldocs.js", "const hits = fuse ?", "const hits = window.softsortlibSearch ? window.softsortlibSearch(index, q, limit) : fuse ?")
    rewrite(libs / "smalldocs.js", lambda code: code + "\n" + (Path(__file__).parent / "search.js").read_text(encoding="utf-8"))

def code_lines(m):
    "Each line of a code block in an element of its own, which knows its indentation, so that a long line can wrap below itself"
    lines, stack = [[]], []
    for part in re.split(r"(<span[^>]*>|</span>|\n)", m[2]):
        if part == "\n":
            lines[-1] += ["</span>"] * len(stack)
            lines.append(list(stack))
            continue
        if part.startswith("<span"): stack.append(part)
        elif part == "</span>": stack.pop()
        lines[-1].append(part)
    def line(parts):
        code = "".join(parts)
        text = re.sub(r"<[^>]*>", "", code)
        indent = f' style="--i:{len(text) - len(text.lstrip(" "))}"' if text.startswith(" ") else ""
        return f'<span class="line"{indent}>{breaks_in_code(code) if len(text) > PHONE else code}</span>'
    return m[1] + "\n".join(map(line, lines)) + m[3]

def breaks_in_code(line):
    "Where a line that is too long for a phone may go on below: behind a call's bracket, before a method of what it gives, not behind a minus; spaces before a remark go"
    line = re.sub(rf'(<span class="op">-</span>[A-Za-z_]\w*|{UNBROKEN})', WHOLE, line)
    line = re.sub(r'(?<=[)\]])(?:<span class="op">)?\.(?=(?:</span>)?[A-Za-z_])', r"<wbr>\g<0>", line)
    line = re.sub(r"(?<=[\w)\]>])[(\[](?=(?:<[^>]*>)*[^\s)\]<])|(?<=\w)/(?=\w)", r"\g<0><wbr>", line)
    return re.sub(r'(?<=  )( +)(?=<span class="co">)', r'<span class="gap">\1</span>', line)

def breaks_in_names(m):
    "Where a long name in a table or a heading may go on below: behind an underscore or a bracket, before a point or a capital"
    def joints(name):
        if len(html.unescape(name[0])) < LONG: return name[0]
        return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[a-z0-9]_)(?=[A-Za-z0-9])|(?<=[\w(\[][(\[=])(?=[\w&\"'])|(?<=[\w)\]])(?=\.[A-Za-z_])", "<wbr>", name[0])
    return m[1] + re.sub(r"\S+", joints, m[2])

def unbroken(m):
    "Neither an option of a command nor a number is cut in two behind its minus"
    return m[1] + re.sub(f"({UNBROKEN})", WHOLE, m[2])

def picture_size(m):
    "A recorded picture gets the size that its inches ask for, so that text has one size in all of them"
    picture = Image.open(io.BytesIO(base64.b64decode(m[2])))
    if "dpi" not in picture.info: return m[0]
    width, height = (round(pixels / dpi * INCH) for pixels, dpi in zip(picture.size, picture.info["dpi"]))
    return f'{m[1]}{m[2]}" width="{width}" height="{height}" style="--width: {width}px"'

def columns(m):
    "Output that is set in columns keeps its lines whole, and scrolls where the page is narrow"
    return f'<pre class="columns" tabindex="0">{m[1]}</pre>' if len(re.findall(r"\S {2,}\S|[│┃|] ", m[1])) > 2 else m[0]

def tidy(text):
    "What the renderer leaves to wish for on a page by those who do not use a mouse or do not see"
    text = re.sub(r'<img (?![^>]*\balt=)', '<img alt="" ', text)
    text = re.sub(r'(<img [^>]*?src="data:image/png;base64,)([^"]+)"', picture_size, text)
    text = re.sub(r'<pre(?![^>]*tabindex)|<div class="sd-table"|<span class="math display"', r'\g<0> tabindex="0"', text)     # what scrolls can be reached by the keyboard
    text = re.sub(r'<pre tabindex="0">(<code>.*?</code>)</pre>', columns, text, flags=re.S)
    text = re.sub(r"(<(?:h[2-4]|a [^>]*data-scroll-target=)[^>]*>)([\w.]+)(?=</)", breaks_in_names, text)
    text = re.sub(r"<t[dh]\b.*?</t[dh]>", lambda m: re.sub(r"(<code>)([^<]*)", breaks_in_names, m[0]), text, flags=re.S)
    text = re.sub(r"(<code>)([^<]*)", unbroken, text)
    text = re.sub(r'(<a [^>]*sidebar-item-toggle[^>]*) role="navigation"', r'\1 role="button"', text)
    return re.sub(r'(<code class="sourceCode[^>]*>)(.*?)(</code></pre>)', code_lines, text, flags=re.S)

def add_sources(site, cfg):
    "At its foot, a page that is a notebook says which, and how to open it; a chapter has its number before its title"
    for source, page in site.pages.items():
        name = str(source)
        if not name.endswith(".ipynb") or name == cfg.readme_nb or name.startswith("api"): continue
        raw = cfg.git_url.replace("github.com", "raw.githubusercontent.com")
        line = (f'<p class="notebook">This page is the notebook <a href="{cfg.git_url}/blob/{cfg.branch}/nbs/{name}">{name}</a>: '
                f'<a href="{cfg.git_url}/edit/{cfg.branch}/nbs/{name}">edit this page</a>, <a href="{raw}/{cfg.branch}/nbs/{name}" download>download the notebook</a>'
                + (f', <a href="https://colab.research.google.com/github/{cfg.user}/{cfg.repo}/blob/{cfg.branch}/nbs/{name}">open it in Colab</a>' if name.startswith("tutorials/") else "") +
                f'. In a clone, <code>make lab FILE={name}</code> opens it in Jupyter.</p>')
        path = site.out / page.out
        before, top, after = path.read_text(encoding="utf-8").rpartition('<a onclick="window.scrollTo(0, 0)')
        number = f'<span class="chapter-number">{contents.number_of(name)}</span> ' if contents.volume_of(name) else ""
        path.write_text(before.replace('<h1 class="title">', f'<h1 class="title">{number}', 1) + line + top + after, encoding="utf-8")

def add_citations(out):
    "Below each entry of the bibliography, the pages that cite it"
    target, cited = out / "references.html", {}
    if not target.exists(): return
    for p in sorted(out.rglob("*.html")):
        if p == target: continue
        text, here = p.read_text(encoding="utf-8"), p.relative_to(out).as_posix()
        title = re.search(r"<h1[^>]*>(.*?)</h1>", text, re.S)
        for key in dict.fromkeys(re.findall(r'href="(?:\.\./|\./)*references\.html#([\w.-]+)"', text)):
            cited.setdefault(key, []).append(f'<a href="{here}">{re.sub(r"<[^>]*>", "", title[1]).strip() if title else here}</a>')
    def entry(m): return m[0] + (f'<p class="cited">Cited in {", ".join(cited[m[1]])}.</p>\n' if m[1] in cited else "")
    rewrite(target, lambda text: re.sub(r'<section id="([\w.-]+)" class="level3[^>]*>(?:(?!</section>).)*', entry, text, flags=re.S))

MOVED = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title} has moved</title>
<meta http-equiv="refresh" content="1; url={to}">
<link rel="canonical" href="{to}">
<script>location.replace({go})</script>
</head>
<body><h1>{title} has moved</h1><p>It is at <a href="{to}">{to}</a> now.</p></body>
</html>
"""

def answer_at_old_addresses(site):
    """A page that moved says in its front matter where it stood, `aliases: [/old.html]`, as Quarto reads it: whoever asks there is sent on.
    So is whoever asks for a notebook that is no page, to the one that tells of it"""
    def send_on(old, to, title, anchor=""):
        path = site.out / old.lstrip("/")
        if path.exists(): sys.exit(f"{to} says that it stood at {old}, where another page stands")
        to = Path(os.path.relpath(to, PurePosixPath(old.lstrip("/")).parent)).as_posix() + (f"#{anchor}" if anchor else "")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(MOVED.format(title=title, to=to, go=json.dumps(to) + ("" if anchor else " + location.hash")), encoding="utf-8")
    for page in site.pages.values():
        for old in page.front.get("aliases") or (): send_on(old, page.out, page.front.get("title", page.out.stem))
    for notebook in contents.elsewhere():
        (page, anchor), (title, _, before) = contents.home(notebook), contents.opening(notebook)
        for old in (contents.address(notebook), *before): send_on(old, contents.address(page), title, anchor)

def write_readme(site, cfg):
    "README.md from the home page; its links lead to the notebooks, its pictures lie in nbs/images/"
    root, nbs, page = cfg.config_path, cfg.nbs_path, site.pages[PurePosixPath(cfg.readme_nb)]
    def link(href, page):
        path, _, anchor = href.removeprefix(contents.repository("")).partition("#")
        if not (nbs / path).is_file(): return href
        if Path(path).stem == "api": return f"{site.project.website['site-url']}/api.html"       # it has no content but on the site
        return (nbs / path).resolve().relative_to(root.resolve()).as_posix() + (f"#{anchor}" if anchor else "")
    site.llms_link = link
    text, files = site.llms_copy(page)
    text = re.sub(r"<!-- WARNING:.*?-->\n*", "", text)
    text = re.sub(r"```\{=html\}\n.*?```\n\n.*?\n\n", "", text, flags=re.S)       # what lives on the page only, and the paragraph that speaks of it
    for name, data in files.items():
        to = nbs / "images" / Path(name).name
        to.parent.mkdir(exist_ok=True)
        to.write_bytes(data)
        text = text.replace(name, to.relative_to(root).as_posix())
    (root / "README.md").write_text(f"<!-- Generated from {nbs.name}/{cfg.readme_nb} by `make docs`; edit the notebook -->\n\n{text.strip()}\n", encoding="utf-8")

def main():
    ap = repo.arguments(__doc__)
    ap.add_argument("--katex", type=Path, help="the dist/ folder of KaTeX (default: .cache/, filled once from the npm registry)")
    args, cfg, start = ap.parse_args(), get_config(), time.time()
    dist = args.katex or npm.fetch(npm.KATEX, cfg.config_path / ".cache")
    _build_modidx(); refresh_quarto_yml()
    staged = proc_nbs(force=True, n_workers=0)
    print(f"{time.time()-start:5.1f}s notebooks staged", flush=True)
    site = NbdevSite(load(staged), quiet=True)
    site.build()
    make_offline(site.out, dist)
    for p in site.out.rglob("*.html"): rewrite(p, tidy)
    add_sources(site, cfg)
    add_citations(site.out)
    finish.finish(site, cfg)
    search_index.build(site.out, {str(p.out) for p in site.pages.values() if is_internal(Path(str(p.src)))})
    answer_at_old_addresses(site)
    write_readme(site, cfg)
    shutil.rmtree(cfg.doc_path, ignore_errors=True)
    shutil.move(str(site.out), cfg.doc_path)
    print(f"{time.time()-start:5.1f}s {len(site.pages)} pages rendered", flush=True)
    problems = [w for w in site.warnings if not w.endswith(EXPECTED) and ": broken link " not in w] + check_site.check(cfg.doc_path, dist)
    for w in problems: print("problem:", w, file=sys.stderr)
    print(f"{time.time()-start:5.1f}s checked: {len(problems)} problem(s); open {cfg.doc_path / 'index.html'}")
    return int(bool(problems))

if __name__ == "__main__": sys.exit(main())
