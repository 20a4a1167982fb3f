"""What is surely a mistake does not pass in silence: each is answered by a warning or an error that says what to write."""
import warnings

import pytest
import torch

from softsortlib import SoftSort, soft_sort
from softsortlib import losses as L
from softsortlib.ragged import offsets_of

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


def test_slatk_trains_forwards_with_its_defaults(rng):
    "Free scores in random order: the relevant items reach the first k; with the published gradient they leave them."
    relevant = torch.arange(30).expand(20, 30) < 5
    start = torch.randn(20, 30, generator=rng)
    def precision(**options):
        s = start.clone().requires_grad_()
        adam = torch.optim.Adam([s], lr=0.1)
        for _ in range(150):
            adam.zero_grad()
            L.SLatKLoss(k=5, **options)(s, relevant).backward()
            adam.step()
        return L.hard_metric(L.PrecisionLoss(k=5), s, relevant).item()
    assert precision() > 0.95
    assert precision(fixed_weights=False) < 0.2                # what chance gives is 1 / 6
    assert torch.equal(L.slatk_loss(start, relevant, k=5), L.slatk_loss(start, relevant, k=5, fixed_weights=False))


def test_a_ramp_without_a_slope_is_told(rng):
    logits, target = torch.randn(64, 10, generator=rng).requires_grad_(), torch.randint(0, 10, (64,), generator=rng)
    steep, values = dict(kind="ramp", tau=0.01), []
    assert len(lines_told(lambda: values.append(L.zero_one_loss(logits, target, kind="ramp")), "kind='hinge'")) == 1
    assert not torch.autograd.grad(values[0], logits)[0].any()
    def quiet():
        L.zero_one_loss(logits, target)
        L.zero_one_loss(logits.detach(), target, **steep)
        L.zero_one_loss(100 * torch.eye(10).requires_grad_(), torch.arange(10), **steep)     # all right
        near = torch.tensor([[0.0, 0.2, -5.0]], requires_grad=True)
        L.zero_one_loss(near, torch.tensor([0]), kind="ramp", tau=0.5)                       # on the slope
    assert lines_told(quiet, "") == []


@pytest.mark.parametrize("name", ["tau", "weight_tau"])
def test_a_learned_temperature_that_turned_negative(name, rng):
    s, y = torch.randn(3, 4, generator=rng), torch.eye(4)[:3]
    with pytest.raises(ValueError, match=rf"learn log_{name} and pass {name}=log_{name}.exp\(\)"):
        L.slatk_loss(s, y, **{name: torch.nn.Parameter(torch.tensor(-0.1))})
    with pytest.raises(ValueError, match="maximum -0.1$"): L.slatk_loss(s, y, **{name: torch.tensor(-0.1)})


TWO_KINDS = [L.SLatKLoss(), L.PrecisionLoss(), L.RecallLoss(), L.AveragePrecisionLoss(), L.QuantisedAPLoss(), L.AUCLoss(), L.ReciprocalRankLoss(), L.LambdaLoss(weighting="precision")]


@pytest.mark.parametrize("loss", TWO_KINDS, ids=lambda loss: type(loss).__name__)
def test_grades_are_not_two_kinds_of_elements(loss, rng):
    s, y = torch.randn(3, 5, generator=rng), torch.tensor([1, 5, 2, 4, 3]).expand(3, 5)
    padding = torch.tensor([1, 0, 0, -1, -1]).expand(3, 5)
    calls = [loss, lambda *args, **kw: L.hard_metric(loss, *args, **kw)] if not isinstance(loss, (L.SLatKLoss, L.LambdaLoss)) else [loss]
    for f in calls:
        with pytest.raises(ValueError, match="got the values 1, 2, 3, 4, 5: say from which grade on an element is relevant, such as relevance >= 3"): f(s, y)
        with pytest.raises(ValueError, match="0 or 1"): f(s, y / 5)
        with pytest.raises(ValueError, match="got the values -1, 0, 1: leave padding out with mask=relevance >= 0"): f(s, padding)
        with pytest.raises(ValueError, match="the values -1"): f(s[0], padding[0], offsets=torch.tensor([0, 2, 5]))
        for good in (y > 2, (y > 2).int(), (y > 2).to(torch.bfloat16)): assert torch.equal(f(s, good), f(s, (y > 2).float()))
        assert torch.equal(f(s, padding, padding >= 0), f(s[:, :3], padding[:, :3]))


