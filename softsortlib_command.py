"""The program `softsortlib`: what a command will do and how long it takes, said at once; then the command.

It stands outside of the package because the package loads PyTorch, which takes seconds, and where nothing of it is in
the computer's memory yet up to a minute. All that a command does is in the chapter of the command line."""
import importlib.util
import sys

PLANS = {
    "demo": "learns to sort pictures of handwritten numbers from their order alone, in about a minute",
    "run": "does one run of an experiment: seconds (preset smoke), minutes (quick) or hours (paper)",
    "table": "does the runs of a table that are not done yet, or lists the tables, in seconds",
    "bench": "times the operators beside other libraries, seconds to minutes a piece",
    "warm": "compiles the kernels ahead of the first call, a few seconds each",
}


def plan(args):
    "The first sentence about a command; empty where the words ask for help, or for nothing that takes long."
    able = importlib.util.find_spec("typer")  # else there is no command, and a sentence that says what to install
    if not able or not args or args[0] not in PLANS or {"-h", "--help"} & set(args):
        return ""
    return f"softsortlib {args[0]} {PLANS[args[0]]}. Loading PyTorch comes first: some seconds, rarely a minute."


def main():
    "Say what the command will do, load the package, and do it."
    if said := plan(sys.argv[1:]):
        print(said, file=sys.stderr, flush=True)
    try:
        cli = importlib.import_module("softsortlib.lab.cli")
    except KeyboardInterrupt:
        print("\nsoftsortlib: interrupted before it began: the same command begins anew", file=sys.stderr)
        sys.exit(130)
    cli.main()
