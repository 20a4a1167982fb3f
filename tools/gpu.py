"""On a machine with a GPU: device, kernel tests, memory checker, benchmark, and the papers' speed task, each recorded when it is done.

    python tools/gpu.py --minutes 9 --out DIR       # make gpu

It needs torch with Triton, numba, hypothesis and pytest, no network, and neither nbdev nor data; what is missing, it says and leaves out. Every stage is a process with
a deadline of its own, and writes DIR/STAGE.json. Without a GPU it rehearses: Triton's interpreter runs the kernels on tiny sets, and the figures mean nothing.
"""
import argparse
import importlib.util
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

root = Path(__file__).resolve().parent.parent
PATHS = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(root))))
TESTS = ("tests/test_cuda.py", "tests/rowwise/test_rows_triton.py")
SHARES = dict(device=0.05, tests=0.45, memory=0.1, bench=0.3, speed=1.0)      # of the time that is left when a stage begins


def write(out, stage, record):
    "Keep what a stage has found, whole or not at all."
    partial = out / f".{stage}.json"
    partial.write_text(json.dumps(record, indent=1) + "\n")
    partial.replace(out / f"{stage}.json")


def stop_after(seconds, command, **more):
    "Run a command in a session of its own, and end all of it at the deadline; its exit code (None: the deadline) and what it said last."
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, **more)
    try: said = process.communicate(timeout=max(1, seconds))[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said = process.communicate()[0]
        return None, said[-6000:]
    return process.returncode, said[-6000:]


def median_time(f, device, rounds):
    "Seconds of a call: by CUDA events on a GPU, by the clock in a rehearsal."
    import torch
    f()
    found = []
    for _ in range(rounds):
        if device == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record(); f(); end.record()
            torch.cuda.synchronize()
            found.append(begin.elapsed_time(end) / 1e3)
        else:
            start = time.perf_counter(); f()
            found.append(time.perf_counter() - start)
    return statistics.median(found)


def replay_time(f, rounds):
    "Seconds of a replay of f as a CUDA graph: without the launches."
    import torch
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3): f()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph): f()
    return median_time(graph.replay, "cuda", rounds)


def device_stage(args):
    "What machine this is, and how fast it copies."
    import torch
    cuda = torch.cuda.is_available()
    record = dict(rehearsal=not cuda, torch=torch.__version__, python=platform.python_version(), triton=importlib.util.find_spec("triton") is not None)
    if cuda:
        p = torch.cuda.get_device_properties(0)
        record.update(name=p.name, memory=p.total_memory, processors=p.multi_processor_count, capability=[p.major, p.minor], devices=torch.cuda.device_count())
    n = 1 << (28 if cuda else 20)
    a = torch.zeros(n, device="cuda" if cuda else "cpu")
    b = torch.empty_like(a)
    record["copy_bytes_per_second"] = 8 * n / median_time(lambda: b.copy_(a), a.device.type, 10)
    write(args.out, "device", record)


