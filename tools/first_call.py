"""What the first call of an operator costs: `python tools/first_call.py [NAMES]` prints CPU seconds, cold and warm.

Each operator is used forward and backward in a fresh process, first with an empty folder of kernels (cold), then with the folder that this left (warm)."""
import argparse, json, os, subprocess, sys, tempfile

CALL = """
import json, sys, time
import torch
start = time.process_time()
import softsortlib
imported = time.process_time()
w = torch.ones(3, requires_grad=True); (w * w).sum().backward()   # torch's own first gradient
operator, n = eval(sys.argv[1], vars(softsortlib)), int(sys.argv[2])
s = torch.linspace(0, 1, n).square().repeat(2, 1).requires_grad_()
begin = time.process_time()
y = operator(s)
y = y if isinstance(y, torch.Tensor) else y @ s
y.square().sum().backward()
print(json.dumps({"import": imported - start, "call": time.process_time() - begin}))
"""
OPERATORS = {
    "SoftSort": "SoftSort(0.1)", "SoftSort, power 2": "SoftSort(0.1, power=2)", "NeuralSort": "NeuralSort(1.0)",
    "bitonic network": "SortingNetwork('bitonic', tau=0.1)", "SinkhornSort": "SinkhornSort(0.1)",
    "SinkhornSort, quantile": "lambda s: soft_quantile(s, 0.3, method=SinkhornSort(0.1))", "SigmoidRank": "SigmoidRank(0.1)",
    "GaussianRank": "GaussianRank(0.1)", "LaplaceRank": "LaplaceRank(0.1)", "Permutahedron": "Permutahedron(0.1)",
    "LapSum": "LapSum(0.1)", "soft_median": "soft_median",
}


def once(code: str, folder: str, n: int = 200) -> dict:
    "CPU seconds of the import and of the first call of an operator, in a fresh process that keeps its kernels in the folder."
    env = {**os.environ, "NUMBA_CACHE_DIR": folder}
    run = subprocess.run([sys.executable, "-c", CALL, code, str(n)], env=env, capture_output=True, text=True)
    if run.returncode: raise RuntimeError(f"{code}: {run.stderr.strip().splitlines()[-1]}")
    return json.loads(run.stdout)


def first_calls(names=tuple(OPERATORS)) -> dict:
    "{operator: {import, cold, warm}} in CPU seconds."
    rows = {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            cold, warm = once(OPERATORS[name], folder), once(OPERATORS[name], folder)
        rows[name] = {"import": warm["import"], "cold": cold["call"], "warm": warm["call"]}
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(OPERATORS))
    for name in parser.parse_args().names:
        print(f"{name:24s}", *(f"{key} {value:5.2f}" for key, value in first_calls([name])[name].items()), flush=True)
