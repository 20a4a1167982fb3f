"""The drawings with which chapters open: nbs/images/*.svg, computed by the library itself.

    python tools/draw.py [NAME ...]        # all, if none is named

A drawing takes its colours from the page. `INK` and the others stand for them while matplotlib draws; in the file they are CSS
variables with values for a light and a dark page, and `make docs` puts the file into the page, where the theme's values win.
"""
import re, sys
from io import StringIO
from pathlib import Path

import matplotlib
matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.patches import Polygon, Rectangle

import softsortlib as ss
import softsortlib.losses
from softsortlib.networks import bitonic_layers, odd_even_layers
from softsortlib.transport import soft_matching as match

FOLDER = Path(__file__).resolve().parent.parent / "nbs" / "images"
INK, MUTED, LINE, BLUE, ORANGE = "#010203", "#040506", "#070809", "#0a0b0c", "#0d0e0f"     # stand-ins, as no theme has them
COLOURS = {INK: ("ink", "#222222", "#e6e6e6"), MUTED: ("muted", "#666666", "#a8adb2"), LINE: ("line", "#c4c7ca", "#565b60"),
           BLUE: ("blue", "#1f77b4", "#6db3ee"), ORANGE: ("orange", "#d9660a", "#ffa154")}
ONE_LOOK = {"svg.fonttype": "none", "svg.hashsalt": "softsortlib", "font.family": "sans-serif", "font.size": 9, "axes.titlesize": 10,
            "text.color": INK, "axes.edgecolor": LINE, "axes.labelcolor": MUTED, "axes.titlecolor": INK, "xtick.color": MUTED, "ytick.color": MUTED,
            "axes.spines.top": False, "axes.spines.right": False, "lines.linewidth": 1.6, "figure.facecolor": "none", "axes.facecolor": "none"}

DRAWINGS = {}

def drawing(f):
    "Enter a function that returns a figure under its name"
    DRAWINGS[f.__name__] = f
    return f

def numbers(*values): return torch.tensor(values, dtype=torch.float64)

def bare(ax, **limits):
    "An axis that shows nothing but what is drawn on it"
    ax.set(xticks=[], yticks=[], **limits)
    ax.spines[:].set_visible(False)
    return ax

def cells(ax, P, x=0.0, y=0.0):
    "A matrix as squares that are as full as its entries are large, the first row on top"
    m, n = P.shape
    for i in range(m):
        for j in range(n):
            if P[i, j] > 0.004: ax.add_patch(Rectangle((x + j, y - i - 1), 1, 1, facecolor=BLUE, alpha=float(P[i, j]), lw=0))
    for k in range(m + 1): ax.plot([x, x + n], [y - k, y - k], color=LINE, lw=0.6)
    for k in range(n + 1): ax.plot([x + k, x + k], [y, y - m], color=LINE, lw=0.6)

def matrix(ax, P, title="", margin=0.1, **of_title):
    "A panel that holds a matrix and nothing else"
    m, n = P.shape
    cells(bare(ax, xlim=(-margin, n + margin), ylim=(-m - margin, margin), aspect="equal"), P)
    if title: ax.set_title(title, pad=3, **of_title)

def bars(ax, values, x, y, length=1.6, upright=True, color=ORANGE):
    "Values as bars that stand on y, side by side from x, or lie against x, one below the other from y"
    for k, v in enumerate(values / values.abs().max() * length):
        where = (x + k + 0.2, y, 0.6, float(v)) if upright else (x, y - k - 0.8, float(v), 0.6)
        ax.add_patch(Rectangle(where[:2], *where[2:], facecolor=color, lw=0))

@drawing
def soft_permutation():
    "Scores below, the matrix above them, the sorted values to its right: hard, soft, too soft"
    s = numbers(2, 5, 3, 1, 4)
    fig, axes = plt.subplots(1, 3, figsize=(7.6, 2.7))
    for ax, (tau, title) in zip(axes, ((1e-3, "τ → 0: a permutation"), (0.5, "τ = 0.5: a soft one"), (5.0, "τ = 5: nearly the mean"))):
        P = ss.SoftSort(tau)(s)
        cells(bare(ax, xlim=(-0.8, 8.2), ylim=(-8.2, 1.0), aspect="equal"), P.to_dense())
        bars(ax, s, 0, -7.4)
        bars(ax, P @ s, 5.5, 0, upright=False)
        ax.text(2.5, -7.6, "x", ha="center", va="top", style="italic")
        ax.text(6.5, -5.2, "P x", ha="center", va="top", style="italic")
        ax.set_title(title, pad=2)
    return fig

@drawing
def two_directions():
    "A map from inputs to positions, and its transpose, with lines as thick as the entries"
    s = numbers(2, 5, 3, 1, 4)
    P = ss.SoftSort(0.6)(s)
    fig, axes = plt.subplots(1, 2, figsize=(7.6, 2.3))
    for ax, (title, up) in zip(axes, (("P @ x: from inputs to positions", True), ("P.mT @ y: from positions to inputs", False))):
        bare(ax, xlim=(-0.9, 4.9), ylim=(-0.75, 1.75))
        for i, row in enumerate(P.to_dense().tolist()):
            for j, p in enumerate(row):
                ax.plot([j, i], [0, 1], color=BLUE, lw=0.2 + 5 * p, alpha=0.15 + 0.85 * p, solid_capstyle="round")
        for k in range(5):
            ax.text(k, -0.14, f"x = {s[k]:g}" if up else f"{(P.mT @ torch.arange(1.0, 6.0, dtype=s.dtype))[k]:.2f}", ha="center", va="top")
            ax.text(k, 1.14, f"{(P @ s)[k]:.2f}" if up else f"y = {k + 1}", ha="center")
        ax.plot(range(5), [0] * 5, "o", color=ORANGE, ms=6)
        ax.plot(range(5), [1] * 5, "o", color=ORANGE, ms=6)
        tip, tail = (1.02, 0.0) if up else (0.0, 1.02)
        ax.annotate("", (-0.55, tip), (-0.55, tail), arrowprops=dict(arrowstyle="->", color=MUTED, lw=1.2))
        ax.set_title(title, pad=2)
    return fig

@drawing
def softsort():
    "Each row of SoftSort over the scores: a peak at the score of its place, with the row's weights as dots"
    s, tau = numbers(0.6, 1.4, 2.9, 3.6, 5.4), 0.45
    fig, ax = plt.subplots(figsize=(7.6, 2.9))
    bare(ax, xlim=(-0.9, 6.4), ylim=(-0.45, 5.15))
    line = torch.cat([torch.linspace(0, 6, 101, dtype=torch.float64), s]).sort().values
    P = ss.SoftSort(tau)(s).to_dense()
    for i in range(5):
        y = 4 - i
        Z = (-(s - s[i]).abs() / tau).exp().sum()
        curve = 0.9 * (-(line - s[i]).abs() / tau).exp() / Z + y
        ax.fill_between(line, y, curve, color=BLUE, alpha=0.14, lw=0)
        ax.plot(line, curve, color=BLUE, lw=1.2)
        ax.plot([0, 6], [y, y], color=LINE, lw=0.6)
        for j in range(5):
            ax.plot([s[j], s[j]], [y, y + 0.9 * P[i, j]], color=ORANGE, lw=2.4, solid_capstyle="butt")
            ax.plot(s[j], y + 0.9 * P[i, j], "o", color=ORANGE, ms=3.2)
        ax.text(-0.12, y + 0.08, f"row {i + 1}", ha="right")
    for j, name in enumerate("₁₂₃₄₅"):
        ax.plot([s[j], s[j]], [-0.08, 4.9], color=LINE, lw=0.7, ls=(0, (2, 3)), zorder=0)
        ax.text(s[j], -0.15, f"s{name}", ha="center", va="top", style="italic")
    return fig

@drawing
def neuralsort():
    "The concave functions whose maxima are at the scores in order, and the weights of their softmax"
    s = numbers(5.5, 4.1, 2.8, 1.9, 0.6)
    n, line = 5, torch.linspace(-0.1, 6.2, 400, dtype=torch.float64)
    P = ss.NeuralSort(2.5, descending=True)(s).to_dense()
    fig, axes = plt.subplots(1, 5, figsize=(7.6, 2.0), sharex=True)
    for i, ax in enumerate(axes):
        F = lambda x: (n - 1 - 2 * i) * x - (x[:, None] - s).abs().sum(-1)
        low, high = F(line).min(), F(line).max()
        scale = lambda v: (v - low) / (high - low)
        bare(ax, xlim=(-0.4, 6.5), ylim=(-0.2, 1.12))
        ax.plot(line, scale(F(line)), color=BLUE, lw=1.3)
        ax.plot([-0.1, 6.2], [-0.02, -0.02], color=LINE, lw=0.7)
        for j in range(n):
            ax.plot([s[j]] * 2, [-0.02, scale(F(s))[j]], color=LINE, lw=0.6, ls=(0, (2, 2)))
            ax.plot(s[j], scale(F(s))[j], "o", color=ORANGE, ms=2 + 7 * float(P[i, j]) ** 0.5, mec=ORANGE)
        ax.set_title(f"row {i + 1}", pad=3)
        ax.text(s[i], -0.07, f"s{'₁₂₃₄₅'[i]}", ha="center", va="top", style="italic")
    return fig

def wires(layers):
    "Where the comparators (x, i, j) of each layer stand, those that overlap side by side, and where the network ends"
    x, columns = 0.0, []
    for layer in layers:
        columns.append([])
        ends = []
        for i, j in sorted(layer.tolist()):
            k = next((k for k, used in enumerate(ends) if used < i), len(ends))
            ends[k:k + 1] = [j]
            columns[-1].append((x + 0.3 * k, i, j))
        x += 0.3 * max(len(ends) - 1, 0) + 0.84
    return columns, x