def tests_stage(args):
    "The kernel tests, by name."
    import torch
    rehearsal = not torch.cuda.is_available()
    env = dict(os.environ, PYTHONPATH=PATHS)
    if rehearsal: env.update(SOFTSORTLIB_REHEARSE="1", TRITON_INTERPRET="1", OMP_NUM_THREADS="1")
    files = TESTS[:1] if rehearsal else TESTS
    few = ["-k", "scan or pooling or pair_sums or lists or softsort and products"] if rehearsal else []
    code, said = stop_after(args.seconds, [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-m", "cuda", "--durations=10", *few, *files], env=env)
    write(args.out, "tests", dict(rehearsal=rehearsal, exit=code, deadline=code is None, seconds=args.seconds, files=files, said=said))
    return code


SMALL = """
import torch, softsortlib as ss
for op in (ss.SoftSort(0.3), ss.LapSum(0.3), ss.NeuralSort(9.0), ss.SortingNetwork(tau=0.3), ss.SinkhornSort(0.3, iterations=3)):
    for n in (5, 1500):
        s = torch.randn(2, n, device="cuda", requires_grad=True)
        P = op(s)
        torch.autograd.grad((P @ s).sum() + (P.mT @ s).sum() + P.log_prob(s.argsort(-1)).sum() + P.to_dense().square().sum(), s)
for op in (ss.Permutahedron(0.3), ss.SigmoidRank(0.3), ss.LaplaceRank(0.3)):
    s = torch.randn(2, 1500, device="cuda", requires_grad=True)
    torch.autograd.grad(op(s).sum(), s)
for method in ("lapsum", "sinkhorn", "sparse", "simple"):
    torch.autograd.grad(ss.soft_topk_mask(s, 3, method=method, tau=0.3).square().sum(), s)
offsets = torch.tensor([0, 0, 3, 1200, 1201, 1500], device="cuda")
for method in ("softsort", "laplace", "sigmoid"):
    s = torch.randn(2, 1500, device="cuda", requires_grad=True)
    torch.autograd.grad(ss.soft_rank(s, method=method, offsets=offsets).sum(), s)
"""


def memory_stage(args):
    "Small cases under compute-sanitizer, which sees what a kernel reads or writes out of bounds."
    import torch
    tool = shutil.which("compute-sanitizer")
    if not torch.cuda.is_available() or not tool:
        return write(args.out, "memory", dict(skipped="no GPU here" if tool else "compute-sanitizer is not on the path"))
    found = {}
    for check in ("memcheck", "racecheck"):
        code, said = stop_after(args.seconds / 2, [tool, "--tool", check, "--error-exitcode", "9", sys.executable, "-c", SMALL],
                                env=dict(os.environ, PYTHONPATH=PATHS, PYTORCH_NO_CUDA_MEMORY_CACHING="1"))
        found[check] = dict(exit=code, said=said[-2000:])
        write(args.out, "memory", found)


def lists_of(s):
    "Offsets of lists for the items of s: every tenth of them in one list, the others in lists of nine."
    import torch
    n = s.shape[-1]
    return torch.cat([torch.zeros(1, dtype=torch.long, device=s.device), torch.arange(n // 10, n, 9, device=s.device), torch.full((1,), n, device=s.device)])


def contenders(device):
    "Name -> (function of scores, largest n)."
    import torch

    import softsortlib as ss
    from softsortlib.losses import neural_ndcg_loss
    backend = None if device == "cuda" else "triton"
    found = {"torch.sort": (lambda s: s.sort(-1).values, 1 << 24), "softsort": (lambda s: ss.SoftSort(0.01, backend=backend)(s) @ s, 1 << 24),
             "softsort matrix": (lambda s: ss.SoftSort(0.01, backend=backend)(s).to_dense(), 1 << 13)}
    if device == "cuda":
        found |= {"lapsum": (lambda s: ss.LapSum(0.01)(s) @ s, 1 << 24), "neuralsort": (lambda s: ss.NeuralSort(1.0)(s) @ s, 1 << 15),
                  "bitonic network": (lambda s: ss.SortingNetwork(tau=0.1)(s) @ s, 1 << 14), "sigmoid rank": (lambda s: ss.SigmoidRank(0.01)(s), 1 << 17),
                  "laplace rank": (lambda s: ss.LaplaceRank(0.01)(s), 1 << 24),
                  **{f"lists, {method} rank": (lambda s, method=method: ss.soft_rank(s, method=method, tau=0.01, offsets=lists_of(s)), most) for method, most in (("softsort", 1 << 24), ("laplace", 1 << 24), ("sigmoid", 1 << 20))},
                  "permutahedron": (lambda s: ss.Permutahedron(0.1)(s), 1 << 24), "mask of the top ten": (lambda s: ss.soft_topk_mask(s, 10, tau=0.01), 1 << 24),
                  "softsort likelihood": (lambda s: ss.SoftSort(0.01)(s).log_prob(s.detach().argsort(-1)), 1 << 24),
                  "neuralsort likelihood": (lambda s: ss.NeuralSort(1.0)(s).log_prob(s.detach().argsort(-1)), 1 << 15),
                  "lapsum likelihood": (lambda s: ss.LapSum(0.01)(s).log_prob(s.detach().argsort(-1)), 1 << 24),
                  "NeuralNDCG": (lambda s: neural_ndcg_loss(s, (s.detach() > 0.8).long(), tau=0.01, reduction="none"), 1 << 17),
                  "sinkhorn, ten rounds": (lambda s: ss.SinkhornSort(0.1, iterations=10)(s) @ s, 1 << 14),
                  "listing of the SoftSort paper": (lambda s: (-(s.sort(-1, descending=True).values[..., None] - s[..., None, :]).abs() / 0.01).softmax(-1) @ s[..., None], 1 << 13)}
        for peer, make in dict(torchsort=lambda m: lambda s: m.soft_rank(s, regularization_strength=0.1), fast_soft_sort=lambda m: None,
                               diffsort=lambda m: lambda s: m.DiffSortNet("bitonic", s.shape[-1], device=device)(s)[0]).items():
            if importlib.util.find_spec(peer) and (f := make(importlib.import_module(peer))): found[peer] = (f, 1 << 12)
    return {name: (torch.enable_grad()(f), most) for name, (f, most) in found.items()}


def bench_stage(args):
    "Forward and backward by events, and by the replay of a graph; small cases first, recorded one by one."
    import torch
    device = "cuda" if torch.cuda.is_available() else "cpu"
    deadline, rows = time.time() + args.seconds - 5, []
    sizes = [(100, 100), (1, 1000), (1, 10_000), (1, 100_000), (1, 1_000_000), (1, 10_000_000)] if device == "cuda" else [(2, 12)]
    for batch, n in sizes:
        s = torch.rand(batch, n, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
        for name, (f, most) in contenders(device).items():
            if n > most or time.time() > deadline: continue
            row = dict(contender=name, batch=batch, n=n, rehearsal=device == "cpu")
            try:
                G = torch.rand(f(s).shape, generator=torch.Generator().manual_seed(1)).to(device)      # not from the generator of the GPU, which a capture that fails leaves locked
                def step(): return torch.autograd.grad(f(s), s, G)
                row["forward"], row["both"] = median_time(lambda: f(s.detach()), device, args.rounds), median_time(step, device, args.rounds)
                if device == "cuda": row["replayed"] = replay_time(step, args.rounds)      # last: a call that makes the host wait fails here alone
            except Exception as e: row["failed"] = f"{type(e).__name__}: {str(e)[:300]}"
            rows.append(row)
            write(args.out, "bench", dict(rows=rows))
    write(args.out, "bench", dict(rows=rows, finished=time.time() < deadline))


def speed_stage(args):
    "A hundred epochs of the papers' speed task, which draws its own numbers, if the laboratory is installed and time is left."
    import torch
    if not torch.cuda.is_available(): return write(args.out, "speed", dict(skipped="no GPU here"))
    missing = [name for name in ("lightning", "torchvision", "sklearn") if not importlib.util.find_spec(name)]
    if missing: return write(args.out, "speed", dict(skipped=f"not installed: {', '.join(missing)}"))
    code, said = stop_after(args.seconds, [sys.executable, "-c", SPEED, str(args.out / "runs")], env=dict(os.environ, PYTHONPATH=PATHS))
    write(args.out, "speed", dict(exit=code, said=said))


SPEED = """
import sys
from softsortlib.lab.speed import SpeedConfig
print(SpeedConfig(n=1000, methods="lazy", device="cuda").run(sys.argv[1]))
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=9, help="when to be through")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the records; nothing is written elsewhere")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--stage", choices=SHARES, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.stage:
        sys.path.insert(0, str(root))
        return globals()[f"{args.stage}_stage"](args)
    end, summary = time.time() + 60 * args.minutes, {}
    env = dict(os.environ, PYTHONPATH=PATHS, PYTHONDONTWRITEBYTECODE="1", NUMBA_CACHE_DIR=str(args.out / "numba"), TRITON_CACHE_DIR=str(args.out / "triton"))
    import torch
    if not torch.cuda.is_available():
        print("no CUDA device here: this is a rehearsal through Triton's interpreter, and its figures mean nothing", flush=True)
        env["TRITON_INTERPRET"] = "1"
    for stage, share in SHARES.items():
        left, start = end - time.time(), time.time()
        if left < 5: summary[stage] = dict(skipped="no time left")
        else:
            seconds = max(share * left, min(left, 30))
            code, said = stop_after(seconds + 2, [sys.executable, __file__, "--out", str(args.out), "--stage", stage, "--seconds", str(seconds - 3), "--rounds", str(args.rounds)], env=env)
            summary[stage] = dict(exit=code, seconds=round(time.time() - start, 1), recorded=(args.out / f"{stage}.json").exists(), said=said[-1500:])
        print(stage, {k: v for k, v in summary[stage].items() if k != "said"}, flush=True)
        write(args.out, "summary", dict(rehearsal=not torch.cuda.is_available(), stages=summary))
    sys.exit(any(stage.get("exit") not in (0, None) for stage in summary.values()))


if __name__ == "__main__": sys.exit(main())
