"""What a rendered page still lacks: navigation for keyboards and phones, anchors, links to statements, the head, the theme in use alone.

Works on the HTML that smalldocs writes; called by build_docs.py.
"""
import html, itertools, json, re, shutil
from pathlib import Path

import contents, repo
from repo import replace, rewrite

TITLE = re.compile(r'(<header id="title-block-header".*?</header>)', re.S)
SECTION = re.compile(r'<a class="sidebar-item-text sidebar-link text-start" data-bs-toggle="collapse" data-bs-target="#([\w-]+)"[^>]*aria-expanded="(\w+)"[^>]*>(.*?)</a>'
                     r'<a class="sidebar-item-toggle.*?</a>')
TOGGLE = re.compile(r'<a class="quarto-color-scheme-toggle nav-link"[^>]*>(.*?)</a>')
THEMES = re.compile(r'(<link rel="stylesheet" href="[^"]*" data-mode="(?:light|dark)"[^>]*>){2}')
LABELS = [('<nav class="navbar ', '<nav aria-label="Site" class="navbar '), ('<nav id="quarto-sidebar"', '<nav aria-label="Pages" id="quarto-sidebar"'),
          ('<nav class="page-navigation"', '<nav aria-label="Previous and next page" class="page-navigation"'),
          ('id="quarto-margin-sidebar"', 'id="quarto-margin-sidebar" role="complementary" aria-label="About this page"')]

def section_button(m):
    "The name of a section of the sidebar is one button that opens and closes it"
    return f'<button type="button" class="sidebar-section-button sidebar-link" aria-controls="{m[1]}" aria-expanded="{m[2]}">{m[3]}<i class="bi bi-chevron-right" aria-hidden="true"></i></button>'

def phone_contents(text):
    "The table of contents a second time, folded, for screens without a margin"
    found = re.search(r'<nav id="TOC"[^>]*>\s*<h2[^>]*>.*?</h2>(.*?)</nav>', text, re.S)
    if not found: return text
    links = re.sub(r' (?:id|class|data-scroll-target)="[^"]*"', "", found[1])
    return TITLE.sub(lambda m: f'{m[1]}<details class="toc-phone"><summary>On this page</summary>{links}</details>', text, count=1)

def navigation(text):
    "Buttons where something is pressed, names for the landmarks, a link that skips the navigation"
    text = SECTION.sub(section_button, text)
    text = TOGGLE.sub(r'<button type="button" class="quarto-color-scheme-toggle nav-link" title="Switch between light and dark" aria-label="Switch between light and dark" onclick="window.smalldocsToggleScheme()">\1</button>', text)
    text = re.sub(r'<a onclick="window.scrollTo\(0, 0\); return false;" role="button" id="quarto-back-to-top">(.*?)</a>', r'<button type="button" onclick="window.scrollTo(0, 0)" id="quarto-back-to-top">\1</button>', text)
    text = re.sub(r'<nav class="quarto-secondary-nav">(.*?</nav>.*?)</nav></header>', r'<div class="quarto-secondary-nav">\1</div></header>', text, flags=re.S)
    text = re.sub(r'(<button class="navbar-toggler"[^>]*?) data-bs-toggle="collapse" data-bs-target="#navbarCollapse"', r"\1", text)
    for old, new in LABELS: text = text.replace(old, new)
    text = re.sub(r'(<nav id="TOC")', r'\1 aria-label="On this page"', text)
    text = text.replace('<main class="content"', '<main tabindex="-1" class="content"', 1)
    return re.sub(r"(<body[^>]*>)", r'\1<a class="skip-link" href="#quarto-document-content">Skip to the text</a>', text, count=1)

# ------------------------------------------------------------------ the head

THEME = """<script>(function(d){var s=null;try{s=localStorage.getItem('smalldocs-scheme')}catch(e){}
var alt=s?s==='alternate':matchMedia('(prefers-color-scheme: dark)').matches;if(alt){d.dataset.scheme='alternate';d.classList.add('quarto-dark')}
document.write('<link rel="stylesheet" class="quarto-color-scheme" href="%sthemes/'+(alt?'darkly':'cosmo')+'.min.css">')})(document.documentElement)</script>
<noscript><link rel="stylesheet" href="%sthemes/cosmo.min.css"><style>.sidebar-section.collapse { display: block }</style></noscript>"""

