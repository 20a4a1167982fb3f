"""Write the install line of settings.ini wherever a page prints one.

    python tools/install.py            rewrite the pages
    python tools/install.py --check    name the pages that print another one; exits non-zero if any does

On the day of a release say `install_from = softsortlib` in settings.ini, and run this and `make docs`.
"""
import re
import sys

from repo import ROOT, settings

NAME, QUOTE = "softsortlib", "\x01"
LINE = re.compile(rf"pip install (?:--?[\w-]+ )*({QUOTE}?)(?:git\+[^\s`'{QUOTE}\\]+/{NAME}(?:\.git)?|{NAME}(?:\[(\w+)\])?(?: ?@ ?git\+[^\s`'{QUOTE}\\]+)?)\1(?![\w\[.@-])")


def install_from():
    "What pip is given: the name, or git+URL."
    return settings()["install_from"]


def line(extra="", source=None):
    "The line that installs the package, with an extra."
    source = source or install_from()
    name = f"{NAME}[{extra}]" if extra else NAME
    if source == NAME: return f'pip install "{name}"' if extra else f"pip install {name}"
    return f'pip install "{name} @ {source}"' if extra else f"pip install {source}"


def pages(root=ROOT):
    """What a reader sees: notebooks, pages, the notes of the project. README.md is made from the home page.

    What the package says of itself, `pip install 'softsortlib[experiments]'`, is no such line: it is installed then, and pip
    finds the extra in what is installed."""
    for pattern in ("nbs/**/*.ipynb", "nbs/**/*.qmd", "*.md", ".github/**/*.yml"):
        for path in sorted(root.glob(pattern)):
            hidden = [part for part in path.relative_to(root).parts if part[0] in "._" and part != ".github"]
            if not hidden and not path.is_symlink(): yield path


def rewritten(path, source=None):
    "The text of a page, and what it is with its install lines as they should be."
    text = path.read_text(encoding="utf-8")
    quote = '\\"' if path.suffix == ".ipynb" else '"'
    put = LINE.sub(lambda m: line(m[2] or "", source).replace('"', QUOTE), text.replace(quote, QUOTE))
    return text, put.replace(QUOTE, quote)


def main():
    stale = [(path, new) for path in pages() for old, new in [rewritten(path)] if old != new]
    for path, new in stale:
        print(path.relative_to(ROOT))
        if "--check" not in sys.argv: path.write_text(new, encoding="utf-8")
    if stale and "--check" in sys.argv: sys.exit("these print another install line than settings.ini: python tools/install.py")


if __name__ == "__main__": main()
