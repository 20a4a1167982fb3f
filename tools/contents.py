"""The order of the book: its two volumes, what each part is about, and which page tells of a notebook that is no page of the site.

A chapter is a notebook with a number, and its statements and equations begin with it: Prop 12.1 and (12.2) stand in chapter 12. The site
has the chapters below. Every other numbered notebook stays in the repository, where it runs and is tested; `home` says which page leads there.
"""
import functools, json, re
from pathlib import Path

NBS = Path(__file__).resolve().parent.parent / "nbs"
READERS = [                                                 # Volume I: (part, what it answers, chapters in the order of reading)
    ("The idea", "Sorting is a matrix. What becomes of it at a temperature, how to choose one, and how a network learns from an order alone", (0, 52, 6, 2, 50, 55)),
    ("Rows by a softmax", "Two operators make each row a softmax of one formula. Why one of them costs no more than a sort, and what separates the two", (11, 94, 12, 131, 130)),
    ("Ranks", "A rank is one plus the number of smaller scores: soften that count, take its mean under noise, or project onto the polytope of all ranks", (40, 41, 42, 44, 43, 47)),
    ("Sorting networks", "Compare fixed pairs in fixed layers, and let every swap be a weighted mean of swapping and not swapping", (20, 21, 22, 23, 24)),
    ("Optimal transport", "To sort is to carry each score to a place on a line at the lowest cost; a little entropy makes the plan smooth", (30, 31, 32, 51)),
    ("The top k", "If the order among the first k does not matter, one number for each score is enough", (100, 101, 102, 103, 104)),
    ("Random orders", "Sort hard and differentiate the expectation under noise, for any loss, even one that jumps", (4, 110, 111, 112, 113, 114)),
    ("Losses", "What to minimise if you know a relevance, a list, a class or a neighbour", (56, 120, 121, 122, 124, 125, 57, 58, 127)),
    ("Practice", "Lists of different lengths, more scores than memory holds, many processes, and an operator of your own", (155, 157, 151, 1)),
]
MECHANISMS = [                                              # Volume II: how it is made fast
    ("What everything stands on", "Loops that compile, who computes, operators that every transformation of torch understands, and a sort that never compares", (90, 91, 92, 146, 93)),
    ("Sums over all pairs", "A scan in blocks, boxes and polynomials, a tree, and sums that a second order selects", (140, 99, 144, 141)),
    ("Rows", "Five scores at once, rows in tiles outward from the diagonal, and the balancing of SoftSort", (10, 13, 187)),
    ("Ranks and thresholds", "Marks on a line, the root of a sum of steps, and the chance of a count", (46, 105, 106)),
    ("Layers and plans", "The layers of a network in the cache, and a transport plan without its matrix", (26, 36, 37)),
    ("Lists and processes", "Kernels that take offsets, and what an interval needs from the others", (173, 152)),
]
MACHINERY = (47, 94)                                        # chapters of Volume I whose long cells are a mechanism's: they are folded
VOLUMES = {"Volume I": READERS, "Volume II": MECHANISMS}
TOLD = {1: (3, 5), 11: (16, 177), 22: (25,), 47: (48,), 50: (53, 54, 165, 168), 51: (38,), 52: (167,), 55: (59, 129), 94: (95, 96, 160), 99: (97, 98, 161), 101: (107, 108, 182),
        120: (126,), 141: (123,), 144: (142, 143), 151: (150, 154), 155: (156,), 36: (39, 179, 192), 187: (190,)}     # chapter -> notebooks of the repository that its page names
REST = dict(core=0, rowwise=13, networks=26, transport=37, ranks=46, selection=105, sampling=111, distributed=152, ragged=173, functional=50, losses=55, engine=90)    # and what no chapter names
PARTS = dict(core="The idea", functional="The idea", rowwise="Rows by a softmax", ranks="Ranks", networks="Sorting networks", transport="Optimal transport", selection="The top k",
             sampling="Random orders", losses="Losses", ragged="Practice", distributed="Practice")
LABORATORY = {                                              # by subject, a definition first, then what it is made of
    "Data and runs": (60, 77, 78, 79, 61, 73), "Sorting": (62, 81, 166, 71, 172, 169), "Grids and evidence": (63, 82, 70, 195, 171, 170),
    "The other experiments": (64, 88, 65, 66, 83, 84, 85, 67, 87, 86, 68, 69), "The benchmark": (72, 74, 89), "The command line": (80, 75, 193, 76)}
IN_ORDER = [number for parts in VOLUMES.values() for *_, numbers in parts for number in numbers]

def number_of(page):
    "The number of a chapter, by its page; pages that have none come first"
    found = re.match(r"(\d{2,3})_", Path(page).name)
    return int(found[1]) if found else -1