def first_words(text):
    "The first paragraph of a page that has no description"
    found = re.search(r"<main.*?<p>(.*?)</p>", text, re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", found[1])).split())[:160] if found else ""

def head(text, name, site_url, up, title, about):
    "One theme, no icon font, nothing that a page does not need; where the page lives, and what others show of it"
    libs = f"{up}site_libs/"
    text = THEMES.sub(lambda m: THEME.replace("%s", libs), text)
    text = re.sub(r'<link rel="stylesheet" href="[^"]*bootstrap-icons[^"]*">|<script src="[^"]*(?:bootstrap\.bundle|fuse)\.min\.js"></script>', "", text)
    text = re.sub(r"<script>\(function\(\)\{var d=document\.documentElement,s=null.*?</script>", "", text, flags=re.S)
    address, card = f"{site_url}/{'' if name == 'index.html' else name}", f"{site_url}/images/card.png"
    more = [f'<link rel="canonical" href="{address}">'] + [f'<meta property="og:{k}" content="{html.escape(v)}">' for k, v in
            (("title", title), ("description", about), ("image", card), ("url", address), ("type", "article"), ("site_name", "softsortlib")) if v]
    if about and '<meta name="description"' not in text: more.append(f'<meta name="description" content="{html.escape(about)}">')
    return text.replace("</head>", "".join(more) + '<meta name="twitter:card" content="summary_large_image"></head>', 1)

# ------------------------------------------------------------------ statements

DEFINED = re.compile(r"<strong>((?:Prop|Theorem|Lemma|Corollary) ([A-Z]\d+\.\d+)[^<]*)</strong>")
EQUATION = re.compile(r'<span class="math display"((?:(?!>).)*)>((?:(?!</span>).)*?\\tag\{([A-Z]\d+\.\d+)\})', re.S)
CITED = re.compile(r"\b(Prop|Theorem|Lemma|Corollary) ([A-Z]\d+\.\d+)|\(([A-Z]\d+\.\d+)\)")
OPAQUE = {"a", "script", "style", "svg", "pre", "code", "h1", "h2", "h3", "title", "button", "summary", "nav", "head"}

def anchor_statements(text, name, known, words):
    "Propositions and numbered equations get an id; `known` learns where each is, `words` what it says"
    def anchored(m, key, shown, before, until, close):
        "What stands for a match that is the first of its key; `words` gets what the page says up to `until`"
        if key in known: return m[0]
        known[key], rest = f"{name}#{key}", m.string[m.end():]
        words[key] = before + rest[:rest.find(until)] + close
        return shown
    def statement(m): return anchored(m, key := f"prop-{m[2]}", f'<strong id="{key}">{m[1]}</strong>', m[0], "</p>", "")
    def equation(m): return anchored(m, key := f"eq-{m[3]}", f'<span id="{key}" class="math display"{m[1]}>{m[2]}', f'<span class="math display">{m[2]}', "</span>", "</span>")
    return EQUATION.sub(equation, DEFINED.sub(statement, text))

def link_statements(text, name, known):
    "Where prose names a proposition or the number of an equation, it leads there"
    up, stack, out = "../" * name.count("/"), [], []
    def link(m):
        key = f"prop-{m[2]}" if m[2] else f"eq-{m[3]}"
        if key not in known: return m[0]
        page, _, anchor = known[key].partition("#")
        to = "" if page == name else page if page.startswith("https:") else up + page
        return f'<a class="ref" href="{to}#{anchor}">{m[0]}</a>'
    for part in re.split(r"(<[^>]*>)", text):
        if part.startswith("<"):
            tag = re.match(r"</?([a-zA-Z0-9]+)", part)
            tag = tag and tag[1].lower()
            skip = tag in OPAQUE or tag == "span" and 'class="math' in part or tag == "strong" and 'id="prop-' in part
            if part.startswith("</"):
                if stack and stack[-1] == tag: stack.pop()
            elif tag and (skip or stack and tag == stack[-1]) and not part.endswith("/>"): stack.append(tag)
            out.append(part)
        else: out.append(part if stack else CITED.sub(link, part))
    return "".join(out)

def statements_elsewhere(known, words):
    "Statements and numbered equations of notebooks that are no pages: `known` learns where they are read, `words` what they say"
    def shown(text):
        text = re.sub(r"\$\$(.+?)\$\$", r"\\[\1\\]", html.escape(text), flags=re.S)
        text = re.sub(r"(?<!\\)\$([^$]+)\$", r"\\(\1\\)", re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text, flags=re.S))
        return re.sub(r"\[([^\[\]]*)\]\([^()\s]*\)", r"\1", text)
    for notebook in contents.elsewhere():
        prose = "\n\n".join(repo.sources(repo.NBS / notebook, "markdown"))
        found = [(f"prop-{m[1]}", m[0]) for m in re.finditer(r"^\*\*(?:Prop|Theorem|Lemma|Corollary) ([A-Z]\d+\.\d+)(?:.+\n?)+", prose, re.M)]
        found += [(f"eq-{m[1]}", m[0]) for m in re.finditer(r"\$\$(?:(?!\$\$).)*?\\tag\{([A-Z]\d+\.\d+)\}(?:(?!\$\$).)*\$\$", prose, re.S)]
        for key, said in found: known[key], words[key] = f"{contents.repository(notebook)}#{key}", shown(said)

