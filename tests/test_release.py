"""What a stranger depends on: how the package is installed, cited and released, and what it promises."""
import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import dist  # noqa: E402
import install  # noqa: E402
import interface  # noqa: E402
import torch_versions  # noqa: E402

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install pyyaml")
SETTINGS = dist.settings()
GITHUB = ROOT / ".github"


def bounds(text): return dict(re.findall(r"([\w-]+)\s*>=\s*([\d.]+)", text))


# How it is installed

def test_every_page_prints_the_install_line_of_the_settings():
    stale = [path.relative_to(ROOT).as_posix() for path in install.pages() for old, new in [install.rewritten(path)] if old != new]
    assert not stale, f"python tools/install.py rewrites {stale}"
    assert install.line() in (ROOT / "README.md").read_text(encoding="utf-8"), "make docs writes the README from the home page"


FORMS = ["pip install softsortlib", 'pip install "softsortlib[experiments]"', "pip install git+https://example.org/a/softsortlib", "pip install -U softsortlib",
         "pip install git+https://example.org/a/softsortlib.git", 'pip install "softsortlib[dev] @ git+https://example.org/a/softsortlib"', 'pip install "softsortlib"']


@pytest.mark.parametrize("suffix", [".md", ".ipynb"])
@pytest.mark.parametrize("source", ["softsortlib", "git+https://example.org/b/softsortlib"])
def test_another_install_line_is_found_and_mended(suffix, source, tmp_path):
    page = tmp_path / f"page{suffix}"
    text = "".join(f"`{form}` and\n" for form in FORMS) + "pip install softsortlib-extras, `pip install 'softsortlib[experiments]'`, pip install .\n"
    page.write_text(json.dumps(text) if suffix == ".ipynb" else text, encoding="utf-8")
    old, new = install.rewritten(page, source)
    read = json.loads(new) if suffix == ".ipynb" else new
    extra = ["", "experiments", "", "", "", "dev", ""]
    assert read.splitlines()[:-1] == [f"`{install.line(e, source)}` and" for e in extra] and read.splitlines()[-1] == text.splitlines()[-1]
    page.write_text(new, encoding="utf-8")
    assert install.rewritten(page, source) == (new, new), "rewriting twice is rewriting once"


def test_pip_reads_the_install_lines():
    "Both lines are what pip calls a requirement, of this package and with an extra that exists; on the day of the release too."
    requirement = pytest.importorskip("packaging.requirements").Requirement
    for source in {install.install_from(), "softsortlib"}:
        for extra in ("", "experiments"):
            words = install.line(extra, source).removeprefix("pip install ").strip('"')
            if words.startswith("git+"): words = f"softsortlib @ {words}"
            found = requirement(words)
            assert found.name == "softsortlib" and found.extras == ({extra} if extra else set())
            assert found.url in (None, install.install_from())
    assert "experiments_requirements" in SETTINGS


def newer_than_310(source):
    "Statements that Python 3.10 does not read: an unpacked tuple inside brackets, `except*`, and `type` aliases."
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) and any(isinstance(e, ast.Starred) for e in node.slice.elts):
            if not ast.get_source_segment(source, node.slice).startswith("("): yield node.lineno
        elif type(node).__name__ in ("TryStar", "TypeAlias") or getattr(node, "type_params", None): yield node.lineno


def test_the_oldest_python_reads_every_module():
    assert SETTINGS["min_python"] == "3.10", "this test is about 3.10"
    found = [f"{path.relative_to(ROOT)}:{line}" for folder in ("softsortlib", "tests", "tools") for path in (ROOT / folder).rglob("*.py")
             for line in newer_than_310(path.read_text(encoding="utf-8"))]
    assert not found
    assert list(newer_than_310("x = 1\ny: Annotated[int, *names] = a[(1, *b)]")) == [2]


