"""Put every page into the sidebar of _quarto.yml, in the order of contents.py, and leave out of the site what has no page of its own.

    python tools/sidebar.py
"""
import json
import sys

import repo
from contents import NBS, VOLUMES, chapters, elsewhere, is_page, number_of, opening

TUTORIALS = ("learn_from_order", "spearman_loss", "ranking_loss", "masks", "robust_regression", "median_filter",     # from simple to
             "topk_layer", "metric_knn", "conformal_training", "sort_a_million", "point_clouds", "arrange_colours", "torch_compile", "several_devices", "ranking_across_devices", "*")                   # involved
API = ("functional", "core", "rowwise", "networks", "transport", "ranks", "selection", "sampling", "distributed", "ragged", "losses", "testing", "lab")                    # in the order of use

def numbered(some):
    "The chapters of a part, with their numbers; one that is not there is left out"
    return [(f"{number_of(page)} {opening(page)[0]}", page) for page in (chapters()[chapter] for chapter in some if chapter in chapters())]

def parts(volume, contents): return [("Contents", contents), *((title, numbered(some)) for title, _, some in VOLUMES[volume])]

PLAN = [                                                    # (title, page) or (title, globs) or (title, parts)
    ("Start", [("Home", "index.ipynb"), ("Ten-minute tour", "tour.ipynb"), ("Playground", "playground.qmd"), ("Choosing an operator", "choosing.ipynb"), ("How-to", "howto.ipynb")]),
    ("Tutorials", [f"tutorials/{name}.ipynb" for name in TUTORIALS]),
    ("Volume I: the book", parts("Volume I", "book.ipynb")),
    ("Volume II: mechanisms", parts("Volume II", "mechanisms.ipynb")),
    ("API", ["api.ipynb", *(f"api/{part}.ipynb" for part in API), "api/*.ipynb"]),
    ("Results", [("What of the papers is here", "papers.ipynb"), ("Experiments", ["experiments/*.ipynb"]), ("Benchmarks", ["benchmarks/*.ipynb"]), ("The laboratory", "lab/index.ipynb")]),
    ("Project", ["statements.ipynb", "methods.ipynb", "notation.ipynb", "references.ipynb", "citing.ipynb", "package.ipynb", "changelog.md", "contributing.md", "testing.ipynb", "house.md"]),
]

def entries(plan, nbs, used, pad=""):
    "The lines of the sidebar for a plan; a section without a page is left out"
    for title, what in plan:
        if isinstance(what, str):
            if not (nbs / what).exists(): continue
            used.add(what)
            yield from (f"{pad}- text: {json.dumps(title, ensure_ascii=False) if set(title) & set(':#`') or title[0].isdigit() else title}", f"{pad}  href: {what}")
            continue
        if isinstance(what[0], tuple): inner = list(entries(what, nbs, used, pad + "    "))
        else:
            found = [p.relative_to(nbs).as_posix() for glob in what for p in sorted(nbs.glob(glob)) if is_page(p.relative_to(nbs).as_posix())]
            inner = [f"{pad}    - {p}" for p in dict.fromkeys(found) if p not in used]
            used.update(found)
        if inner: yield from (f"{pad}- section: {json.dumps(title) if ':' in title else title}", f"{pad}  contents:", *inner)

def between(text, start, end, lines):
    "A text with other lines between two marks that stay"
    head, rest = text.split(start, 1)
    return head + start + "".join(f"{line}\n" for line in lines) + rest[rest.index(end):]

def main():
    config, used = repo.ROOT / "_quarto.yml", set()
    text = between(config.read_text(encoding="utf-8"), "  sidebar:\n    style: floating\n    collapse-level: 1\n    contents:\n", "\nformat:", [f"      {line}" for line in entries(PLAN, NBS, used)])
    text = between(text, "  render:\n", "\n# nbs/nbdev.yml", [f'    - "{pattern}"' for pattern in ("*.ipynb", "*.qmd", "*.md", "!lab/*_*.ipynb", *(f"!{p}" for p in elsewhere() if not p.startswith("lab/")))])
    config.write_text(text, encoding="utf-8")
    left = [name for p in repo.notebooks() if is_page(name := p.relative_to(NBS).as_posix()) and name not in used]
    if left: sys.exit(f"no place in the plan of tools/sidebar.py for {', '.join(left)}")

if __name__ == "__main__": main()