def sources(text):
    "What each entry of the bibliography says, by its anchor"
    found = re.findall(r'<section id="([\w.-]+)" class="level3[^>]*>\s*<h3[^>]*>(.*?)</h3>\s*<p>(.*?)</p>', text, re.S)
    return {f"references.html#{key}": f"<strong>{re.sub(r'<[^>]*>', '', title)}</strong><br>{re.sub(r'</?a[^>]*>', '', first)}" for key, title, first in found}

TEX = {r"\tau": "tau", r"\le": "≤", r"\ge": "≥", r"\sum": "sum", r"\to": "→", r"\infty": "∞", r"\in": "in", r"\cdot": "·", r"\times": "×", r"\sigma": "sigma", r"\pi": "pi", r"\hat": "", r"\frac": ""}

def drawings(text):
    "Each drawing of a cell (softsortlib.lab.drawings) with the page's colours, its text as a label, and names that are no other drawing's"
    numbers = itertools.count(1)
    def inline(m):
        name, svg = f"drawing{next(numbers)}", re.sub(r"<style>svg\.drawing.*?</style>", "", m[0], count=1, flags=re.S)
        svg = re.sub(r' id="([\w.-]+)"', rf' id="{name}-\1"', svg)
        svg = re.sub(r'(url\(|href=")#([\w.-]+)', rf"\g<1>#{name}-\g<2>", svg)
        width, said = re.search(r' width="([\d.]+)pt"', svg)[1], m[1] or ""
        return re.sub('<svg (alt="[^"]*" )?', f'<svg role="img" aria-label="{said}" style="--width: {width}pt" ', svg, count=1)
    return re.sub(r'<svg (?:alt="([^"]*)" )?class="drawing".*?</svg>', inline, text, flags=re.S)

SECTION_TAGS = re.compile(r"(<section([^>]*)>)\s*(<h\d[^>]*>.*?</h\d>)?|</section>", re.S)

def folded_sections(text):
    "A section whose heading says `{.folded}` is closed until the reader opens it by its heading: what the package needs, and the argument does not"
    closes = []
    def tag(m):
        if m[0] == "</section>": return "</details></section>" if closes and closes.pop() else m[0]
        closes.append(bool(re.search(r'class="[^"]*\bfolded\b', m[2])))
        heading = (m[3] or "").replace(' class="anchored"', "")        # which would get a link, a control inside of a control
        return f'{m[1]}<details class="section-fold"><summary>{heading}</summary>' if closes[-1] else m[0]
    return SECTION_TAGS.sub(tag, text)