def draw_network(ax, kind, n, values):
    "The network with its values: colour runs from the smallest (blue) to the largest (orange)"
    layers = (bitonic_layers if kind == "bitonic" else odd_even_layers)(n)
    columns, end = wires(layers)
    bare(ax, xlim=(-1.1, end + 0.7), ylim=(n - 0.4, -0.6))
    v = list(values)
    start = [-0.6] * n
    def lane(i, stop):
        weight = v[i] / (n - 1)
        ax.plot([start[i], stop], [i, i], color=ORANGE, alpha=0.2 + 0.8 * weight, lw=1.0 + 1.8 * weight, solid_capstyle="butt")
        start[i] = stop
    for column in columns:
        for x, i, j in column:
            lane(i, x)
            lane(j, x)
            v[i], v[j] = sorted((v[i], v[j]))
            ax.plot([x, x], [i, j], color=BLUE, lw=1.3, zorder=3)
            ax.plot([x, x], [i, j], "o", color=BLUE, ms=3.6, zorder=3)
    for i in range(n):
        lane(i, end)
        ax.text(-0.75, i, f"{values[i] + 1}", ha="right", va="center")
        ax.text(end + 0.15, i, f"{v[i] + 1}", ha="left", va="center")

@drawing
def networks():
    "The odd-even and the bitonic network of eight lanes, sorting the same numbers"
    fig, axes = plt.subplots(1, 2, figsize=(7.6, 2.6), width_ratios=(1, 1.15))
    for ax, kind in zip(axes, ("odd_even", "bitonic")):
        draw_network(ax, kind, 8, [5, 2, 7, 0, 6, 3, 1, 4])
        ax.set_title({"odd_even": "odd-even, 8 layers", "bitonic": "bitonic, 6 layers"}[kind], pad=4)
    return fig

@drawing
def soft_network():
    "Values through the layers of a bitonic network, hard and soft"
    s = numbers(0.62, 0.30, 0.95, 0.05, 0.80, 0.42, 0.18, 0.55)
    layers = bitonic_layers(8)
    fig, axes = plt.subplots(1, 3, figsize=(7.6, 2.5), sharey=True)
    for ax, steepness in zip(axes, (400.0, 20.0, 6.0)):
        values = [s.clone()]
        for layer in layers:
            x, (lo, hi) = values[-1].clone(), layer.T
            keep = torch.sigmoid(steepness * (x[hi] - x[lo]))
            x[lo], x[hi] = keep * x[lo] + (1 - keep) * x[hi], (1 - keep) * x[lo] + keep * x[hi]
            values.append(x)
        paths = torch.stack(values)
        for lane in range(8):
            ax.plot(range(len(values)), paths[:, lane], color=BLUE if lane < 4 else ORANGE, lw=1.2, marker="o", ms=2.6, alpha=0.9)
        ax.set(xticks=range(len(values)), yticks=[0, 0.5, 1], xlabel="layer")
        ax.set_title(f"steepness {steepness:g}", pad=4)
    axes[0].set_ylabel("value on a lane")
    fig.subplots_adjust(bottom=0.2)
    return fig

@drawing
def error_free_network():
    "Values through a soft network and an error-free one, and what the largest output asks of each score"
    s = numbers(0.62, 0.30, 0.95, 0.05, 0.80, 0.42, 0.18, 0.55)
    fig, axes = plt.subplots(1, 3, figsize=(7.6, 2.5), width_ratios=(1, 1, 0.9))
    for ax, swaps, title in zip(axes, ("soft", "error_free"), ("soft swaps", "error-free swaps")):
        paths = [s]
        for layer in bitonic_layers(8):
            x, (lo, hi) = paths[-1].clone(), layer.T
            pair = torch.stack([x[lo], x[hi]], -1)
            x[lo], x[hi] = (ss.SortingNetwork(kind="odd_even", swaps=swaps, tau=0.08)(pair) @ pair[..., None])[..., 0].mT
            paths.append(x)
        for lane, path in enumerate(torch.stack(paths).mT):
            ax.plot(range(len(path)), path, color=BLUE if lane < 4 else ORANGE, lw=1.2, marker="o", ms=2.6, alpha=0.9)
        ax.set(xticks=range(len(paths)), yticks=[0, 0.5, 1], ylim=(0, 1), xlabel="layer")
        ax.set_title(title, pad=4)
    axes[0].set_ylabel("value on a lane")
    x = s.clone().requires_grad_()
    pull = torch.autograd.grad((ss.SortingNetwork(swaps="error_free", tau=0.2)(x) @ x)[-1], x)[0]
    axes[2].bar(s.tolist(), pull.tolist(), width=0.05, color=BLUE)
    axes[2].axhline(0, color=LINE, lw=0.8)
    axes[2].set(xlim=(0, 1), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1], ylim=(min(0, 1.1 * float(pull.min())), 1.0), xlabel="score")
    axes[2].set_title("gradient of the largest", pad=4)
    fig.subplots_adjust(bottom=0.2, wspace=0.3)
    return fig

@drawing
def network_factors():
    "One sparse matrix for each layer, and their product"
    s, layers = numbers(0.62, 0.30, 0.95, 0.05, 0.80, 0.42, 0.18, 0.55), bitonic_layers(8)
    fig, axes = plt.subplots(1, 7, figsize=(7.6, 1.4))
    P, x = torch.eye(8, dtype=s.dtype), s.clone()
    for k, layer in enumerate(layers):
        A, (lo, hi) = torch.eye(8, dtype=s.dtype), layer.T
        keep = torch.sigmoid(12 * (x[hi] - x[lo]))
        A[lo, lo] = A[hi, hi] = keep
        A[lo, hi] = A[hi, lo] = 1 - keep
        P, x = A @ P, A @ x
        matrix(axes[6 - k], A, f"A{'₁₂₃₄₅₆'[k]}", style="italic")
    matrix(axes[0], P, "P =", style="italic")
    return fig

@drawing
def soft_swap():
    "What a comparator puts out: the minimum and the maximum, hard and soft"
    fig, axes = plt.subplots(1, 2, figsize=(7.6, 2.3), width_ratios=(1, 1.6))
    ax = bare(axes[0], xlim=(-0.2, 3.2), ylim=(-0.55, 1.55))
    for y, left, right in ((1, "a", "α a + (1 − α) b"), (0, "b", "(1 − α) a + α b")):
        ax.plot([0, 1.2], [y, y], color=MUTED, lw=1.4)
        ax.text(-0.1, y, left, ha="right", va="center", style="italic")
        ax.text(1.35, y, right, ha="left", va="center", style="italic")
    ax.plot([0.6, 0.6], [0, 1], color=BLUE, lw=1.6, marker="o", ms=5)
    ax.text(0.6, -0.2, "α = σ((b − a) / τ)", ha="center", va="top", color=BLUE)
    ax, a = axes[1], torch.linspace(-3, 3, 301, dtype=torch.float64)
    for tau, style in ((1e-6, (0, (1, 2))), (0.3, "-"), (1.0, (0, (5, 2)))):
        keep = torch.sigmoid(-a / tau)
        for value, color in ((keep * a, BLUE), ((1 - keep) * a, ORANGE)): ax.plot(a, value, color=color, ls=style, lw=1.4)
    ax.text(-1.6, -2.4, "smaller", color=BLUE)
    ax.text(0.4, 2.2, "larger", color=ORANGE)
    ax.set(xlabel="a, with b = 0", yticks=[-2, 0, 2], xticks=[-2, 0, 2])
    ax.set_title("dotted τ → 0, full τ = 0.3, dashed τ = 1", pad=4)
    fig.subplots_adjust(bottom=0.2)
    return fig

@drawing
def transport_on_a_line():
    "The cheapest plan keeps the order; any other crosses itself and costs more"
    x, y = numbers(0.4, 1.1, 1.5, 2.9, 3.4), numbers(0.5, 1.25, 2.0, 2.75, 3.5)
    fig, axes = plt.subplots(1, 2, figsize=(7.6, 1.9))
    for ax, (title, to) in zip(axes, (("in order: the cheapest", [0, 1, 2, 3, 4]), ("any other plan crosses", [1, 0, 2, 4, 3]))):
        bare(ax, xlim=(0, 4.2), ylim=(-0.3, 1.35))
        cost = float((x - y[to]).square().sum())
        for i, j in enumerate(to): ax.plot([x[i], y[j]], [1, 0], color=BLUE if i == j else ORANGE, lw=1.6)
        for height, points in ((1, x), (0, y)):
            ax.plot([0.15, 3.8], [height] * 2, color=LINE, lw=0.7)
            ax.plot(points, [height] * 5, "o", color=INK, ms=4.5)
        ax.text(3.9, 1, "x", va="center", style="italic")
        ax.text(3.9, 0, "y", va="center", style="italic")
        ax.set_title(f"{title}: Σ (x − y)² = {cost:.2f}", pad=2)
    return fig

@drawing
def plans():
    "A transport plan between twelve scores and twelve milestones at three temperatures, with its marginals"
    s = torch.randn(12, generator=torch.Generator().manual_seed(4), dtype=torch.float64).sort().values
    fig, axes = plt.subplots(1, 3, figsize=(7.6, 2.6))
    for ax, tau in zip(axes, (1e-4, 2e-2, 0.3)):
        P = ss.SinkhornSort(tau)(s).to_dense()
        bare(ax, xlim=(-1.2, 12.4), ylim=(-12.4, 1.6), aspect="equal")
        cells(ax, P / P.max())
        ax.set_title(f"τ = {tau:g}", pad=2)
        ax.text(6, -12.5, "scores", ha="center", va="top", color=MUTED)
        if tau == 1e-4: ax.text(-0.6, -6, "milestones", ha="center", va="center", rotation=90, color=MUTED)
    return fig

def corner(p):
    "A point with coordinates that sum to six, seen along (1, 1, 1)"
    x, y, z = (float(c) for c in p)
    return (y - x) / 2 ** 0.5, (2 * z - x - y) / 6 ** 0.5

