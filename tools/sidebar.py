"""Put every notebook that exists into the sidebar of _quarto.yml, by the plan below.

    python tools/sidebar.py
"""
import re
import sys
from fnmatch import fnmatch
from pathlib import Path

root = Path(__file__).resolve().parent.parent
TUTORIALS = ("learn_from_order", "spearman_loss", "ranking_loss", "masks", "robust_regression", "median_filter",     # from simple to
             "topk_layer", "metric_knn", "conformal_training", "sort_a_million", "point_clouds", "arrange_colours", "torch_compile", "several_devices", "ranking_across_devices", "*")                   # involved
DOORS = {"core": "The soft permutation", "rowwise": "Rows by a softmax", "networks": "Sorting networks", "transport": "Optimal transport",
         "ranks": "Ranks", "selection": "The top k", "sampling": "Sampling", "distributed": "Many processes", "ragged": "Lists and files", "functional": "Functions", "losses": "Losses and layers"}
API = ("functional", "core", "rowwise", "networks", "transport", "ranks", "selection", "sampling", "distributed", "ragged", "losses", "testing", "lab")                    # in the order of use
DEFINITIONS = {"rowwise": ("1[12]", "13[0-4]"), "networks": ("2[0-4]",), "transport": ("3[0-5]",), "ranks": ("4[0-4]",), "selection": ("10[0-4]",)}     # a part's other chapters are its engine rooms

def number_of(page):
    "The number of a chapter, by its page; pages that have none come first"
    found = re.match(r"(\d{2,3})_", Path(page).name)
    return int(found[1]) if found else -1

def is_definition(page):
    "Whether a chapter defines what its part is for, not how it is made fast"
    part = Path(page).parent.name
    return part != "engine" and any(fnmatch(Path(page).name, f"{numbers}_*") for numbers in DEFINITIONS.get(part, ("*",)))

def of(part, numbers=("[0-9][0-9]", "[0-9][0-9][0-9]")): return [f"{part}/{some}_*.ipynb" for some in numbers]

PLAN = [                                                    # (title, page) or (title, globs) or (title, parts)
    ("Start", [("Home", "index.ipynb"), ("Ten-minute tour", "tour.ipynb"), ("Playground", "playground.qmd"), ("Choosing an operator", "choosing.ipynb"),
               ("What is here and what is not", "methods.ipynb")]),
    ("Tutorials and how-to", ["howto.ipynb", *(f"tutorials/{name}.ipynb" for name in TUTORIALS)]),
    ("The book", [(title, [f"{part}/index.ipynb", *(of(part, DEFINITIONS[part]) if part in DEFINITIONS else of(part))]) for part, title in DOORS.items()]),
    ("Results", [("Statements", ["statements.ipynb"]), ("Experiments", ["experiments/*.ipynb"]), ("Benchmarks", ["benchmarks/*.ipynb"]),
                 ("The laboratory", ["lab/index.ipynb", *of("lab")])]),
    ("API", ["api.ipynb", *(f"api/{part}.ipynb" for part in API), "api/*.ipynb"]),
    ("Internals", [("The engine", ["engine/index.ipynb", *of("engine")]),
                   *((f"{DOORS[part]} (engine)", of(part)) for part in DEFINITIONS)]),
    ("Project", ["citing.ipynb", "package.ipynb", "notation.ipynb", "references.ipynb", "changelog.md", "contributing.md", "07_testing.ipynb", "house.md"]),
]

def entries(plan, nbs, used, pad=""):
    "The lines of the sidebar for a plan; a section without a page is left out"
    for title, what in plan:
        if isinstance(what, str):
            if not (nbs / what).exists(): continue
            used.add(what)
            yield from (f"{pad}- text: {title}", f"{pad}  href: {what}")
            continue
        if isinstance(what[0], tuple): inner = list(entries(what, nbs, used, pad + "    "))
        else:
            found = [p.relative_to(nbs).as_posix() for glob in what for p in sorted(nbs.glob(glob))]
            inner = [f"{pad}    - {p}" for p in dict.fromkeys(found) if p not in used]
            used.update(found)
        if inner: yield from (f"{pad}- section: {title}", f"{pad}  contents:", *inner)

def main():
    config, nbs, used = root / "_quarto.yml", root / "nbs", set()
    head, rest = config.read_text(encoding="utf-8").split("  sidebar:\n    style: floating\n    collapse-level: 1\n    contents:\n")
    lines = [f"      {line}" for line in entries(PLAN, nbs, used)]
    config.write_text(f"{head}  sidebar:\n    style: floating\n    collapse-level: 1\n    contents:\n" + "\n".join(lines) + "\n" + rest[rest.index("\nformat:"):], encoding="utf-8")
    left = sorted(p.relative_to(nbs).as_posix() for p in nbs.rglob("*.ipynb") if not any(q[0] in "._" for q in p.relative_to(nbs).parts) and p.relative_to(nbs).as_posix() not in used)
    if left: sys.exit(f"no place in the plan of tools/sidebar.py for {', '.join(left)}")

if __name__ == "__main__": main()