NAMED = r"code of the picture|code|imports|test(?: of [^<]*)?, \d+ lines"     # by rule, not by the chapter
PRINTED = r'\s*<div class="cell-output cell-output-(?:stdout|display)">\s*<pre[^>]*>(?:(?!</pre>).)*</pre>\s*</div>'
CODE_FOLD = re.compile(rf'(<details class="code-fold">\s*<summary>(?!(?:{NAMED})</summary>)[^<]*</summary>(?:(?!</details>).)*)</details>((?:{PRINTED})+)', re.S)

def folded_outputs(text):
    "What a cell prints goes behind the fold that its chapter asks for with `#| fold WHY`: without its code it says nothing"
    return CODE_FOLD.sub(r"\1\2</details>", text)

CALLOUT = re.compile(r'<div class="(callout [^"]*)"><div class="callout-header[^"]*" data-bs-toggle="collapse"[^>]*aria-expanded="(\w+)">(?:(?!<div id=).)*?<div class="callout-title-container[^"]*">'
                     r'(.*?)</div><div class="callout-btn-toggle.*?</div></div><div id="([^"]*)" class="callout-collapse[^"]*">', re.S)

def callouts(text):
    "A callout that opens and closes does so without a script"
    while m := CALLOUT.search(text):
        depth = 2                                  # its own box and the box of what it says
        for tag in re.finditer(r"<div\b|</div>", text[m.end():]):
            depth += 1 if tag[0] == "<div" else -1
            if not depth: break
        end = m.end() + tag.start()
        head = f'<details class="{m[1]}"{" open" * (m[2] == "true")}><summary class="callout-header">{m[3]}</summary><div id="{m[4]}">'
        text = text[:m.start()] + head + text[m.end():end] + "</details>" + text[end + len("</div>"):]
    return text

def plain(text):
    "The text of a search entry without raw formulas: short ones in plain letters, displayed ones left out"
    def letters(m): return re.sub(r"[{}\\$]|\s+(?=\s)", "", re.sub(r"\\[a-zA-Z]+", lambda c: TEX.get(c[0], ""), m[1]))
    text = re.sub(r"\\\[.*?\\\]", " ", text, flags=re.S)
    return re.sub(r"\\\((.*?)\\\)", letters, text, flags=re.S)

# ------------------------------------------------------------------ stylesheets

def rules(css):
    "The top-level rules of a stylesheet: (selector, body)"
    at, css = 0, re.sub(r"/\*.*?\*/", "", css, flags=re.S)
    while (brace := css.find("{", at)) >= 0:
        depth, end = 1, brace + 1
        while depth: depth, end = depth + {"{": 1, "}": -1}.get(css[end], 0), end + 1
        yield css[at:brace].strip(), css[brace + 1:end - 1]
        at = end

def purge(css, used):
    "A stylesheet without the rules whose classes and ids occur on no page"
    out = []
    for selector, body in rules(css):
        while selector.startswith(("@charset", "@import")): selector = selector.partition(";")[2].strip()
        if selector.startswith(("@media", "@supports")): body, keep = purge(body, used), [selector]
        elif selector.startswith("@"): keep = [selector]
        else: keep = [s for s in re.split(r",(?![^(]*\))", selector) if set(re.findall(r"[.#]([A-Za-z][\w-]*)", re.sub(r":(?:not|is|where)\([^)]*\)", "", s))) <= used]
        if keep and body.strip(): out.append(f"{','.join(keep)}{{{body}}}")
    return "".join(out)

def words_of(out):
    "Every word that a page or a script may use as a class or an id"
    used = set()
    for p in out.rglob("*.html"): used |= {w for value in re.findall(r'(?:class|id)="([^"]*)"', p.read_text(encoding="utf-8")) for w in value.split()}
    for p in out.rglob("*.js"):
        if "katex" not in p.parts and p.name != "search.js": used |= set(re.findall(r"[A-Za-z][\w-]+", p.read_text(encoding="utf-8")))
    return used