@drawing
def permutahedron():
    "The hexagon of the permutations of 1, 2, 3, and soft ranks on their way from its centre to a corner"
    fig, axes = plt.subplots(1, 2, figsize=(7.6, 3.0))
    corners = [(1, 2, 3), (1, 3, 2), (2, 3, 1), (3, 2, 1), (3, 1, 2), (2, 1, 3)]
    s = numbers(1.9, 0.1, 1.3)
    taus = torch.logspace(-1, 3, 200, dtype=torch.float64)
    for ax, (name, title) in zip(axes, (("l2", "quadratic: τ = 4, 1.2, 0.5"), ("kl", "entropic: τ = 4, 1.2, 0.5"))):
        bare(ax, xlim=(-2.6, 2.6), ylim=(-1.95, 1.95), aspect="equal")
        ax.add_patch(Polygon([corner(c) for c in corners], facecolor=BLUE, alpha=0.1))
        ax.add_patch(Polygon([corner(c) for c in corners], facecolor="none", edgecolor=BLUE, lw=1.4))
        for c in corners:
            a, b = corner(c)
            ax.text(a + 0.1 * a, b + 0.2 * np.sign(round(b, 6)), " ".join(map(str, c)), ha="left" if a > 1.2 else "right" if a < -1.2 else "center", va="center", color=MUTED)
        path = [ss.Permutahedron(float(tau), regularization=name)(s) for tau in taus]
        ax.plot(*zip(*[corner(p * 6 / p.sum()) for p in path]), color=ORANGE, lw=2.2)
        for tau in (0.5, 1.2, 4.0):
            p = ss.Permutahedron(tau, regularization=name)(s)
            a, b = corner(p * 6 / p.sum())
            ax.plot(a, b, "o", color=ORANGE, ms=5)
        ax.plot(*corner((2, 2, 2)), "o", color=INK, ms=3)
        ax.set_title(title, pad=2)
    return fig

@drawing
def pooling():
    "Isotonic regression: the scores less their targets, and the blocks into which they are pooled"
    s = numbers(0.3, 0.9, 1.1, 1.2, 2.6, 2.7)
    fig, axes = plt.subplots(1, 2, figsize=(7.6, 2.4), sharex=True)
    for ax, tau in zip(axes, (0.2, 0.4)):
        ranks, at = ss.Permutahedron(tau)(s), torch.arange(1, 7, dtype=torch.float64)
        left = s / tau - at
        pooled = s / tau - ranks
        ax.plot(at, left, "o", color=ORANGE, ms=5)
        for k in range(6):
            ax.plot([k + 0.6, k + 1.4], [pooled[k]] * 2, color=BLUE, lw=2.4)
            ax.plot([k + 1] * 2, [left[k], pooled[k]], color=LINE, lw=1, zorder=0)
            ax.text(k + 1, -0.2, f"{ranks[k]:.2f}", ha="center", va="top", color=BLUE, transform=ax.get_xaxis_transform())
        ax.set(xticks=range(1, 7))
        ax.set_title(f"τ = {tau:g}: {len(set(round(float(v), 6) for v in pooled))} blocks", pad=4)
    axes[0].set_ylabel("s / τ − place")
    fig.subplots_adjust(bottom=0.3)
    return fig

def staircase(points, height):
    "The hard rank of a score that moves past seven others: figure, axis, the line (points,) on which it moves, the others, all sets (points, 8)"
    others, line = numbers(0.7, 1.2, 2.4, 2.6, 3.9, 4.4, 5.3), torch.linspace(0, 6, points, dtype=torch.float64)
    fig, ax = plt.subplots(figsize=(7.6, height))
    ax.plot(line, (line[:, None] > others).sum(-1) + 1, color=LINE, lw=1.6, drawstyle="steps-mid")
    return fig, ax, line, others, torch.cat([line[:, None], others.expand(points, -1)], -1)

def smooth_staircase(soft, tau):
    "The rank of a score as it moves past seven others: a staircase, and the smooth one of an operator"
    fig, ax, line, others, sets = staircase(481, 2.4)
    for t, style in ((tau, "-"), (4 * tau, (0, (5, 2)))):
        ax.plot(line, soft(t)(sets)[:, 0], color=BLUE, ls=style, lw=1.7)
    ax.plot(others, [0.55] * 7, "o", color=ORANGE, ms=4.5, clip_on=False)
    ax.set(xlim=(0, 6), ylim=(0.5, 8.3), yticks=range(1, 9), xlabel="a score that moves past seven others (dots)", ylabel="its rank")
    ax.set_title(f"full line τ = {tau:g}, dashed τ = {4 * tau:g}", pad=4)
    fig.subplots_adjust(bottom=0.22)
    return fig

@drawing
def sigmoid_rank(): return smooth_staircase(ss.SigmoidRank, 0.05)

@drawing
def gaussian_rank(): return smooth_staircase(ss.GaussianRank, 0.08)

@drawing
def laplace_rank(): return smooth_staircase(ss.LaplaceRank, 0.06)

@drawing
def lapsum():
    "The sum of Laplace steps over the scores, and where it takes the values 1.5, 2.5, ...: the shift that selects k"
    s, tau = numbers(0.8, 1.3, 2.6, 3.1, 4.6), 0.25
    line = torch.linspace(-0.4, 5.8, 621, dtype=torch.float64)
    def steps(b): u = (b[:, None] - s) / tau; return torch.where(u < 0, u.exp() / 2, 1 - (-u).exp() / 2).sum(-1)
    fig, ax = plt.subplots(figsize=(7.6, 2.4))
    ax.plot(line, steps(line), color=BLUE)
    for k in (1, 2, 3, 4):
        b = float(np.interp(k, steps(line), line))
        ax.plot([-0.4, b, b], [k, k, 0], color=LINE, lw=0.9)
        ax.plot(b, k, "o", color=BLUE, ms=4)
        ax.text(b, -0.62, f"b{'₁₂₃₄'[k - 1]}", ha="center", va="top", style="italic", color=BLUE)
    ax.plot(s, [0] * 5, "o", color=ORANGE, ms=5, clip_on=False, zorder=3)
    ax.set(xlim=(-0.4, 5.8), ylim=(0, 5.2), yticks=range(6), xticks=[], ylabel="Σ F((b − s) / τ)")
    fig.subplots_adjust(bottom=0.2)
    return fig

def masks(panels):
    "The weights of the three largest of nine scores; `panels` are what each is asked for, and how its weights are entitled"
    s = numbers(0.2, 0.5, 0.9, 1.0, 1.6, 1.9, 2.0, 2.9, 3.3)
    fig, axes = plt.subplots(1, len(panels), figsize=(7.6, 1.9), sharey=True)
    for ax, (options, title) in zip(axes, panels):
        w = ss.soft_topk_mask(s, 3, **options)
        ax.vlines(s, 0, w, color=BLUE, lw=2.4)
        ax.plot(s, w, "o", color=BLUE, ms=4)
        ax.axvspan(1.95, 3.5, color=ORANGE, alpha=0.12, lw=0)
        ax.set(ylim=(-0.03, 1.08), xlim=(0, 3.5), xticks=[], yticks=[0, 1])
        ax.set_title(title(w), pad=4)
    axes[0].set_ylabel("weight")
    return fig

def mask_of(method, taus):
    "The weights of a method at two temperatures"
    def counted(tau): return lambda w: f"τ = {tau:g}: {int((w == 0).sum())} zeros, {int((w == 1).sum())} ones"
    return masks([(dict(method=method, tau=tau), counted(tau)) for tau in taus])

@drawing
def topk_masks(): return masks([(dict(method=name, tau=1.0), lambda w, name=name: name) for name in ("lapsum", "sinkhorn", "threshold", "sparse", "simple")])

@drawing
def rounding():
    "A soft permutation, its rounding, and the entries that a known order asks for"
    s, target = numbers(2, 5, 3, 1, 4), torch.tensor([0, 2, 3, 4, 1])
    P = ss.SoftSort(0.7)(s)
    hard = torch.eye(5, dtype=s.dtype)[P.hard()]
    fig, axes = plt.subplots(1, 3, figsize=(7.6, 2.1))
    for ax, M, title in zip(axes, (P.to_dense(), hard, P.to_dense()), ("P", "P.hard()", f"P.log_prob(target): mean {float(P.log_prob(target).mean()):.2f}")):
        matrix(ax, M, title, margin=0.2)
    for i, j in enumerate(target.tolist()): axes[2].add_patch(Rectangle((j, -i - 1), 1, 1, facecolor="none", edgecolor=ORANGE, lw=1.8))
    return fig

@drawing
def quantiles():
    "Every quantile of eight numbers, hard and soft"
    x, q = numbers(0.2, 0.5, 0.6, 1.4, 2.2, 2.3, 3.1, 4.4), torch.linspace(0, 1, 101, dtype=torch.float64)
    fig, ax = plt.subplots(figsize=(7.6, 2.4))
    ax.plot(q, torch.quantile(x, q), color=LINE, lw=1.6)
    for tau, style in ((0.1, "-"), (0.6, (0, (5, 2)))): ax.plot(q, ss.soft_quantile(x, q, tau=tau), color=BLUE, ls=style)
    ax.plot([0] * 8, x, "o", color=ORANGE, ms=4.5, clip_on=False, zorder=3)
    ax.set(xlim=(0, 1), xlabel="q", ylabel="the q-quantile", xticks=[0, 0.25, 0.5, 0.75, 1])
    ax.set_title("grey torch.quantile, full line τ = 0.1, dashed τ = 0.6", pad=4)
    fig.subplots_adjust(bottom=0.22)
    return fig

@drawing
def temperatures():
    "One matrix at five temperatures"
    s = torch.randn(8, generator=torch.Generator().manual_seed(3), dtype=torch.float64).sort().values
    fig, axes = plt.subplots(1, 5, figsize=(7.6, 1.7))
    for ax, tau in zip(axes, (0.01, 0.1, 0.3, 1.0, 10.0)):
        matrix(ax, ss.SoftSort(tau)(s).to_dense(), f"τ = {tau:g}")
    return fig