@functools.cache
def chapters():
    "number -> notebook, as core/00_permutation.ipynb"
    return {number_of(p): p.relative_to(NBS).as_posix() for p in sorted(NBS.glob("*/*.ipynb")) if number_of(p) >= 0 and not p.parent.name.startswith((".", "_"))}

@functools.cache
def opening(notebook):
    "(title, description, old addresses) of a notebook, as its first cell has them"
    text = "".join(json.loads((NBS / notebook).read_text(encoding="utf-8"))["cells"][0]["source"])
    title, about, old = (re.search(pattern, text, re.M) for pattern in (r"^# (.+)$", r"^> (.+)$", r"^- aliases: \[(.+)\]$"))
    return title[1] if title else Path(notebook).stem, about[1] if about else "", [a.strip() for a in old[1].split(",")] if old else []

def volume_of(notebook):
    "The volume that a chapter belongs to, or None"
    number = number_of(notebook)
    return next((name for name, parts in VOLUMES.items() for *_, numbers in parts if number in numbers and "/" in str(notebook)), None)

def is_page(notebook):
    "Whether a notebook is a page of the site: the chapters, and what has no number; the parts have two pages of contents in place of one each"
    part, _, name = str(notebook).rpartition("/")
    if number_of(name) >= 0: return not part or volume_of(notebook) is not None
    return name != "index.ipynb" or part in ("", "lab")

def address(notebook):
    "Where a notebook's page is, or was"
    folder, _, name = notebook.rpartition("/")
    return f"{folder}/" * bool(folder) + re.sub(r"^\d+_", "", Path(name).stem) + ".html"

def anchor(title): return re.sub(r"[^a-z]+", "-", title.lower()).strip("-")

def home(notebook):
    "(page, anchor): what the site says about a notebook that is no page"
    part, _, name = notebook.rpartition("/")
    if name == "index.ipynb": return ("mechanisms.ipynb", "") if part == "engine" else ("book.ipynb", anchor(PARTS[part]))
    if part == "lab": return "lab/index.ipynb", f"module-{Path(address(notebook)).stem}"
    return chapters()[next((chapter for chapter, told in TOLD.items() if number_of(notebook) in told), REST[part])], "in-the-repository"

def elsewhere():
    "The notebooks that are no pages, in the order of their numbers"
    found = [p.relative_to(NBS).as_posix() for p in NBS.glob("*/*.ipynb") if not p.parent.name.startswith((".", "_"))]
    return sorted((p for p in found if not is_page(p)), key=lambda p: (number_of(p), p))

def companions(notebook): return [p for p in elsewhere() if number_of(p) >= 0 and home(p)[0] == notebook]

def repository(notebook):
    "Where a notebook is read if it is no page"
    from nbdev.config import get_config
    cfg = get_config()
    return f"{cfg.git_url}/blob/{cfg.branch}/nbs/{notebook}"

# ------------------------------------------------------------------ the pages that these make

def cell(text): return text.replace("|", r"\|")

def volume(name):
    "A volume's parts, each with a table of its chapters"
    out = []
    for title, about, numbers in VOLUMES[name]:
        found = [chapters()[n] for n in numbers if n in chapters()]
        rows = [f"| {number_of(p)} | [{opening(p)[0]}]({p}) | {cell(opening(p)[1])} |" for p in found]
        out += [f"## {title} {{#{anchor(title)}}}", about + ".", "\n".join(["| | chapter | what it is about |", "|--:|---|---|", *rows])]
    return "\n\n".join(out)

def in_repository():
    "By chapter, the notebooks of kernels and details that are read in the repository"
    rows = [f"| [{opening(p)[0]}]({p}) | {number_of(q)} | [{opening(q)[0]}]({q}) | {cell(opening(q)[1])} |" for p in (chapters()[n] for n in IN_ORDER if n in chapters()) for q in companions(p)]
    return "\n".join(["| chapter | | notebook | what it is about |", "|---|--:|---|---|", *rows])

def laboratory():
    "What each module of the laboratory does, by its notebook"
    left = [p for p in elsewhere() if p.startswith("lab/")]
    out = []
    for title, numbers in {**LABORATORY, "More": ()}.items():
        found = [chapters()[n] for n in numbers if chapters().get(n) in left] if numbers else list(left)
        left = [p for p in left if p not in found]
        rows = [f'| <span id="module-{Path(address(p)).stem}"></span>`{Path(address(p)).stem}` | [{opening(p)[0]}]({Path(p).name}) | {cell(opening(p)[1])} |' for p in found]
        if rows: out += [f"## {title}", "\n".join(["| module | notebook | what it does |", "|---|---|---|", *rows])]
    return "\n\n".join(out)