def test_an_index_shows_no_link_that_leads_nowhere():
    "The README on an index: its links go to the repository, its pictures come from there."
    done = subprocess.run([sys.executable, "setup.py", "--long-description"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    links = re.findall(r"\]\(([^)]+)\)", done.stdout)
    assert len(links) > 10 and not [link for link in links if not link.startswith(("https://", "#"))]
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", done.stdout)
    assert pictures and all("/raw/" in p for p in pictures)
    for link in links:
        inside = re.match(rf"{re.escape(SETTINGS['git_url'])}/(?:blob|raw)/main/([^#]+)", link)
        assert not inside or (ROOT / inside[1]).exists(), link


# How it is released

def test_the_notes_of_a_release_are_its_section_of_the_changelog(monkeypatch, tmp_path):
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.2.0 (unreleased)\n\n- soon\n\n## 0.1.0 (2030-01-02)\n\n- one\n- two\n\n## 0.0.1 (2029-01-01)\n", encoding="utf-8")
    monkeypatch.setattr(dist, "ROOT", tmp_path)
    assert dist.notes("0.1.0") == "- one\n- two" and dist.notes("0.2.0") == "- soon"
    for version, complaint in (("0.3.0", "no section"), ("0.0.1", "no section"), ("0.1", "no section")):
        with pytest.raises(SystemExit, match=complaint): dist.notes(version)
    for version, tag, complaint in (("0.1.0", "v0.1.1", "the tag of this version is v0.1.0"), ("0.2.0", "v0.2.0", "put the date"), ("0.1.0", "0.1.0", "the tag")):
        monkeypatch.setattr(dist, "settings", lambda version=version: {"version": version})
        with pytest.raises(SystemExit, match=complaint): dist.check_tag(tag)
    monkeypatch.setattr(dist, "settings", lambda: {"version": "0.1.0"})
    assert dist.check_tag("v0.1.0") is None


def test_the_changelog_has_this_version():
    assert dist.notes(SETTINGS["version"])


def workflow(name):
    "A workflow; YAML reads its key `on` as True."
    return yaml.safe_load((GITHUB / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))


def steps(job): return [s.get("uses") or s["run"] for s in job["steps"]]


def test_a_tag_is_published_without_a_stored_password():
    release = workflow("release")
    assert release[True] == {"push": {"tags": ["v*"]}} and release["permissions"] == {"contents": "read"}
    jobs = release["jobs"]
    assert {name: job.get("permissions") for name, job in jobs.items()} == {"build": None, "publish": {"id-token": "write"}, "notes": {"contents": "write"}}
    assert jobs["publish"]["environment"]["name"] == "pypi" and jobs["publish"]["needs"] == "build" and jobs["notes"]["needs"] == "publish"
    assert any(s.startswith("pypa/gh-action-pypi-publish@release/v1") for s in steps(jobs["publish"]))
    assert not re.search(r"secrets\.|password|PYPI_TOKEN", (GITHUB / "workflows/release.yml").read_text(encoding="utf-8"))
    built = "\n".join(steps(jobs["build"]))
    assert "--tag" in built and "--notes" in built and "tools/dist.py --quick" in built


def test_every_version_that_is_declared_is_run():
    jobs = workflow("ci")["jobs"]
    low, high = (int(SETTINGS[key].split(".")[1]) for key in ("min_python", "max_python"))
    declared = [f"3.{minor}" for minor in range(low, high + 1)]
    assert jobs["test"]["strategy"]["matrix"]["python"] == declared
    assert {j["which"]: j["python"] for j in jobs["torch"]["strategy"]["matrix"]["include"]} == {"oldest": declared[0], "newest": declared[-1]}
    assert "tools/torch_versions.py" in steps(jobs["torch"])[-1] and "make dist" in steps(jobs["dist"])[-1]
    assert set(bounds(SETTINGS["requirements"])) == {"torch", "numpy", "numba"}, "tools/torch_versions.py runs these lower bounds"


def test_actions_have_a_version():
    used = [use for path in sorted((GITHUB / "workflows").glob("*.yml")) for use in re.findall(r"uses: (\S+)", path.read_text(encoding="utf-8"))]
    assert len(used) > 8 and all(re.fullmatch(r"[\w.-]+/[\w.-]+@(v\d+|release/v\d+)", use) for use in used)


def test_the_recipe_says_what_the_settings_say():
    jinja2 = pytest.importorskip("jinja2")
    recipe = yaml.safe_load(jinja2.Template((ROOT / "recipe/meta.yaml").read_text(encoding="utf-8")).render(PYTHON="python"))
    assert list(recipe) == ["package", "source", "build", "requirements", "test", "about"]
    assert recipe["package"] == {"name": SETTINGS["lib_name"], "version": SETTINGS["version"]}
    assert recipe["source"]["url"].endswith(f"/softsortlib-{SETTINGS['version']}.tar.gz") and re.fullmatch(r"[0-9a-f]{64}", str(recipe["source"]["sha256"]))
    run = {name: bound for line in recipe["requirements"]["run"] for name, bound in bounds(line).items()}
    assert run == {"python": SETTINGS["min_python"], **{{"torch": "pytorch"}.get(n, n): b for n, b in bounds(SETTINGS["requirements"]).items()}}
    assert recipe["build"]["entry_points"] == [SETTINGS["console_scripts"].replace("=", " = ")]
    assert recipe["build"]["noarch"] == "python" and (ROOT / recipe["about"]["license_file"]).exists()


def test_the_forms_are_forms():
    for path in sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")):
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        if path.name == "config.yml":
            assert set(form) == {"blank_issues_enabled", "contact_links"} and all(set(c) == {"name", "url", "about"} for c in form["contact_links"])
            continue
        assert {"name", "description", "body"} <= set(form)
        ids = [field["id"] for field in form["body"]]
        assert len(set(ids)) == len(ids) and all(field["type"] in ("textarea", "input", "dropdown") and field["attributes"]["label"] for field in form["body"])
    versions = re.search(r'python -c \\"(.*?)\\"', (GITHUB / "ISSUE_TEMPLATE/bug.yml").read_text(encoding="utf-8"))[1]
    done = subprocess.run([sys.executable, "-c", versions], capture_output=True, text=True)
    assert done.returncode == 0 and SETTINGS["version"] in done.stdout, done.stderr
    assert {u["package-ecosystem"] for u in yaml.safe_load((GITHUB / "dependabot.yml").read_text(encoding="utf-8"))["updates"]} == {"github-actions", "pip"}
    assert len((ROOT / "CODE_OF_CONDUCT.md").read_text(encoding="utf-8").splitlines()) == 3


# How it is cited

def test_the_citation_file_is_complete():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation), "these four are required by the format"
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software" and citation["license"] == "Apache-2.0"
    assert str(citation["version"]) == SETTINGS["version"] and citation["repository-code"] == SETTINGS["git_url"]
    assert all(set(author) <= {"name", "given-names", "family-names", "orcid"} and author for author in citation["authors"])


def page(name): return "\n".join("".join(c["source"]) for c in json.loads((ROOT / "nbs" / name).read_text(encoding="utf-8"))["cells"])


def entries(text):
    "The BibTeX entries of a page: {key: {field: value}}; the braces of each balance."
    found = {}
    for block in re.findall(r"```bibtex\n(.*?)```", text, re.S):
        assert block.count("{") == block.count("}"), block
        found[re.match(r"@\w+\{(\w+),", block)[1]] = {k: v.strip("{}") for k, v in re.findall(r"^  (\w+) = \{(.*)\},?$", block, re.M)}
    return found


def test_the_entries_are_those_of_the_references():
    "Each paper's title and first author stand on the references page; the library's version is this one."
    cited, references = entries(page("citing.ipynb")), page("references.ipynb")
    assert cited.pop("softsortlib")["version"] == SETTINGS["version"] and len(cited) == 9
    for key, entry in cited.items():
        assert {"author", "title", "year"} <= set(entry), key
        at = references.index(f"[{entry['title']}]")
        assert entry["author"].split(" and ")[0] in references[at - 200:at] and entry["year"] in references[at:at + 400], key
        assert "eprint" not in entry or f"arxiv.org/abs/{entry['eprint']}" in references[at:at + 200], key


def test_every_operator_has_a_paper_to_cite():
    named = set(re.findall(r"`(\w+)`", page("citing.ipynb")))
    assert {"SoftSort", "NeuralSort", "SinkhornSort", "SortingNetwork", "LapSum", "SigmoidRank", "GaussianRank", "LaplaceRank", "Permutahedron"} <= named


def test_the_pages_are_linked_from_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "(nbs/citing.ipynb)" in readme and "(nbs/statements.ipynb)" in readme and (ROOT / "CITATION.cff").exists()


# What it promises: the rest is asserted on nbs/statements.ipynb itself

FORKED = """
import os, torch
from softsortlib import NeuralSort, SoftSort, soft_rank
s = torch.randn(64, 300, generator=torch.Generator().manual_seed(0))
def work(): return [SoftSort(0.1)(s) @ s, NeuralSort(0.1)(s) @ s, soft_rank(s, method="permutahedron")]
torch.set_num_threads(1)
want = work()
if not (pid := os.fork()): os._exit(0 if all(map(torch.equal, work(), want)) else 3)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_with_one_thread_computes_the_same():
    assert subprocess.run([sys.executable, "-c", FORKED], cwd=ROOT / "tests", env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300).returncode == 0


def test_the_oldest_versions_that_were_tried_are_the_declared_ones():
    tried = json.loads((ROOT / "nbs/results/versions.json").read_text(encoding="utf-8"))
    assert set(tried) == {"oldest", "newest"} and not any(run["failed"] for run in tried.values())
    for name, bound in bounds(SETTINGS["requirements"]).items():
        held = tried["oldest"][name].split("+")[0].split(".")
        assert held[:len(bound.split("."))] == bound.split("."), f"{name}>={bound} is declared and {'.'.join(held)} was tried: make oldest"


def test_a_test_that_ends_the_process_counts_as_failed(tmp_path):
    "The last word on each test counts; one that began and never ended failed, and one that never began is left."
    kept = tmp_path / "outcomes.txt"
    assert torch_versions.outcomes(kept) == {}
    kept.write_text("failed a[x y]\npassed a[x y]\nfailed b\nskipped b\nfailed c\nfailed c\npassed c\nfailed c\nfailed d\n", encoding="utf-8")
    said = torch_versions.outcomes(kept)
    assert said == {"a[x y]": "passed", "b": "skipped", "c": "failed", "d": "failed"}
    assert torch_versions.counted(said, ["a[x y]", "b", "c", "d", "e"]) == ({"passed": 1, "failed": 2, "skipped": 1}, 1)


def test_the_versions_are_tried_by_the_tests_of_every_part():
    parts = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name[0] != "_" and (ROOT / "softsortlib" / path.name).is_dir()}
    assert parts - set(torch_versions.FOLDERS) == {"lab", "distributed"} and all((ROOT / path).exists() for path in torch_versions.tests("newest"))


def test_the_history_has_a_record_of_this_version():
    records = {p.stem: json.loads(p.read_text(encoding="utf-8")) for p in (ROOT / "nbs/results/history").glob("*.json")}
    assert SETTINGS["version"] in records
    for version, record in records.items():
        assert record["version"] == version == record["environment"]["softsortlib"] and all(0 < r < 1e3 for r in record["ratios"].values())


# What 0.x may change: the calls of this minor version are recorded, and each of them still works.

CALLS = {"a.f": [["x", "positional_or_keyword", None], ["tau", "positional_or_keyword", "1.0"], ["mask", "keyword_only", "None"]], "a.C.m": None, "a.C.g": []}


def changed(name, parameters):
    return {**CALLS, name: parameters}


@pytest.mark.parametrize("new,said", [
    ({k: v for k, v in CALLS.items() if k != "a.C.m"}, "a.C.m is gone"),
    (changed("a.C.g", None), "a.C.g is no longer called"),
    (changed("a.C.g", [["k", "positional_or_keyword", None]]), "asks for `k`, which is new"),
    (changed("a.f", [CALLS["a.f"][0], CALLS["a.f"][2]]), "has no `tau`"),
    (changed("a.f", [CALLS["a.f"][1], CALLS["a.f"][0], CALLS["a.f"][2]]), "takes tau, x in this order, and took x, tau"),
    (changed("a.f", [CALLS["a.f"][0], ["tau", "positional_or_keyword", None], CALLS["a.f"][2]]), "asks for `tau`, whose default was 1.0"),
    (changed("a.f", [CALLS["a.f"][0], ["tau", "positional_or_keyword", "0.1"], CALLS["a.f"][2]]), "`tau` of a.f is 0.1 by default, and was 1.0"),
    (changed("a.f", [CALLS["a.f"][0], ["tau", "keyword_only", "1.0"], CALLS["a.f"][2]]), "was positional_or_keyword and is keyword_only"),
])
def test_a_change_that_breaks_a_call_is_seen(new, said):
    found = list(interface.breaks(CALLS, new))
    assert any(said in sentence for sentence in found), found


@pytest.mark.parametrize("new", [
    CALLS, {**CALLS, "a.h": []},
    changed("a.f", [*CALLS["a.f"], ["dim", "keyword_only", "-1"]]),
    changed("a.f", [*CALLS["a.f"][:2], ["mask", "positional_or_keyword", "None"]]),
    changed("a.f", [["x", "positional_or_keyword", "None"], *CALLS["a.f"][1:]]),
])
def test_a_change_that_breaks_no_call_passes(new):
    assert not list(interface.breaks(CALLS, new))


def test_no_call_breaks_within_a_minor_version():
    record = json.loads(interface.RECORD.read_text(encoding="utf-8"))
    assert record["version"] == interface.minor(), "a new minor version keeps its own calls: python tools/interface.py --record"
    assert len(record["calls"]) > 500 and "softsortlib.SoftSort.forward" in record["calls"]
    broken = list(interface.breaks(record["calls"], interface.interface()))
    assert not broken, "these calls worked: keep them, or give a new minor version, a line in CHANGELOG.md that begins \"- Changed\", and python tools/interface.py --record\n" + "\n".join(broken)


def test_a_broken_call_has_its_line_in_the_changelog():
    lines = "# Changelog\n\n## 0.2.0\n\n- Added h.\n- Changed: `a.f` takes\n  `tau` by name.\n\n## 0.1.0\n\n- Changed: g\n"
    sentences = ["softsortlib.a.f has no `tau`", "softsortlib.g is gone"]
    assert interface.unsaid(sentences, lines) == ["softsortlib.g is gone"]