def moving(loss, hard):
    "A loss as one score moves past four others: its hard counterpart is a staircase"
    line, others = torch.linspace(-0.5, 4.5, 201, dtype=torch.float64), numbers(0.5, 1.5, 2.5, 3.5)
    scores, wanted = torch.cat([line[:, None], others.expand(201, -1)], 1), numbers(2.5, 1, 2, 3, 4)
    fig, ax = plt.subplots(figsize=(7.6, 2.2))
    ax.plot(line, torch.stack([hard(s, wanted) for s in scores]), color=LINE, lw=1.6, drawstyle="steps-mid")
    for tau, style in ((0.1, "-"), (0.5, (0, (5, 2)))):
        ax.plot(line, torch.stack([loss(s[None], wanted[None], tau) for s in scores]), color=BLUE, ls=style)
    ax.plot(others, [ax.get_ylim()[0]] * 4, "o", color=ORANGE, ms=4.5, clip_on=False, zorder=3)
    ax.set(xlim=(-0.5, 4.5), xlabel="the score that moves, and the four it passes (dots); its place is between the second and the third")
    ax.set_title("grey the hard loss, full line τ = 0.1, dashed τ = 0.5", pad=4)
    fig.subplots_adjust(bottom=0.25)
    return fig

def ranks_of(x): return x.argsort().argsort().to(x.dtype)

def hard_spearman(s, y):
    "One minus the correlation of the ranks"
    return 1 - torch.corrcoef(torch.stack([ranks_of(s), ranks_of(y)]))[0, 1]

@drawing
def losses_on_an_order(): return moving(lambda s, y, tau: ss.losses.spearman_loss(s, y, tau=tau), hard_spearman)

def hard_ndcg(s, y):
    "One minus NDCG, with exponential gains"
    def dcg(order): return ((2 ** y[order] - 1) / torch.log2(torch.arange(2, len(y) + 2, dtype=y.dtype))).sum()
    return 1 - dcg(s.argsort(descending=True)) / dcg(y.argsort(descending=True))

@drawing
def losses_at_the_top(): return moving(lambda s, y, tau: ss.losses.approx_ndcg_loss(s, y, tau=tau), hard_ndcg)

@drawing
def sparse_rows():
    "A row of SoftSort on three simplices"
    s = numbers(0.2, 0.9, 1.3, 1.6, 2.4, 3.1)
    fig, axes = plt.subplots(1, 3, figsize=(7.6, 1.9), sharey=True)
    for ax, simplex in zip(axes, ("softmax", "entmax15", "sparsemax")):
        row = ss.SoftSort(0.6, simplex=simplex)(s).to_dense()[2]
        ax.vlines(s, 0, row, color=BLUE, lw=2.4)
        ax.plot(s, row, "o", color=BLUE, ms=3.6)
        for x, p in zip(s, row):
            if p == 0: ax.plot(x, 0, "o", mfc="none", mec=ORANGE, ms=7)
        ax.set(ylim=(-0.04, 0.75), xticks=[], yticks=[0, 0.5])
        ax.set_title(f"{simplex}: {int((row == 0).sum())} zeros", pad=4)
    axes[0].set_ylabel("weight")
    return fig

@drawing
def squared_distance():
    "The same row with the distance and with its square"
    s, line = numbers(0.6, 1.4, 2.9, 3.6, 5.4), torch.linspace(0, 6, 241, dtype=torch.float64)
    fig, axes = plt.subplots(1, 2, figsize=(7.6, 1.9), sharey=True)
    for ax, power, tau in zip(axes, (1, 2), (0.6, 0.7)):
        P = ss.SoftSort(tau, power=power)(s).to_dense()
        weight = lambda x, i: (-(x - s[i]).abs() ** power / tau).exp() / (-(s - s[i]).abs() ** power / tau).exp().sum()
        for i, color in ((1, BLUE), (3, ORANGE)):
            ax.fill_between(line, 0, weight(line, i), color=color, alpha=0.13, lw=0)
            ax.plot(line, weight(line, i), color=color, lw=1.2)
            ax.plot(s, P[i], "o", color=color, ms=4)
        ax.set(xticks=[], yticks=[0, 0.5], ylim=(-0.02, 0.85))
        ax.set_title(("|x − y|: peaks", "(x − y)²: bells")[power - 1], pad=4)
    axes[0].set_ylabel("weight")
    return fig

@drawing
def soft_matching():
    "Points matched with points at two temperatures, lines as thick as the entries"
    g = torch.Generator().manual_seed(5)
    a = torch.rand(6, 2, generator=g, dtype=torch.float64)
    b = (a + 0.16 * torch.randn(6, 2, generator=g, dtype=torch.float64))[torch.randperm(6, generator=g)]
    fig, axes = plt.subplots(1, 2, figsize=(7.6, 2.5))
    for ax, tau in zip(axes, (0.005, 0.06)):
        bare(ax, xlim=(-0.35, 1.35), ylim=(-0.3, 1.25))
        P = match(-torch.cdist(a, b).square(), tau=tau, tolerance=1e-3).to_dense()
        for i in range(6):
            for j in range(6):
                if P[i, j] > 0.01: ax.plot(*zip(a[i].tolist(), b[j].tolist()), color=BLUE, lw=0.2 + 3.5 * float(P[i, j]), alpha=0.15 + 0.85 * float(P[i, j]), zorder=0)
        ax.plot(*a.T, "o", color=INK, ms=5)
        ax.plot(*b.T, "s", color=ORANGE, ms=5)
        ax.set_title(f"τ = {tau:g}", pad=3)
    return fig

@drawing
def threshold_mask(): return mask_of("threshold", (0.1, 0.6))

@drawing
def sparse_mask(): return mask_of("sparse", (0.3, 1.5))

@drawing
def subsets():
    "All pairs of five, as likely as their scores say, and the marginals that they add up to"
    s = numbers(0.3, 0.8, 1.1, 1.9, 2.4)
    pairs = [(i, j) for i in range(5) for j in range(i + 1, 5)]
    chance = torch.stack([s[i] + s[j] for i, j in pairs]).softmax(0)
    marginals = ss.soft_topk_mask(s, 2, method="simple", tau=1.0)
    fig, ax = plt.subplots(figsize=(7.6, 2.2))
    bare(ax, xlim=(-0.8, 16.5), ylim=(-5.9, 1.3))
    for x, ((i, j), p) in enumerate(zip(pairs, chance)):
        for row in range(5): ax.plot(x, -row - 0.5, "s", ms=7, color=BLUE if row in (i, j) else LINE, alpha=0.9 if row in (i, j) else 0.35)
        ax.add_patch(Rectangle((x - 0.3, 0.1), 0.6, 5 * float(p), facecolor=ORANGE, lw=0))
    for row in range(5):
        ax.add_patch(Rectangle((12, -row - 0.8), 3.2 * float(marginals[row]), 0.6, facecolor=BLUE, lw=0))
        ax.text(12.15 + 3.2 * float(marginals[row]), -row - 0.5, f"{float(marginals[row]):.2f}", va="center")
        ax.text(-0.7, -row - 0.5, f"s{'₁₂₃₄₅'[row]}", ha="right", va="center", style="italic")
    ax.text(4.5, -5.5, "the ten pairs and their chances", ha="center", va="top", color=MUTED)
    ax.text(13.4, -5.5, "marginals, sum 2", ha="center", va="top", color=MUTED)
    return fig

def chances_of_counts(p):
    "The probabilities of 0, 1, ..., n successes of independent trials with chances p (n,)"
    Q = numbers(1)
    for chance in p: Q = torch.cat([Q * (1 - chance), numbers(0)]) + torch.cat([numbers(0), Q * chance])
    return Q

@drawing
def one_element_less():
    "How many of six are chosen, with one of them and without; and how few counts out of two thousand are likely"
    p = numbers(0.2, 0.5, 0.7, 0.4, 0.3, 0.45)
    Q, q = chances_of_counts(p), chances_of_counts(p[:-1])
    fig, (few, many) = plt.subplots(1, 2, figsize=(7.6, 2.4), width_ratios=(1, 1.25))
    few.bar(np.arange(7) - 0.2, Q.numpy(), width=0.4, color=BLUE)
    few.bar(np.arange(6) + 0.2, q.numpy(), width=0.4, color=ORANGE)
    few.text(3.8, 0.32, "Q: all six", color=BLUE)
    few.text(3.8, 0.27, "q: one fewer", color=ORANGE)
    few.set(xticks=range(7), yticks=[0, 0.2, 0.4], ylim=(0, 0.42), xlabel="count", ylabel="probability")
    p = torch.linspace(-4, 1.5, 2000, dtype=torch.float64).sigmoid()
    Q, mean, V = chances_of_counts(p), float(p.sum()), float((p * (1 - p)).sum())
    reach = 14 + (196 + 84 * V) ** 0.5
    many.axvspan(mean - reach, mean + reach, color=LINE, alpha=0.4, lw=0)
    many.semilogy(Q.clamp(min=1e-80).numpy(), color=BLUE)
    many.axhline(2e-18, color=ORANGE, lw=1, ls=":")
    many.set(xlim=(0, 2000), ylim=(1e-60, 10), yticks=[1, 1e-20, 1e-40, 1e-60], xlabel="count out of 2,000")
    many.text(mean, 1e-52, "window", ha="center", color=MUTED)
    fig.subplots_adjust(bottom=0.22, wspace=0.22)
    return fig