# ------------------------------------------------------------------ all of it

def not_found(out, site_url):
    "A page for addresses that do not exist: the shell of the home page, whose links hold at any depth"
    text = (out / "index.html").read_text(encoding="utf-8")
    base = "/" + site_url.split("/", 3)[3].strip("/") + "/" if site_url.count("/") > 2 else "/"
    body = ('<h1 class="title">There is no such page</h1><p>It may have moved when the book got its two volumes. The search box above finds it by its words, and '
            '<a href="index.html">the home page</a> and the list of pages lead to the rest.</p>')
    text = re.sub(r"(<main[^>]*>).*?(</main>)", lambda m: m[1] + body + m[2], text, flags=re.S)
    text = re.sub(r'<(?:div|nav)[^>]*id="quarto-margin-sidebar".*?(?=<main)', "", text, flags=re.S)
    text = re.sub(r"<title>.*?</title>", "<title>No such page – softsortlib</title>", text).replace("<head>", f'<head><base href="{base}"><meta name="robots" content="noindex">', 1)
    text = re.sub(r'<link rel="canonical"[^>]*>|<meta property="og:url"[^>]*>', "", text)
    (out / "404.html").write_text(text.replace('href="#quarto-document-content"', 'href="404.html#quarto-document-content"'), encoding="utf-8")

def finish(site, cfg):
    "Every page in turn, then what they share"
    out, url, known, words = site.out, str(site.project.website["site-url"]).rstrip("/"), {}, {}
    pages = {str(p.out): p for p in site.pages.values()}
    statements_elsewhere(known, words)
    for name in pages: rewrite(out / name, anchor_statements, name, known, words)
    for name, page in pages.items():
        text, up = (out / name).read_text(encoding="utf-8"), "../" * name.count("/")
        text = drawings(callouts(folded_sections(folded_outputs(link_statements(text, name, known)))))
        text = head(navigation(phone_contents(text)), name, url, up, page.title, str(page.front.get("description") or first_words(text)))
        text = text.replace('<div class="nav-footer-left">softsortlib', f'<div class="nav-footer-left">softsortlib {cfg.version}', 1)
        (out / name).write_text(text, encoding="utf-8")
    notes = {known[key]: said for key, said in words.items()}
    if (out / "references.html").exists(): notes |= sources((out / "references.html").read_text(encoding="utf-8"))
    (out / "notes.js").write_text(f"window.siteNotes = {json.dumps(notes, ensure_ascii=False)};\n", encoding="utf-8")
    not_found(out, url)
    scripts = out / "site_libs" / "smalldocs.js"
    start = "  const setScheme = (alt) => {"
    replace(scripts, start, "  const setScheme = (alt) => {\n    if (window.siteTheme) window.siteTheme(alt, () => markDark());")
    replace(scripts, '$$("link.quarto-color-scheme").forEach((l) => { l.media = l.classList.contains("quarto-color-alternate") === alt ? "all" : "not all"; });', "")
    replace(scripts, 'if ($$("link.quarto-color-scheme").length > 1) {', 'if ($$("link.quarto-color-scheme").length) {')
    replace(scripts, '<div class="search-result-title">${', '<div class="search-result-title"><span class="search-kind">${e.kind || ""}</span>${')
    replace(scripts, '<div class="search-none">No results</div>', '<div class="search-none" role="status">Nothing found for these words</div>')
    theme, reader = ((Path(__file__).parent / name).read_text(encoding="utf-8") for name in ("theme.js", "reader.js"))
    rewrite(scripts, lambda code: theme + code + reader)
    used = words_of(out) | {"quarto-dark"}
    for p in [*(out / "site_libs" / "themes").rglob("*.css"), out / "site_libs" / "smalldocs.css"]: rewrite(p, purge, used)
    for unused in ("bootstrap-icons", "bootstrap"): shutil.rmtree(out / "site_libs" / unused)
