"""The order of the book: its two volumes, what each part is about, and which page tells of a notebook that is no page of the site.

A chapter is a notebook with a number inside its part: rowwise/02_neuralsort.ipynb is W2, and its statements and equations begin so: Prop W2.1
and (W2.2). A part counts its chapters in the order of reading, those of Volume I first. The site has the chapters below, by part and module.
Every other numbered notebook stays in the repository, where it runs and is tested; `home` says which page leads there.
"""
import functools, re
from pathlib import Path

import repo
from repo import NBS

LETTERS = dict(core="C", engine="E", rowwise="W", networks="N", transport="T", ranks="R", selection="K", sampling="S", distributed="D", ragged="G", functional="F", losses="L", lab="B")
READERS = [                                                 # Volume I: (part, what it answers, chapters in the order of reading)
    ("The idea", "Sorting is a matrix. What becomes of it at a temperature, how to choose one, and how a network learns from an order alone",
     ("core/permutation", "functional/temperature", "core/spread", "core/rounding", "functional/functions", "losses/orders")),
    ("Rows by a softmax", "Two operators make each row a softmax of one formula. Why one of them costs no more than a sort, and what separates the two",
     ("rowwise/softsort", "engine/scan", "rowwise/neuralsort", "rowwise/squares", "rowwise/sparse_rows")),
    ("Ranks", "A rank is one plus the number of smaller scores: soften that count, take its mean under noise, or project onto the polytope of all ranks",
     ("ranks/sigmoid", "ranks/gaussian", "ranks/laplace", "ranks/lapsum", "ranks/permutahedron", "ranks/pooling")),
    ("Sorting networks", "Compare fixed pairs in fixed layers, and let every swap be a weighted mean of swapping and not swapping",
     ("networks/comparators", "networks/swaps", "networks/operator", "networks/error_free", "networks/compared")),
    ("Optimal transport", "To sort is to carry each score to a place on a line at the lowest cost; a little entropy makes the plan smooth",
     ("transport/line", "transport/sinkhorn_sort", "transport/matching", "functional/quantiles")),
    ("The top k", "If the order among the first k does not matter, one number for each score is enough",
     ("selection/masks", "selection/thresholds", "selection/sparse", "selection/subsets", "selection/router")),
    ("Random orders", "Sort hard and differentiate the expectation under noise, for any loss, even one that jumps",
     ("core/stochastic", "sampling/orders", "sampling/perturbed", "sampling/regret", "sampling/interpolation", "sampling/policies")),
    ("Losses", "What to minimise if you know a relevance, a list, a class or a neighbour",
     ("losses/ranking", "losses/lists", "losses/pairs", "losses/curves", "losses/first", "losses/metrics", "losses/classification", "losses/knn", "losses/weights")),
    ("Practice", "Lists of different lengths, more scores than memory holds, many processes, and an operator of your own",
     ("ragged/lists", "ragged/chunks", "distributed/sample_sort", "core/operators")),
]
MECHANISMS = [                                              # Volume II: how it is made fast
    ("What everything stands on", "Loops that compile, who computes, operators that every transformation of torch understands, and a sort that never compares",
     ("engine/compile", "engine/dispatch", "engine/autograd", "engine/mechanism", "engine/radix")),
    ("Sums over all pairs", "A scan in blocks, boxes and polynomials, a tree, and sums that a second order selects",
     ("engine/blocks", "engine/sums", "engine/tree_sums", "engine/level_sums")),
    ("Rows", "Five scores at once, rows in tiles outward from the diagonal, and the balancing of SoftSort",
     ("rowwise/small", "rowwise/rows", "rowwise/balance")),
    ("Ranks and thresholds", "Marks on a line, the root of a sum of steps, and the chance of a count",
     ("ranks/line", "selection/roots", "selection/counts")),
    ("Layers and plans", "The layers of a network in the cache, and a transport plan without its matrix",
     ("networks/layers", "transport/gibbs", "transport/solver")),
    ("Lists and processes", "Kernels that take offsets, and what an interval needs from the others",
     ("ragged/kernels", "distributed/carries")),
]
MACHINERY = ("ranks/pooling", "engine/scan")              # chapters of Volume I whose long cells are a mechanism's: they are folded
VOLUMES = {"Volume I": READERS, "Volume II": MECHANISMS}
TOLD = {                                                    # chapter -> notebooks of the repository that its page names
    "core/operators": ("core/rank_operators", "core/checks"),
    "networks/operator": ("networks/lanes",),
    "ranks/pooling": ("ranks/pooling_triton",),
    "functional/functions": ("functional/arguments", "functional/first_call", "functional/parts", "functional/weighted"),
    "functional/quantiles": ("transport/quantiles",),
    "functional/temperature": ("functional/plots",),
    "losses/orders": ("losses/contract", "losses/parts"),
    "engine/scan": ("engine/scan_triton", "engine/scan_kernels", "engine/mean_triton"),
    "engine/sums": ("engine/sum_laws", "engine/sum_kernels", "engine/sums_triton"),
    "selection/thresholds": ("selection/passes", "selection/short", "selection/roots_triton"),
    "losses/lists": ("losses/sets",),
    "engine/level_sums": ("losses/weighted",),
    "engine/tree_sums": ("engine/tail_laws", "engine/tree_kernels"),
    "distributed/sample_sort": ("distributed/exchange", "distributed/scaling"),
    "ragged/lists": ("ragged/blocks",),
    "transport/gibbs": ("transport/line_sums", "transport/tiles_triton", "transport/plan_matrix"),
}
REST = dict(core="core/permutation", rowwise="rowwise/rows", networks="networks/layers", transport="transport/solver", ranks="ranks/line", selection="selection/roots", sampling="sampling/perturbed", distributed="distributed/carries", ragged="ragged/kernels", functional="functional/functions", losses="losses/orders", engine="engine/compile")     # and what no chapter names
PARTS = dict(core="The idea", functional="The idea", rowwise="Rows by a softmax", ranks="Ranks", networks="Sorting networks", transport="Optimal transport", selection="The top k",
             sampling="Random orders", losses="Losses", ragged="Practice", distributed="Practice")