@pytest.mark.parametrize("loss", [L.ApproxNDCGLoss(), L.NeuralNDCGLoss(), L.PiRankLoss(), L.LambdaLoss(), L.ListNetLoss(target="share")], ids=lambda loss: type(loss).__name__)
def test_padding_in_the_grades_of_a_gain(loss, rng):
    s, y = torch.randn(3, 5, generator=rng), torch.tensor([1, 0, 3, -1, -1]).expand(3, 5)
    with pytest.raises(ValueError, match="got -1 to 3: leave padding out with mask=relevance >= 0"): loss(s, y)
    assert loss(s, y, y >= 0).isfinite()


X, Y, ROW = torch.tensor([[0.3, 2.0, -1.0]]), torch.tensor([[0, 2, 1]]), torch.arange(6.0)
MESSAGES = {
    "several dimensions": (lambda: soft_sort(X, dim=(0, 1)), TypeError, r"dim must be an int, got \(0, 1\): x.flatten\(first, last\) makes one"),
    "all dimensions": (lambda: soft_sort(X, dim=None), TypeError, r"dim must be an int, got None: call x.flatten\(\)"),
    "sizes": (lambda: soft_sort(ROW, offsets=torch.tensor([2, 1, 3])), ValueError, r"offsets must begin with 0, got 2.*They add up to 6, as lengths do: pass ragged.offsets_from\(sizes=offsets\)"),
    "sizes from an empty list": (lambda: soft_sort(ROW, offsets=torch.tensor([0, 1, 5])), ValueError, "offsets must end with 6, the number of items, got 5.*as lengths do"),
    "the list of each item": (lambda: L.spearman_loss(ROW, ROW, offsets=torch.tensor([0, 0, 1, 2, 2, 2])), ValueError, "got 2.*one for each item, as the number of its list: pass ragged.offsets_from"),
    "scores and grades swapped": (lambda: L.spearman_loss(Y, X), TypeError, "scores must be floating point, got torch.int64, and relevance torch.float32: if they are swapped, pass scores first"),
    "swapped in a metric": (lambda: L.hard_metric(L.KendallLoss(), Y, X), TypeError, "scores must be floating point"),
    "logits and classes swapped": (lambda: L.topk_loss(torch.tensor([1]), X), TypeError, "logits must be floating point, got torch.int64, and target torch.float32: if they are swapped, pass logits first"),
    "P and target swapped": (lambda: L.permutation_nll(X.argsort(-1), SoftSort()(X)), TypeError, "target must be an order, got a SoftPermutation: P comes first"),
    "grades for an order": (lambda: L.permutation_nll(SoftSort()(X), X), TypeError, r"target must be a tensor of indices .torch.long., .* got torch.float32: pass ideal_order\(target\)"),
    "grades for an order, bce": (lambda: L.permutation_bce(SoftSort()(X), X), TypeError, r"pass ideal_order\(target\)"),
}


@pytest.mark.parametrize("call, kind, message", MESSAGES.values(), ids=MESSAGES)
def test_a_message_says_which_call_would_work(call, kind, message):
    with pytest.raises(kind, match=message): call()


def test_the_call_of_a_message_works():
    lengths, lists = torch.tensor([2, 1, 3]), torch.tensor([0, 0, 1, 2, 2, 2])
    want = soft_sort(ROW, offsets=torch.tensor([0, 2, 3, 6]))
    assert torch.equal(soft_sort(ROW, offsets=offsets_of(lengths)), want)
    assert torch.equal(soft_sort(ROW, offsets=offsets_of(lists.unique_consecutive(return_counts=True)[1])), want)
    assert L.permutation_nll(SoftSort()(X), L.ideal_order(X)).isfinite()
