"""The bibliography: every entry is complete, and entries and chapters point at each other."""
import json
import re
from pathlib import Path

import pytest

NBS = Path(__file__).resolve().parent.parent / "nbs"
LINK = re.compile(r"\]\((?:\.\./)?references\.ipynb#([\w-]+)\)")
HEADING = re.compile(r"^#{2,3} (.+)$", re.M)


def prose(path):
    "The text of a notebook, lines joined: a link may break over two of them"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join("".join(c["source"]) for c in cells)


def key(heading): return re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-"))


def entries(text):
    "key -> the text of an entry, up to the next heading"
    pieces = re.split(r"^(#{2,3}) (.+)$", text, flags=re.M)
    return {key(name): body for level, name, body in zip(pieces[1::3], pieces[2::3], pieces[3::3]) if level == "###"}


def links(folder):
    "key -> the pages that link to it"
    found = {}
    for path in sorted(p for p in folder.rglob("*.ipynb") if not any(part[0] in "._" for part in p.relative_to(folder).parts)):
        for name in LINK.findall(prose(path)): found.setdefault(name, set()).add(path.relative_to(folder).as_posix())
    return found


REFERENCES = prose(NBS / "references.ipynb")
ENTRIES = entries(REFERENCES)


def flaws(body):
    "What an entry lacks of: authors, linked title, venue, year, and what it gave."
    lines = [" ".join(p.split()) for p in body.strip().split("\n\n")]
    found = re.match(r"(?P<authors>.+?)\. \[(?P<title>[^\]]+)\]\((?P<link>https?://[^\s]+)\)\. (?P<venue>.+)$", lines[0])
    if not found: return ["it does not read: Authors. [Title](link). Venue, year."]
    missing = []
    if not re.search(r"\w+ \w+", found["authors"]): missing.append("authors with their first names")
    if not re.search(r"[A-Za-z]{4,}", found["venue"]): missing.append("a venue")
    if not re.search(r"\b(19|20)\d\d\.", found["venue"]): missing.append("a year")
    if len(lines) < 2 or not lines[1].endswith("."): missing.append("a sentence on what it gave")
    return missing


@pytest.mark.parametrize("name", ENTRIES)
def test_entry_is_complete(name):
    assert not flaws(ENTRIES[name])


@pytest.mark.parametrize("body, complaint", [
    ("Ann Author. A title. A journal, 2001.\n\nWhat it gave.", "does not read"),
    ("Author. [A title](https://example.org). A journal, 2001.\n\nWhat it gave.", "first names"),
    ("Ann Author. [A title](https://example.org). 2001.\n\nWhat it gave.", "a venue"),
    ("Ann Author. [A title](https://example.org). A journal.\n\nWhat it gave.", "a year"),
    ("Ann Author. [A title](https://example.org). A journal, 2001.", "what it gave"),
])
def test_an_incomplete_entry_is_found(body, complaint):
    assert any(complaint in flaw for flaw in flaws(body))


def test_every_link_has_its_entry():
    headings = {key(h) for h in HEADING.findall(REFERENCES)}
    assert not {name: sorted(pages) for name, pages in links(NBS).items() if name not in headings}


def test_every_entry_is_linked_from_a_chapter():
    "From a page that says what it took, that is: the table of notation and the page of choices do not count."
    found = {name: pages - {"references.ipynb", "notation.ipynb", "choosing.ipynb", "index.ipynb"} for name, pages in links(NBS).items()}
    assert not [name for name in ENTRIES if not found.get(name)]


def test_no_two_entries_share_a_link():
    titles = re.findall(r"^\[[^\]]+\]\((https?://[^\s]+)\)\.$", REFERENCES, re.M)
    assert len(titles) >= len(ENTRIES) and len(titles) == len(set(titles))


CITED = re.compile(r"\b([A-Z]\w+)(?:(?:, [A-Z]\w+)* (?:&|and) ([A-Z]\w+)| et al\.)? \(?((?:19|20)\d\d)\b")


def test_who_is_cited_by_name_and_year_has_an_entry():
    "In prose and docstrings: `Name & Other 2020` and `Name et al. 2019`, unless the name itself is a link to a paper elsewhere."
    def reads(name, year): return any(name in body and (year in body or str(int(year) + 1) in body) for body in ENTRIES.values())   # a preprint may be a year older
    assert CITED.search("after Doe & Roe 2001") and CITED.search("(Doe et al. 2001)") and not reads("Doe", "2001")
    def text(path): return re.sub(r"\[[^\]]+\]\(https?://[^)]+\)", "", " ".join(prose(path).split()))
    named = {(m[1], m[3], path.name) for path in sorted(NBS.rglob("*.ipynb")) if not any(part[0] in "._" for part in path.relative_to(NBS).parts)
             for m in CITED.finditer(text(path)) if m[2] or "et al" in m[0]}
    assert not [c for c in sorted(named) if not reads(c[0], c[1])]