LABORATORY = {                                              # by subject, a definition first, then what it is made of
    "Data and runs": ("lab/data", "lab/images", "lab/sources", "lab/runs", "lab/training", "lab/records"),
    "Sorting": ("lab/sorting", "lab/scoring", "lab/metric", "lab/tables", "lab/searches", "lab/newton"),
    "Grids and evidence": ("lab/grid", "lab/executors", "lab/evidence", "lab/pages", "lab/pace", "lab/certificates"),
    "The other experiments": ("lab/svhn", "lab/digit_struct", "lab/median", "lab/neighbours", "lab/voting", "lab/embedding", "lab/baselines", "lab/speed", "lab/methods", "lab/limits", "lab/topk", "lab/large_sets"),
    "The benchmark": ("lab/bench", "lab/contenders", "lab/cases"),
    "The command line": ("lab/cli", "lab/pictures", "lab/drawings", "lab/options"),
}
IN_ORDER = [chapter for parts in VOLUMES.values() for *_, some in parts for chapter in some]

@functools.cache
def _numbered(page): return re.search(rf"({'|'.join(LETTERS)})/(\d+)_(\w+)\.ipynb$", Path(page).as_posix())

def chapter_of(page):
    "rowwise/softsort, of rowwise/01_softsort.ipynb; empty for a page that is no chapter"
    return f"{found[1]}/{found[3]}" if (found := _numbered(page)) else ""

def number_of(page):
    "W1, of rowwise/01_softsort.ipynb: the letter of its part and its place there; empty for a page that is no chapter"
    return f"{LETTERS[found[1]]}{int(found[2])}" if (found := _numbered(page)) else ""

@functools.cache
def chapters():
    "rowwise/softsort -> rowwise/01_softsort.ipynb"
    return {chapter_of(p): p.relative_to(NBS).as_posix() for part in LETTERS for p in sorted((NBS / part).glob("*.ipynb")) if chapter_of(p)}

@functools.cache
def opening(notebook): return repo.opening(NBS / notebook)

@functools.cache
def volume_of(notebook):
    "The volume that a chapter belongs to, or None"
    return next((name for name, parts in VOLUMES.items() for *_, some in parts if chapter_of(notebook) in some), None)

def is_page(notebook):
    "Whether a notebook is a page of the site: the chapters, and what has no number; the parts have two pages of contents in place of one each"
    part, _, name = str(notebook).rpartition("/")
    if chapter_of(notebook): return volume_of(notebook) is not None
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
    return chapters()[next((chapter for chapter, told in TOLD.items() if chapter_of(notebook) in told), REST[part])], "in-the-repository"

@functools.cache
def elsewhere():
    "The notebooks that are no pages, by part and number"
    found = [p.relative_to(NBS).as_posix() for p in NBS.glob("*/*.ipynb") if not p.parent.name.startswith((".", "_"))]
    return sorted(p for p in found if not is_page(p))

@functools.cache
def companions(notebook): return [p for p in elsewhere() if chapter_of(p) and home(p)[0] == notebook]

def repository(notebook):
    "Where a notebook is read if it is no page"
    return f"{repo.settings()['git_url']}/blob/{repo.settings()['branch']}/nbs/{notebook}"

# ------------------------------------------------------------------ the pages that these make

def cell(text): return text.replace("|", r"\|")

def volume(name):
    "A volume's parts, each with a table of its chapters"
    out = []
    for title, about, some in VOLUMES[name]:
        found = [chapters()[chapter] for chapter in some if chapter in chapters()]
        rows = [f"| {number_of(p)} | [{opening(p)[0]}]({p}) | {cell(opening(p)[1])} |" for p in found]
        out += [f"## {title} {{#{anchor(title)}}}", about + ".", "\n".join(["| | chapter | what it is about |", "|--:|---|---|", *rows])]
    return "\n\n".join(out)

def in_repository():
    "The notebooks of kernels and details that are read in the repository, by their numbers, and the chapter that each belongs to"
    def row(page, notebook): return f"| {number_of(notebook)} | [{opening(notebook)[0]}]({notebook}) ↗ | {cell(opening(notebook)[1])} | [{opening(page)[0]}]({page}) |"
    found = [(q, p) for p in (chapters()[chapter] for chapter in IN_ORDER if chapter in chapters()) for q in companions(p)]
    return "\n".join(["| | notebook | what it is about | its chapter |", "|--:|---|---|---|", *(row(p, q) for q, p in sorted(found, key=lambda both: (number_of(both[0])[0], int(number_of(both[0])[1:]))))])

def laboratory():
    "What each module of the laboratory does, by its notebook"
    left = [p for p in elsewhere() if p.startswith("lab/")]
    out = []
    for title, some in {**LABORATORY, "More": ()}.items():
        found = [chapters()[chapter] for chapter in some if chapters().get(chapter) in left] if some else list(left)
        left = [p for p in left if p not in found]
        rows = [f'| <span id="module-{Path(address(p)).stem}"></span>`{Path(address(p)).stem}` | [{opening(p)[0]}]({Path(p).name}) | {cell(opening(p)[1])} |' for p in found]
        if rows: out += [f"## {title}", "\n".join(["| module | notebook | what it does |", "|---|---|---|", *rows])]
    return "\n\n".join(out)