@drawing
def router():
    "Tokens and experts: the logits, and the two experts of each token"
    logits = torch.randn(6, 12, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    weights = ss.soft_topk_mask(logits.mT, 2, method="sparse", tau=1.0).mT
    hard = ss.soft_topk_mask(logits.mT, 2, method="sparse", tau=1.0, hard=True).mT
    fig, axes = plt.subplots(1, 3, figsize=(7.6, 1.5))
    for ax, M, title in zip(axes, (logits.softmax(0), weights, hard), ("softmax of the logits", "soft: weights that sum to 2", "hard: two experts a token")):
        cells(bare(ax, xlim=(-1.2, 12.1), ylim=(-7.2, 0.1), aspect="equal"), M)
        ax.text(6, -6.3, "tokens", ha="center", va="top", color=MUTED)
        ax.set_title(title, pad=3)
    axes[0].text(-0.4, -3, "experts", ha="center", va="center", rotation=90, color=MUTED)
    return fig

@drawing
def mixture_of_orders():
    "A few orders drawn at random, and their mean"
    s = numbers(2, 5, 3, 1, 4)
    P = ss.Perturbed(1.0, samples=200, generator=torch.Generator().manual_seed(0))(s)
    fig, axes = plt.subplots(1, 5, figsize=(7.6, 1.7))
    g = torch.Generator().manual_seed(1)
    for ax, title in zip(axes, ("four draws", "", "", "")):
        noisy = s - torch.empty(5, dtype=s.dtype).exponential_(generator=g).log()
        matrix(ax, torch.eye(5, dtype=s.dtype)[noisy.argsort()], title, loc="left")
    matrix(axes[4], P.to_dense(), "mean of 200")
    return fig

@drawing
def perturbed_ranks():
    "The mean rank of a score under noise: the staircase becomes smooth"
    fig, ax, line, _, sets = staircase(121, 2.3)
    for tau, color in ((0.1, BLUE), (0.5, ORANGE)):
        P = ss.Perturbed(tau, samples=400, noise="normal", generator=torch.Generator().manual_seed(0))(sets)
        ax.plot(line, (P.mT @ torch.arange(1, 9, dtype=line.dtype))[:, 0], color=color, lw=1.3)
    ax.set(xlim=(0, 6), yticks=range(1, 9), xlabel="a score that moves past seven others", ylabel="mean rank")
    ax.set_title("400 draws of normal noise: blue τ = 0.1, orange τ = 0.5", pad=4)
    fig.subplots_adjust(bottom=0.24)
    return fig

@drawing
def sample_sort():
    "Scores on three processes before and after the exchange"
    g = torch.Generator().manual_seed(6)
    parts = [torch.rand(n, generator=g) for n in (9, 6, 8)]
    whole = torch.cat(parts).sort().values
    cuts = [0, 8, 16, 23]
    fig, axes = plt.subplots(1, 2, figsize=(7.6, 1.7), sharey=True)
    for ax, rows, title in zip(axes, (parts, [whole[a:b] for a, b in zip(cuts, cuts[1:])]), ("each process has its own", "each process has an interval")):
        bare(ax, xlim=(-0.04, 1.04), ylim=(-0.45, 2.5))
        for r, x in enumerate(rows):
            ax.plot([0, 1], [2 - r] * 2, color=LINE, lw=0.8)
            for v in x.tolist(): ax.plot(v, 2 - r, "o", ms=6, color=(BLUE, INK, ORANGE)[next(p for p, part in enumerate(parts) if v in part.tolist())])
        ax.set_title(title, pad=3)
    for r in range(3): axes[0].text(-0.06, 2 - r, f"process {r}", ha="right", va="center")
    return fig

@drawing
def ragged_lists():
    "Lists padded to the longest, and the same lists end to end"
    lengths = (2, 9, 2, 4, 3, 2, 6)
    fig, axes = plt.subplots(1, 2, figsize=(7.6, 1.8), width_ratios=(1, 2.2))
    bare(axes[0], xlim=(-0.2, 9.2), ylim=(-7.2, 0.2))
    bare(axes[1], xlim=(-0.5, 28.5), ylim=(-2.4, 1.4))
    at = 0
    for b, n in enumerate(lengths):
        color = BLUE if b % 2 else ORANGE
        for j in range(max(lengths)):
            axes[0].add_patch(Rectangle((j + 0.06, -b - 0.94), 0.88, 0.88, facecolor=color if j < n else "none", edgecolor=color if j < n else LINE, lw=0.6))
        for j in range(n): axes[1].add_patch(Rectangle((at + j + 0.06, -0.44), 0.88, 0.88, facecolor=color, lw=0))
        axes[1].text(at, -0.8, str(at), ha="center", va="top", color=MUTED)
        at += n
    axes[1].text(at, -0.8, str(at), ha="center", va="top", color=MUTED)
    axes[1].text(14, -1.7, "offsets", ha="center", va="top", color=MUTED)
    axes[0].set_title(f"padded: {len(lengths) * max(lengths)} places", pad=3)
    axes[1].set_title(f"end to end: {sum(lengths)} items", pad=3)
    return fig

@drawing
def kinds_of_matrices():
    "What the four checkers ask: rows that sum to one, columns too, a largest entry of its own in each row, zeros and ones"
    s = numbers(2, 5, 3, 1, 4)
    tired = torch.tensor([[.1, .2, .6, .1, 0], [.2, .3, .4, .1, 0], [.1, .1, .7, 0, .1], [0, .5, .2, .1, .2], [.3, .3, .2, .1, .1]], dtype=s.dtype)
    panels = ((tired, "row-stochastic"), (ss.SoftSort(0.8)(s).to_dense(), "unimodal row-stochastic"), (ss.SinkhornSort(0.05)(s).to_dense(), "doubly stochastic"), (ss.SoftSort(1e-3)(s).to_dense(), "permutation"))
    fig, axes = plt.subplots(1, 4, figsize=(7.6, 2.3))
    for ax, (P, title) in zip(axes, panels):
        cells(bare(ax, xlim=(-0.2, 6.6), ylim=(-6.3, 0.2), aspect="equal"), P)
        for i, j in enumerate(P.argmax(1).tolist()): ax.plot(j + 0.5, -i - 0.5, "o", color=ORANGE, ms=3.2)
        for k in range(5):
            ax.text(k + 0.5, -5.2, f"{P.sum(0)[k]:.1f}", ha="center", va="top", fontsize=7.5, color=MUTED)
            ax.text(5.2, -k - 0.5, f"{P.sum(1)[k]:.1f}", ha="left", va="center", fontsize=7.5, color=MUTED)
        ax.set_title(title, pad=3, fontsize=9, x=0.42)
    return fig

@drawing
def first_rows():
    "The first three rows of P, and in them the column of the true class"
    s, y = numbers(2.1, 0.3, 1.6, 2.6, -0.4, 1.0), 2
    fig, axes = plt.subplots(1, 3, figsize=(7.6, 2.0))
    for ax, k in zip(axes, (1, 2, 3)):
        P = ss.SoftSort(0.5, descending=True)(s).to_dense()
        matrix(ax, P, margin=0.2)
        ax.add_patch(Rectangle((0, -k), 6, k, facecolor="none", edgecolor=INK, lw=1.2))
        ax.add_patch(Rectangle((y, -k), 1, k, facecolor="none", edgecolor=ORANGE, lw=2.2))
        ax.set_title(f"k = {k}: {float(P[:k, y].sum()):.2f}", pad=3)
        ax.text(3, -6.2, "classes", ha="center", va="top", color=MUTED)
    axes[0].text(-0.4, -3, "places", ha="right", va="center", rotation=90, color=MUTED)
    return fig

@drawing
def soft_vote():
    "A query among labelled points: lines as thick as the weights of their votes"
    g = torch.Generator().manual_seed(9)
    points = 1.9 * torch.randn(18, 2, generator=g, dtype=torch.float64).tanh()
    labels = (points @ numbers(1.0, 0.7) + 0.3 * torch.randn(18, generator=g, dtype=torch.float64) > 0).long()
    query = numbers(0.25, 0.15)
    s = -(points - query).square().sum(-1)
    fig, axes = plt.subplots(1, 3, figsize=(7.6, 2.5))
    for ax, tau in zip(axes, (0.01, 0.3, 3.0)):
        w = ss.SoftSort(tau, descending=True)(s)[:5, :].to_dense().mean(0)
        bare(ax, xlim=(-2.1, 2.1), ylim=(-2.1, 2.1))
        for p, label, weight in zip(points.tolist(), labels.tolist(), w.tolist()):
            color = ORANGE if label else BLUE
            ax.plot([query[0], p[0]], [query[1], p[1]], color=color, lw=0.3 + 18 * weight, alpha=0.2 + 0.8 * min(1, 5 * weight), solid_capstyle="butt", zorder=0)
            ax.plot(*p, "o", color=color, ms=4.5)
        ax.plot(*query, "D", color=INK, ms=5)
        ax.set_title(f"τ = {tau:g}: orange {float(w[labels == 1].sum()):.0%}", pad=3)
    return fig

@drawing
def loss_of_sets():
    "Three sets with padding, the loss of each, and their mean"
    s = torch.randn(3, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    y = torch.randint(0, 4, (3, 6), generator=torch.Generator().manual_seed(1)).to(s.dtype)
    mask = torch.arange(6) < torch.tensor([6, 4, 2])[:, None]
    loss = ss.losses.approx_ndcg_loss(s, y, mask, tau=0.5, reduction="none")
    fig, ax = plt.subplots(figsize=(7.6, 1.9))
    bare(ax, xlim=(-0.2, 21), ylim=(-3.4, 1.1))
    for b in range(3):
        for j in range(6):
            for x, M, color in ((0, s.sigmoid(), BLUE), (7.2, y / 3, ORANGE)):
                real = bool(mask[b, j])
                ax.add_patch(Rectangle((x + j + 0.06, -b - 0.94), 0.88, 0.88, facecolor=color if real else "none", alpha=0.12 + 0.8 * float(M[b, j]) if real else 1, edgecolor="none" if real else LINE, lw=0.6))
        ax.annotate("", (15.2, -b - 0.5), (13.6, -b - 0.5), arrowprops=dict(arrowstyle="->", color=MUTED, lw=1))
        ax.text(15.5, -b - 0.5, f"{float(loss[b]):.3f}", va="center")
        ax.plot([17.3, 18.1], [-b - 0.5, -1.5], color=LINE, lw=1)
    ax.text(18.3, -1.5, f"mean {float(loss.mean()):.3f}", va="center")
    for x, text in ((3, "scores"), (10.2, "relevance"), (16, "loss")): ax.text(x, 0.25, text, ha="center", va="bottom", color=MUTED)
    return fig

@drawing
def one_after_the_other():
    "The likelihood of an order: the softmax of what is left, the right one taken away"
    s, order = numbers(1.2, 2.0, 0.1, 1.5, 0.6), [1, 0, 3, 4, 2]
    fig, axes = plt.subplots(1, 4, figsize=(7.6, 1.9), sharey=True)
    left, likelihood = list(range(5)), 1.0
    for i, ax in enumerate(axes):
        p = s[left].softmax(0)
        for j, v in zip(left, p.tolist()):
            ax.add_patch(Rectangle((j - 0.32, 0), 0.64, v, facecolor=ORANGE if j == order[i] else BLUE, lw=0))
        chosen = float(p[left.index(order[i])])
        likelihood *= chosen
        ax.set(xlim=(-0.6, 4.6), ylim=(0, 0.8), xticks=range(5), xticklabels=list("abcde"), yticks=[0, 0.5])
        ax.set_title(f"place {i + 1}: {chosen:.2f}", pad=4)
        left.remove(order[i])
    axes[0].set_ylabel("softmax of the rest")
    fig.text(0.5, -0.06, f"the order b, a, d, e, c has the likelihood {likelihood:.3f}, the product", ha="center", color=MUTED)
    return fig

@drawing
def pair_weights():
    "How much each pair of ten documents counts: all alike, by NDCG, by precision at three"
    from softsortlib.losses.pairs import pair_weights as weights_of, places_of
    y = numbers(1, 3, 0, 2, 1, 0, 2, 0, 1, 0)
    s, real = -torch.arange(10, dtype=y.dtype), torch.ones(10, dtype=torch.bool)
    fig, axes = plt.subplots(1, 3, figsize=(7.6, 2.6))
    for ax, (kind, k, title) in zip(axes, ((None, 10, "Kendall: all alike"), ("lambdarank", 10, "NDCG"), ("precision", 3, "precision at 3"))):
        p = places_of(s, (y > 0).to(y.dtype) if kind == "precision" else y, real, kind or "lambdarank", k, "exp2")
        w = weights_of(type(p)(*(v[:, None] for v in p)), type(p)(*(v[None] for v in p)), kind or "lambdarank", 1.0, k)
        if kind is None: w = (y[:, None] > y).to(y.dtype)
        matrix(ax, w / w.max(), title)
        ax.text(5, -10.2, "less relevant, by rank", ha="center", va="top", color=MUTED)
    axes[0].text(-0.3, -5, "more relevant, by rank", ha="right", va="center", rotation=90, color=MUTED)
    return fig

@drawing
def two_curves():
    "Precision over recall, and true over false positives, of twelve scores; the areas below are the metrics"
    hits = [1, 0, 1, 1, 0, 0, 1, 0, 0, 1, 0, 0]
    m, n = sum(hits), len(hits)
    found = np.cumsum(hits)
    fig, axes = plt.subplots(1, 2, figsize=(7.6, 2.5))
    at = [i for i in range(n) if hits[i]]
    precision = [found[i] / (i + 1) for i in at]
    for r, p in enumerate(precision): axes[0].add_patch(Rectangle((r / m, 0), 1 / m, p, facecolor=BLUE, alpha=0.16, lw=0))
    axes[0].step([0] + [(r + 1) / m for r in range(m)], [precision[0]] + precision, where="pre", color=BLUE)
    axes[0].plot([(r + 1) / m for r in range(m)], precision, "o", color=ORANGE, ms=4.5)
    x, t = np.concatenate([[0], np.cumsum([1 - h for h in hits])]) / (n - m), np.concatenate([[0], found]) / m
    axes[1].fill_between(x, 0, t, step="post", color=BLUE, alpha=0.16, lw=0)
    axes[1].plot(x, t, color=BLUE)
    axes[1].plot(x, t, "o", color=ORANGE, ms=3.4)
    area = sum(t[i] * (x[i + 1] - x[i]) for i in range(n))
    for ax, label, title in zip(axes, (("recall", "precision"), ("false positives", "true positives")), (f"average precision {np.mean(precision):.2f}", f"AUC {area:.2f}")):
        ax.set(xlim=(0, 1.02), ylim=(0, 1.06), xticks=[0, 1], yticks=[0, 1], xlabel=label[0], ylabel=label[1])
        ax.set_title(title, pad=4)
    fig.subplots_adjust(bottom=0.2, wspace=0.25)
    return fig

@drawing
def weights_of_places():
    "What the pairs of eight elements weigh, from the best down, by three rules"
    from softsortlib.losses.weighted import element_weights
    y = torch.arange(8, 0, -1, dtype=torch.float64)
    fig, axes = plt.subplots(1, 3, figsize=(7.6, 2.4))
    for ax, kind in zip(axes, ("equal", "logarithmic", "hyperbolic")):
        omega, total = element_weights(y, torch.ones(8, dtype=torch.bool), kind)
        w = ((omega[:, None] + omega) / total).triu(1)
        matrix(ax, w / w.max(), kind)
        ax.text(4, -8.2, f"pairs with the best: {float(w[0].sum()):.0%}", ha="center", va="top", color=MUTED)
    return fig

@drawing
def walk_to_the_hit():
    "Down the soft-sorted list: the chance of a hit at each place, and of a walk that ends there"
    s, relevant = numbers(3.0, 2.4, 1.9, 1.1, 0.8, 0.2), numbers(0, 0, 1, 0, 1, 0)
    fig, axes = plt.subplots(1, 2, figsize=(7.6, 2.0), sharey=True)
    for ax, tau in zip(axes, (0.1, 0.6)):
        h = (ss.SoftSort(tau, descending=True)(s) @ relevant).clamp(0, 1)
        stops = h * torch.cat([torch.ones(1, dtype=h.dtype), (1 - h).cumprod(0)[:-1]])
        for i in range(6):
            ax.add_patch(Rectangle((i + 0.62, 0), 0.36, float(h[i]), facecolor=BLUE, alpha=0.45, lw=0))
            ax.add_patch(Rectangle((i + 1.02, 0), 0.36, float(stops[i]), facecolor=ORANGE, lw=0))
        ax.set(xlim=(0.4, 6.6), ylim=(0, 1.05), xticks=range(1, 7), yticks=[0, 1], xlabel="place")
        loss = ss.losses.reciprocal_rank_loss(s, relevant, tau=tau)
        ax.set_title(f"τ = {tau:g}: reciprocal rank {1 - float(loss):.2f}", pad=4)
    axes[0].set_ylabel("chance")
    axes[1].text(0.6, 0.9, "a hit", color=BLUE)
    axes[1].text(0.6, 0.74, "the first hit", color=ORANGE)
    fig.subplots_adjust(bottom=0.24)
    return fig

@drawing
def hard_beside_soft():
    "The metric and its soft twin while gradient descent lowers the loss"
    from softsortlib.losses.metrics import hard_metric, soft_metric
    g = torch.Generator().manual_seed(4)
    s, y = torch.randn(30, generator=g, dtype=torch.float64).requires_grad_(), torch.randint(0, 4, (30,), generator=g).to(torch.float64)
    loss, hard, soft = ss.losses.ApproxNDCGLoss(tau=0.3, k=10), [], []
    for _ in range(60):
        hard.append(float(hard_metric(loss, s, y)))
        soft.append(float(soft_metric(loss, s, y).detach()))
        slope, = torch.autograd.grad(loss(s, y), s)
        s = (s - 1.5 * slope).detach().requires_grad_()
    fig, ax = plt.subplots(figsize=(7.6, 2.2))
    ax.plot(range(60), hard, color=ORANGE, drawstyle="steps-post")
    ax.plot(range(60), soft, color=BLUE)
    ax.set(xlim=(0, 59), xticks=[0, 20, 40], xlabel="step", ylabel="NDCG at 10")
    ax.set_title("orange the metric, blue its soft twin", pad=4)
    fig.subplots_adjust(bottom=0.24)
    return fig

@drawing
def regret():
    "The regret of a wanted order as one score moves: convex, and with noise smooth"
    line, others, wanted = torch.linspace(-1, 5, 121, dtype=torch.float64), numbers(0.5, 1.5, 2.5, 3.5), numbers(3, 1, 2, 4, 5)
    scores = torch.cat([line[:, None], others.expand(121, -1)], 1)
    hard = (scores.sort(-1).values * torch.arange(1, 6, dtype=line.dtype)).sum(-1) - scores @ wanted
    fig, ax = plt.subplots(figsize=(7.6, 2.3))
    ax.plot(line, hard, color=LINE, lw=1.6)
    from softsortlib.sampling.regret import ranking_regret
    for tau, style in ((0.3, "-"), (1.0, (0, (5, 2)))):
        loss = ranking_regret(scores, wanted.expand(121, -1), tau=tau, samples=2000, noise="normal", generator=torch.Generator().manual_seed(0))
        ax.plot(line, loss, color=BLUE, ls=style)
    ax.plot(others, [0] * 4, "o", color=ORANGE, ms=4.5, clip_on=False, zorder=3)
    ax.set(xlim=(-1, 5), ylim=(0, None), xlabel="the score that moves, and four others (dots); its place is the third", ylabel="regret")
    ax.set_title("grey without noise, full line τ = 0.3, dashed τ = 1", pad=4)
    fig.subplots_adjust(bottom=0.24)
    return fig

@drawing
def ramp():
    "A loss of hard ranks is a staircase; two sorts make it the ramp"
    fig, ax, line, others, sets = staircase(481, 2.4)
    slope = torch.zeros_like(sets)
    slope[:, 0] = 1.0                                   # the loss is the rank of the score that moves
    def best(u): return (u.sort(-1).values * torch.arange(1, 9, dtype=u.dtype)).sum(-1)
    for step, style in ((0.4, "-"), (1.6, (0, (5, 2)))): ax.plot(line, (best(sets) - best(sets - step * slope)) / step, color=BLUE, ls=style)
    ax.plot(others, [0.55] * 7, "o", color=ORANGE, ms=4.5, clip_on=False)
    ax.set(xlim=(0, 6), ylim=(0.5, 8.3), yticks=range(1, 9), xlabel="a score that moves past seven others (dots)", ylabel="its rank")
    ax.set_title("ramps of (113.2): full line λ = 0.4, dashed λ = 1.6", pad=4)
    fig.subplots_adjust(bottom=0.22)
    return fig

@drawing
def policy():
    "Rankings that a policy shows: gains as colour, places as wide as their discounts, and the reward of each"
    s, gains = numbers(2.0, 1.2, 0.9, 0.4, -0.2, -0.8), numbers(3, 1, 4, 0, 5, 2)
    g, theta = torch.Generator().manual_seed(7), 1 / torch.arange(2, 8, dtype=s.dtype).log2()
    fig, ax = plt.subplots(figsize=(7.6, 2.1))
    bare(ax, xlim=(-0.6, 5.6), ylim=(-5.4, 0.9))
    rewards = []
    for row in range(5):
        order = (s - torch.empty(6, dtype=s.dtype).exponential_(generator=g).log()).argsort(descending=True)
        x = 0.0
        for i, j in enumerate(order.tolist()):
            width = float(theta[i])
            ax.add_patch(Rectangle((x + 0.02, -row - 0.86), width - 0.04, 0.76, facecolor=ORANGE, alpha=0.08 + 0.13 * float(gains[j]), lw=0))
            ax.text(x + width / 2, -row - 0.48, "abcdef"[j], ha="center", va="center", style="italic")
            x += width
        rewards.append(float((theta * gains[order]).sum()))
        ax.text(x + 0.15, -row - 0.48, f"{rewards[-1]:.2f}", va="center")
    ax.text(0, 0.12, "place 1", color=MUTED, va="bottom")
    ax.text(x, 0.12, "6", color=MUTED, va="bottom", ha="right")
    ax.text(x + 0.15, 0.12, "reward", color=MUTED, va="bottom")
    ax.text(x + 0.75, -2.48, f"mean {sum(rewards) / 5:.2f}", va="center", color=BLUE)
    return fig

@drawing
def functions():
    "What five functions make of one input"
    x = numbers(2.0, 5.0, 3.2, 1.0, 3.8)
    top, _ = ss.soft_topk(x, 2, tau=0.3)
    panels = ((x, "x"), (ss.soft_sort(x, tau=0.3), "soft_sort"), (ss.soft_rank(x, tau=0.3), "soft_rank"), (top, "soft_topk, k = 2"), (ss.soft_topk_mask(x, 2, tau=0.3), "soft_topk_mask"))
    hard = (x, x.sort().values, ranks_of(x) + 1, x.sort(descending=True).values[:2], (ranks_of(x) >= 3).to(x.dtype))
    fig, axes = plt.subplots(1, 5, figsize=(7.6, 1.8))
    for ax, (values, title), true in zip(axes, panels, hard):
        high = 1.15 if title.endswith("mask") else 5.8
        bare(ax, xlim=(-0.3, 5.3), ylim=(-0.02 * high, high))
        for k, (v, t) in enumerate(zip(values.tolist(), true.tolist())):
            ax.add_patch(Rectangle((k + 0.15, 0), 0.7, v, facecolor=ORANGE if title == "x" else BLUE, alpha=0.85, lw=0))
            if title != "x": ax.plot([k + 0.05, k + 0.95], [t, t], color=INK, lw=1.1)
        ax.plot([0, 5], [0, 0], color=LINE, lw=0.8)
        ax.set_title(title, pad=4, fontsize=9)
    return fig

@drawing
def parts_of_the_whole():
    "Scores on three processes, and the parts of the sorted whole that come back"
    g = torch.Generator().manual_seed(2)
    sizes, x = (4, 2, 3), torch.rand(9, generator=g, dtype=torch.float64)
    fig, ax = plt.subplots(figsize=(7.6, 1.9))
    bare(ax, xlim=(-1.6, 11.4), ylim=(-1.7, 2.2))
    order = x.argsort().tolist()
    spot, at = [], 0.0
    for n in sizes:
        spot += [at + k for k in range(n)]
        at += n + 0.8
    for y, values in ((1, x), (-1.2, x.sort().values)):
        for k, v in zip(spot, values.tolist()): ax.add_patch(Rectangle((k + 0.14, y), 0.72, 0.15 + 0.75 * v, facecolor=ORANGE if y == 1 else BLUE, lw=0))
    for place, j in enumerate(order): ax.plot([spot[j] + 0.5, spot[place] + 0.5], [0.9, -0.2], color=LINE, lw=0.9)
    for r, n in enumerate(sizes):
        first = spot[sum(sizes[:r])]
        ax.text(first + n / 2, 2.0, f"process {r}", ha="center", color=MUTED)
        for y in (1, -1.2): ax.plot([first, first + n], [y, y], color=MUTED, lw=1)
    ax.text(-0.2, 1.3, "x", ha="right", style="italic")
    ax.text(-0.2, -0.9, "soft_sort", ha="right")
    return fig

@drawing
def carries():
    "Three intervals: what leaves each of them upwards fades, and one number at a seam says how dense it is"
    t = [numbers(0.2, 0.5, 0.7, 1.3), numbers(1.9, 2.6, 2.8), numbers(3.6, 3.9, 4.7, 4.9, 5.4)]
    tau = 0.55
    fig, ax = plt.subplots(figsize=(7.6, 2.1))
    bare(ax, xlim=(-0.1, 6.0), ylim=(-0.6, 2.3))
    for r, (own, color) in enumerate(zip(t, (BLUE, INK, ORANGE))):
        ax.plot(own, [0] * len(own), "o", color=color, ms=5, zorder=3)
        ax.plot([own[0], own[-1]], [-0.3, -0.3], color=color, lw=2)
        ax.text(float(own.mean()), -0.42, f"process {r}", ha="center", va="top", color=MUTED)
        if r == 2: break
        line = torch.linspace(float(own[-1]), 5.7, 200, dtype=torch.float64)
        U = (-(own[-1] - own) / tau).exp().sum()
        fog = U * (-(line - own[-1]) / tau).exp()
        ax.fill_between(line, 0, fog, color=color, alpha=0.14, lw=0)
        ax.plot(line, fog, color=color, lw=1.3)
        ax.plot(own[-1], U, "o", color=color, ms=4)
        ax.text(float(own[-1]) + 0.07, float(U) + 0.1, f"U{'₀₁'[r]} = {float(U):.2f}", color=color, va="bottom", style="italic")
    ax.plot([0, 5.7], [0, 0], color=LINE, lw=0.8, zorder=0)
    return fig

@drawing
def edges():
    "A thousand scores near the end of an interval, and the weighted points that stand for them"
    from softsortlib.distributed.seams import edge_moments, edge_points
    g = torch.Generator().manual_seed(0)
    u = 5 * torch.rand(1, 1000, generator=g, dtype=torch.float64) ** 1.4
    theta, w = edge_points(edge_moments(u, torch.ones_like(u, dtype=torch.bool), 5))
    fig, axes = plt.subplots(2, 1, figsize=(7.6, 2.6), sharex=True, height_ratios=(1, 1.5))
    counts, ends = np.histogram(-u[0].numpy(), bins=100, range=(-5, 0))
    axes[0].bar(ends[:-1], counts, width=0.05, align="edge", color=BLUE, alpha=0.45, lw=0)
    axes[1].vlines(-theta, 0, w[0], color=ORANGE, lw=2)
    axes[1].plot(-theta, w[0], "o", color=ORANGE, ms=2.6)
    for ax in axes:
        ax.set(xlim=(-5.1, 0.6), yticks=[], xticks=range(-5, 1))
        ax.spines["left"].set_visible(False)
        for k in range(-5, 1): ax.axvline(k, color=LINE, lw=0.6, ls=(0, (2, 3)), zorder=0)
    axes[0].text(-5, counts.max() * 0.75, "1000 scores", color=BLUE)
    axes[1].text(-5, float(w.max()) * 0.8, f"{len(theta)} points with weights", color=ORANGE)
    axes[1].set_xlabel("distance from the upper end of the interval, in temperatures")
    fig.subplots_adjust(bottom=0.2, hspace=0.12)
    return fig

@drawing
def all_to_all():
    "Blocks that three processes send to each other, and the way back of their gradients"
    fig, axes = plt.subplots(1, 2, figsize=(7.6, 2.0))
    for ax, title, back in zip(axes, ("forward: row p sends block (p, q) to q", "backward: the same way home"), (False, True)):
        bare(ax, xlim=(-0.9, 6.4), ylim=(-3.3, 0.6))
        for p, color in enumerate((BLUE, INK, ORANGE)):
            for q in range(3):
                left, right = (0.9 * q, -p), (3.6 + 0.9 * p, -q)
                for x, y in (left, right): ax.add_patch(Rectangle((x, y - 0.8), 0.8, 0.7, facecolor=color, alpha=0.75, lw=0))
            ax.text(-0.12, -p - 0.45, f"process {p}", ha="right", va="center", color=MUTED, fontsize=8)
        ax.annotate("", (2.75, -1.45) if back else (3.5, -1.45), (3.5, -1.45) if back else (2.75, -1.45), arrowprops=dict(arrowstyle="->", color=MUTED, lw=1.4))
        ax.set_title(title, pad=2, fontsize=9)
    return fig

@drawing
def block_diagonal():
    "The soft permutation of four lists end to end"
    offsets = torch.tensor([0, 4, 6, 11, 14])
    x = torch.randn(14, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    P = ss.soft_permutation(x, tau=0.3, offsets=offsets).to_dense()
    fig, ax = plt.subplots(figsize=(7.6, 3.0))
    cells(bare(ax, xlim=(-6, 22), ylim=(-15.6, 0.3), aspect="equal"), P)
    for a, b in zip(offsets.tolist(), offsets.tolist()[1:]):
        ax.add_patch(Rectangle((a, -b), b - a, b - a, facecolor="none", edgecolor=ORANGE, lw=1.6))
    for o in offsets.tolist(): ax.text(o, -14.3, str(o), ha="center", va="top", color=MUTED)
    ax.text(14.6, -7, "each list is sorted\nby a block of its own", va="center")
    return fig

@drawing
def digit_by_digit():
    "A quantile of numbers from 0 to 255, found by counting: sixteen counts, and sixteen more inside one of them"
    keys = (40 * torch.randn(4000, generator=torch.Generator().manual_seed(5)) + 120).clamp(0, 255).long().numpy()
    rank = 2800
    high = np.bincount(keys // 16, minlength=16)
    first = int(np.searchsorted(np.cumsum(high), rank, side="right"))
    low = np.bincount(keys[keys // 16 == first] % 16, minlength=16)
    left = rank - int(high[:first].sum())
    second = int(np.searchsorted(np.cumsum(low), left, side="right"))
    fig, axes = plt.subplots(1, 2, figsize=(7.6, 2.1))
    for ax, counts, found, title in zip(axes, (high, low), (first, second), (f"first pass: position {rank} is in bin {first}", f"second pass: position {left} of the bin is a {second}")):
        for v, c in enumerate(counts): ax.add_patch(Rectangle((v + 0.1, 0), 0.8, c, facecolor=ORANGE if v == found else BLUE, alpha=1 if v == found else 0.5, lw=0))
        ax.set(xlim=(0, 16), ylim=(0, 1.08 * counts.max()), xticks=[0.5, 8.5, 15.5], xticklabels=[0, 8, 15], yticks=[])
        ax.spines["left"].set_visible(False)
        ax.set_title(title, pad=4)
    axes[0].set_xlabel("high digit")
    axes[1].set_xlabel("low digit, inside the bin")
    fig.subplots_adjust(bottom=0.24)
    return fig

@drawing
def direction_and_mask():
    "One operator on five scores: upwards, downwards, and with two of them padding"
    s, mask = numbers(2, 5, 3, 1, 4), torch.tensor([True, True, True, False, False])
    maps = (ss.SoftSort(0.5)(s), ss.SoftSort(0.5, descending=True)(s), ss.SoftSort(0.5)(s, mask))
    fig, axes = plt.subplots(1, 3, figsize=(7.6, 2.4))
    for ax, P, title in zip(axes, maps, ("upwards", "descending=True", "mask: the last two are padding")):
        cells(bare(ax, xlim=(-0.4, 5.4), ylim=(-7.6, 0.2), aspect="equal"), P.to_dense())
        bars(ax, s, 0, -7.4, length=2)
        if P.mask is not None: ax.add_patch(Rectangle((3.05, -7.5), 1.9, 2.2, facecolor="none", edgecolor=MUTED, lw=1, ls=(0, (2, 2))))
        ax.set_title(title, pad=3, fontsize=9)
    return fig

@drawing
def ranks_alone():
    "The mean place of each column of P, and ranks that come without a matrix"
    s = numbers(2, 5, 3, 1, 4)
    P = ss.SoftSort(1.0)(s).to_dense()
    fig, axes = plt.subplots(1, 2, figsize=(7.6, 2.3))
    cells(bare(axes[0], xlim=(-3, 8), ylim=(-5.3, 0.2), aspect="equal"), P)
    places = torch.arange(1, 6, dtype=s.dtype)
    for j, r in enumerate(((P.mT @ places) / P.sum(0)).tolist()): axes[0].plot([j + 0.1, j + 0.9], [0.5 - r] * 2, color=ORANGE, lw=2.4)
    for k in range(5): axes[0].text(-0.2, -k - 0.5, str(k + 1), ha="right", va="center", color=MUTED, fontsize=8)
    axes[0].set_title("SoftSort: n² entries, and the mean place in each column", pad=3, fontsize=9)
    bare(axes[1], xlim=(-3, 8), ylim=(-5.3, 0.2), aspect="equal")
    for j, r in enumerate(ss.LaplaceRank(0.7)(s).tolist()): axes[1].plot([j + 0.1, j + 0.9], [0.5 - r] * 2, color=ORANGE, lw=2.4)
    for k in range(5):
        axes[1].plot([0, 5], [-k - 0.5] * 2, color=LINE, lw=0.6, zorder=0)
        axes[1].text(-0.2, -k - 0.5, str(k + 1), ha="right", va="center", color=MUTED, fontsize=8)
    axes[1].set_title("LaplaceRank: n numbers", pad=3, fontsize=9)
    return fig

@drawing
def noisy_copies():
    "Scores, and three draws: noisy copies of them, each sorted softly"
    s, g = numbers(2, 5, 3, 1, 4), torch.Generator().manual_seed(11)
    draws = [s + 0.8 * -torch.empty(5, dtype=s.dtype).exponential_(generator=g).log() for _ in range(3)]
    fig, axes = plt.subplots(1, 4, figsize=(7.6, 2.4))
    for ax, x, title in zip(axes, (s, *draws), ("no noise", "first draw", "second draw", "third draw")):
        cells(bare(ax, xlim=(-0.4, 5.4), ylim=(-7.6, 0.2), aspect="equal"), ss.SoftSort(0.3, descending=True)(x).to_dense())
        bars(ax, x.clamp(min=0.1), 0, -7.4, length=2, color=MUTED if x is s else ORANGE)
        ax.set_title(title, pad=3, fontsize=9)
    return fig

@drawing
def sums_of_parts():
    "Spearman's loss of a list on three processes: five sums on each, added up"
    g = torch.Generator().manual_seed(3)
    s, y = torch.randn(9, generator=g, dtype=torch.float64), torch.randn(9, generator=g, dtype=torch.float64)
    y = y + s
    a, b = ss.soft_rank(s, tau=0.5) - 5, ranks_of(y) - 4
    sums = torch.stack([a, b, a * a, b * b, a * b]).split((4, 2, 3), 1)
    rows = [part.sum(1) for part in sums]
    fig, ax = plt.subplots(figsize=(7.6, 1.9))
    bare(ax, xlim=(-3.2, 15.5), ylim=(-4.9, 0.9))
    for k, name in enumerate(("Σ a", "Σ b", "Σ a²", "Σ b²", "Σ a b")): ax.text(2 * k, 0.3, name, ha="center", color=MUTED)
    for r, row in enumerate((*rows, sum(rows))):
        last = r == 3
        ax.text(-1.4, -r - 0.5 - 0.3 * last, "the sum" if last else f"process {r}", ha="right", va="center", color=INK if last else MUTED)
        for k, v in enumerate(row.tolist()): ax.text(2 * k, -r - 0.5 - 0.3 * last, f"{v:.1f}", ha="center", va="center", color=BLUE if last else INK)
    ax.plot([-1, 9], [-3.2, -3.2], color=LINE, lw=1)
    ax.annotate("", (11.2, -3.8), (9.6, -3.8), arrowprops=dict(arrowstyle="->", color=MUTED, lw=1.2))
    ax.text(11.5, -3.8, f"loss {float(ss.losses.spearman_loss(s[None], y[None], tau=0.5)):.3f}", va="center", color=BLUE)
    return fig

@drawing
def scaling():
    "The three terms of the model as the number of processes grows"
    from softsortlib.distributed.scaling import Costs, modelled_seconds
    costs, N, P = Costs(sort=4e-9, scan=3e-7, bandwidth=1e9, latency=1e-4), 1e8, 2 ** np.arange(0, 15)
    local = [modelled_seconds(N / p, 1, costs) for p in P]
    exchange, waiting = 16 * N / P[1:] * (1 - 1 / P[1:]) / costs.bandwidth, costs.messages * costs.latency
    fig, ax = plt.subplots(figsize=(7.6, 2.5))
    ax.loglog(P, [modelled_seconds(N, int(p), costs) for p in P], color=INK, lw=2)
    ax.loglog(P, local, color=BLUE)
    ax.loglog(P[1:], exchange, color=ORANGE)
    ax.loglog(P, [waiting] * len(P), color=MUTED, ls=(0, (5, 2)))
    for x, y, text, color in ((60, 1.8, "together", INK), (1.1, 3.2, "sort and scan", BLUE), (1.9, 0.05, "exchange", ORANGE), (1.1, 0.0034, "waiting", MUTED)): ax.text(x, y, text, color=color)
    ax.set(xlabel="processes, for 10⁸ scores", ylabel="seconds", xticks=[1, 16, 256, 4096], xticklabels=["1", "16", "256", "4096"], yticks=[0.01, 1, 100], yticklabels=["0.01", "1", "100"])
    ax.minorticks_off()
    fig.subplots_adjust(bottom=0.2)
    return fig

def themed(svg):
    "The file's text with the page's colours in place of the stand-ins, and without what changes from run to run"
    for stand_in, (name, _, _) in COLOURS.items(): svg = svg.replace(stand_in, f"var(--draw-{name})")
    light, dark = ("".join(f"--draw-{name}:{c[k]};" for name, *c in COLOURS.values()) for k in (0, 1))
    style = f"<style>svg.drawing{{{light}}}@media(prefers-color-scheme:dark){{svg.drawing{{{dark}}}}}</style>"
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r"(\d+\.\d{2})\d{3,}", r"\1", svg)     # a hundredth of a point is enough
    svg = re.sub(r"<\?xml.*?\?>\s*|<!DOCTYPE.*?>\s*|<!--.*?-->\s*", "", svg, flags=re.S)
    return re.sub(r"(<svg )(.*?>)", rf'\1class="drawing" \2{style}', svg, count=1, flags=re.S)

def draw(name):
    "The text of a drawing's file"
    with plt.rc_context(ONE_LOOK):
        fig, out = DRAWINGS[name](), StringIO()
        fig.savefig(out, format="svg", bbox_inches="tight", pad_inches=0.04, transparent=True, metadata={"Date": None})
        plt.close(fig)
    return themed(out.getvalue())

def main(names):
    for name in names or DRAWINGS:
        (FOLDER / f"{name}.svg").write_text(draw(name), encoding="utf-8")
        print(f"{name}.svg  {(FOLDER / f'{name}.svg').stat().st_size // 1024} kB")

if __name__ == "__main__": main(sys.argv[1:])
