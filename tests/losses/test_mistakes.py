"""What is surely a mistake does not pass in silence: each is answered by a warning or an error that says what to write."""
import warnings

import pytest
import torch

from softsortlib import SoftSort
from softsortlib import losses as L

LISTS = {cls.__name__: cls for cls in vars(L).values() if isinstance(cls, type) and hasattr(cls, "function")
         and cls not in (L.PermutationNLL, L.PermutationBCE, L.TopKLoss, L.ZeroOneLoss)}
every = pytest.mark.parametrize("loss", LISTS.values(), ids=LISTS)


def lines_told(f, text):
    "The lines at which Python, as it is set by default, shows a warning of that text while f runs."
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        f()
    assert all(text in str(w.message) and w.filename == __file__ for w in told)
    return [w.lineno for w in told]


@every
def test_a_column_is_told_once_a_line(loss, rng):
    s, y = torch.randn(8, 1, generator=rng), torch.randint(0, 2, (8, 1), generator=rng)
    def train():
        for n in (8, 8, 5): loss()(s[:n], y[:n])
        loss.function(s, y)
    assert len(lines_told(train, "scores.squeeze(-1)")) == 2


@every
def test_lists_of_one_among_others_are_quiet(loss, rng):
    s, y = torch.randn(8, generator=rng), torch.tensor([0, 1, 0, 1, 1, 0, 0, 1])
    def quiet():
        loss()(s[:1], y[:1])
        loss()(s[None, :1], y[None, :1])
        loss()(s, y, offsets=torch.tensor([0, 1, 7, 8]))
        loss()(s.reshape(4, 2), y.reshape(4, 2), torch.tensor([True, False]).expand(4, 2))
    assert lines_told(quiet, "") == []
    def cut(): loss()(s, y, offsets=torch.arange(9))
    assert len(lines_told(cut, "offsets")) == 1


def test_the_other_doors_of_a_column(rng):
    s, y = torch.randn(8, 1, generator=rng), torch.randint(0, 2, (8, 1), generator=rng)
    one = torch.zeros(8, dtype=torch.long)
    for f in (lambda: L.hard_metric(L.KendallLoss(), s, y), lambda: L.soft_metric(L.KendallLoss(), s, y)):
        assert len(lines_told(f, "squeeze")) == 1
    for f in (L.topk_loss, L.zero_one_loss):
        assert len(lines_told(lambda: f(s, one), "a single class")) == 1  # noqa: B023
    for f in (L.permutation_nll, L.permutation_bce):
        assert len(lines_told(lambda: f(SoftSort()(s), one[:, None]), "dim=0")) == 1  # noqa: B023
    with pytest.raises(ValueError, match="call scores.squeeze"): L.spearman_loss(s, y[:, 0])
    torch.compile(L.kendall_loss, backend="eager", fullgraph=True)(s, y)                  # and the compiler does not trip over it
