"""The index of the search box, search.js: for each word, the sections where it occurs and how much it says about them.

A word in a title counts more than one in a heading, a heading more than a statement, a statement more than running text,
and code counts only by the names that it uses. search.js of this folder reads it; `stem` is the same there.
"""
import html, json, math, re
from collections import Counter, defaultdict

import finish

WEIGHT = dict(title=12, name=12, heading=9, description=6, part=5, address=5, term=5, statement=4, answer=3, text=2, code=1)
KEPT = dict(chapter=30, internals=10, result=18)          # words of running text that a section may have in the index
STOP = set("a about after all also an and any are as at be been but by can could did do does each every for from had has have here how i if in into is it its just like may me might more most must my no not now of on one only or other our out over own same see shall she should so some such than that the their them then there these they this those to too two under up use used uses using very was we were what when where which while who whose why will with would you your".split())
AMERICAN = (("ization", "isation"), ("izing", "ising"), ("ized", "ised"), ("izer", "iser"), ("ize", "ise"), ("color", "colour"), ("neighbor", "neighbour"), ("behavior", "behaviour"), ("labeled", "labelled"))
NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)+|[A-Z][a-z0-9]+(?:[A-Z][A-Za-z0-9]*)+|[A-Z]{2,}[a-z]+\w*")

def stem(word):
    "A word without its plural, and without the endings of a verb"
    for american, british in AMERICAN: word = word.replace(american, british)
    if len(word) > 4 and word.endswith("ies"): word = word[:-3] + "y"
    elif len(word) > 3 and word.endswith("s") and (len(word) == 4 or not word.endswith(("ss", "us", "is"))): word = word[:-1]
    if len(word) > 5 and word.endswith("ing"): word = word[:-3]
    elif len(word) > 4 and word.endswith("ed"): word = word[:-2]
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "sle": word = word[:-1]
    return word[:-1] if len(word) > 3 and word.endswith("e") else word

def words(text):
    "The stems of a text; top-k is one word, and a name gives itself and its parts"
    text = re.sub(r"\b([Tt]op)[- ]?([kK])\b", "topk", text)
    for token in re.findall(r"[A-Za-z0-9_]+", text):
        parts = [p for piece in token.split("_") for p in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+|\d+", piece)] if NAME.fullmatch(token) else []
        for word in [token.replace("_", ""), *(parts if len(parts) > 1 else [])]:
            word = word.lower()
            if len(word) > 1 and word not in STOP and not word.isdigit(): yield stem(word)

def strip(text):
    "Text without tags, short formulas in plain letters"
    return " ".join(finish.plain(html.unescape(re.sub(r"<[^>]*>", "", text))).split())

def sections(page):
    "(anchor, heading, html) of a rendered page; the first is the page itself"
    main = page[page.index("<main"):page.index("</main>")]
    main = re.sub(r'<svg.*?</svg>|<script.*?</script>|<nav.*?</nav>|<p class="notebook">.*?</p>|<span class="chapter-number">.*?</span>|<details class="toc-phone">.*?</details>|<img [^>]*>|<annotation.*?</annotation>', " ", main, flags=re.S)
    cuts = list(re.finditer(r"<h([1-6])([^>]*)>(.*?)</h\1>", main, re.S))
    for m, after in zip(cuts, [*cuts[1:], None]):
        anchor = re.search(r'data-anchor-id="([^"]*)"', m[2])
        yield anchor[1] if anchor else "", strip(m[3]), main[m.end():after.start() if after else len(main)]

def fields(kind, page, heading, text):
    "(what, words) of a section"
    description = re.search(r'<div class="description">(.*?)</div>', text, re.S)
    prose, code = re.sub(r"<pre.*?</pre>", " ", text, flags=re.S), " ".join(re.findall(r"<pre.*?</pre>", text, re.S))
    said = strip(prose)
    if page or not NAME.fullmatch(heading.rpartition(".")[2]): yield "title" if page else "heading", heading
    else:
        yield "name", heading.replace("_", "").lower()
        yield "part", heading
    if description: yield "description", strip(description[1])
    for strong in re.findall(r"<p>(<strong.*?)</p>", prose, re.S): yield "statement", strip(strong)[:300]
    for term in re.findall(r"<(?:em|strong)>([^<]{3,40})</", prose): yield "term", html.unescape(term)
    yield "answer" if kind in ("tutorial", "page") or page else "text", said
    yield "code", " ".join(NAME.findall(strip(code)))

def snippet(text, long):
    said = strip(re.sub(r'<pre.*?</pre>|<summary>.*?</summary>|<div class="description">.*?</div>|<figcaption.*?</figcaption>', " ", text, flags=re.S))
    return said if len(said) <= long else said[:long].rpartition(" ")[0] + " …"

def postings(found, last=0):
    "Sections and weights as one string: the step to the section in base 36, then the weight as a capital"
    digits, out = "0123456789abcdefghijklmnopqrstuvwxyz", ""
    for section, weight in sorted(found.items()):
        step, last, code = section - last, section, ""
        while True:
            code, step = digits[step % 36] + code, step // 36
            if not step: break
        out += code + chr(64 + min(26, max(1, round(weight))))
    return out

def kind_of(page, internal):
    "What sort of page an address is, as results say it"
    if page in internal or page.startswith("lab/"): return "internals"
    for kind, pattern in (("tutorial", r"tutorials/|howto"), ("API", r"api\b"), ("result", r"experiments/|benchmarks/|statements")):
        if re.match(pattern, page): return kind
    return "chapter" if "/" in page else "page"

def build(out, internal):
    "Write search.js for the pages in `out`; those in `internal` come last"
    pages, entries, where = [], [], defaultdict(dict)
    for path in sorted(out.rglob("*.html")):
        text, href = path.read_text(encoding="utf-8"), path.relative_to(out).as_posix()
        if "<main" not in text or href == "404.html": continue
        kind, number = kind_of(href, internal), len(pages)
        title = next(sections(text))[1]
        pages.append([href, title, kind])
        for k, (anchor, heading, body) in enumerate(sections(text)):
            weights, running = defaultdict(float), Counter()
            for what, said in [*fields(kind, not k, heading, body), *([] if k else [("address", href[:-5].replace("/", " ").replace("_", " "))])]:
                if what in ("answer", "text", "code"):
                    for w in words(said): running[w] += WEIGHT[what]
                else:
                    for w in set(words(said)): weights[w] = max(weights[w], WEIGHT[what])
            for w, n in running.items(): running[w] = min(7 if kind == "tutorial" else 5, 2 * math.log2(1 + n / (1 if kind == "tutorial" else 2)))
            entries.append([number, anchor, heading if k else "", snippet(body, 60 if kind in ("internals", "result") else 110), weights, running])
    spread = Counter(w for e in entries for w in {*e[4], *e[5]})
    for section, (number, _, _, _, weights, running) in enumerate(entries):
        rare = sorted(running, key=lambda w: -running[w] * math.log(len(entries) / spread[w]))
        for w in {*weights, *rare[:KEPT.get(pages[number][2], 40)]}: where[w][section] = weights.get(w, 0) + running.get(w, 0)       # a word of the title keeps what the text says of it
    index = dict(stop=sorted(STOP), spelling=AMERICAN, pages=pages, sections=[e[:4] for e in entries], words={w: postings(where[w]) for w in sorted(where)})
    (out / "search.js").write_text(f"window.searchIndex = {json.dumps(index, ensure_ascii=False, separators=(',', ':'))};\n", encoding="utf-8")
