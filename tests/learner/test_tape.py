"""A tape does what the function did when it was recorded, bit for bit, with fewer kernels."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from roboloop.algos.learner.kernels import CannotReplay, DrawsNumbers
from roboloop.algos.learner.tape import Tape


def assert_replayed(compute, inputs, outputs):
    """Record a function, change its inputs, and compare what the tape writes with what the function does."""
    tape = Tape(compute)
    for _ in range(3):
        for tensor in inputs:
            tensor.data.normal_()
        compute()
        wanted = [out.clone() for out in outputs]
        for out in outputs:
            out.fill_(float("nan"))
        tape.run()
        for out, value in zip(outputs, wanted, strict=True):
            assert torch.equal(out, value)
    return tape


LAYERS = {
    "relu": lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)),
    "layer norm": lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.SiLU(), nn.Linear(6, 3)),
    "elu": lambda: nn.Sequential(nn.Linear(4, 6), nn.ELU(), nn.Linear(6, 3), nn.Tanh()),
    "gelu": lambda: nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 3), nn.Softplus()),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)
    ),
    "softmax": lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)),
}
LOSSES = {
    "squares": lambda y, t: (y - t).square().mean(),
    "mse": functional.mse_loss,
    "huber": functional.huber_loss,
    "cross entropy": lambda y, t: functional.cross_entropy(y, t.softmax(1)),
    "least": lambda y, t: torch.minimum(y, t).sum() + y.amin(0).sum() + y.max(1).values.mean(),
    "parts": lambda y, t: y[:, 1].sum() * y[1:, :2].mean() + torch.stack((y, t)).sort(0).values[0].mean(),
    "choice": lambda y, t: torch.where(y > t, y, 2.0 * y).clamp(-1, 1).mean() + (1.0 - y).abs().sum(),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("layers", LAYERS)
def test_gradients_and_losses_are_those_of_autograd(layers, loss):
    net, x, target = LAYERS[layers](), torch.randn(7, 4), torch.randn(7, 3)
    grads = [torch.empty_like(p) for p in net.parameters()]
    said = torch.empty(2)

    def compute():
        y = net(x)
        value = LOSSES[loss](y, target)
        for grad, found in zip(grads, torch.autograd.grad(value, [*net.parameters()]), strict=True):
            grad.copy_(found)
        said.copy_(torch.stack((value.detach(), y.detach().mean())))

    assert_replayed(compute, [x, target, *net.parameters()], [*grads, said])


def test_gradients_are_written_where_they_belong_also_into_turned_weights():
    net, x = nn.Linear(4, 6), torch.randn(7, 4)
    net.weight.data = torch.randn(4, 6).t()  # as training memory lies
    weight, bias = torch.empty(4, 6), torch.empty(6)

    def compute():
        found = torch.autograd.grad(net(x).square().sum(), [net.weight, net.bias])
        weight.t().copy_(found[0])
        bias.copy_(found[1])

    tape = assert_replayed(compute, [x, net.weight, net.bias], [weight, bias])
    assert not [kernel for kernel in tape.kernels if "copy_" in kernel]


@pytest.mark.parametrize("sizes", [(3, 8, 16), (3, 16, 8), (2, 64, 40)])
def test_gradients_of_many_layers_at_once_add_up_in_the_same_order(sizes):
    groups, outputs, inputs = sizes
    x, weight = torch.randn(groups, 5, inputs), torch.randn(sizes, requires_grad=True)
    bias, grads = torch.randn(groups, 1, outputs), [torch.empty(sizes), torch.empty(groups, inputs, outputs).mT]

    def compute():
        loss = torch.baddbmm(bias, x, weight.mT).square().sum()
        (found,) = torch.autograd.grad(loss, [weight])
        for grad in grads:
            grad.copy_(found)

    assert_replayed(compute, [x, weight, bias], grads)
    del grads[0]
    assert_replayed(compute, [x, weight, bias], grads)
    grads[0] = torch.empty(sizes)
    assert_replayed(compute, [x, weight, bias], grads)


def test_what_nobody_reads_and_what_is_always_the_same_is_not_run_again():
    x, out = torch.randn(5), torch.empty(5)

    def compute():
        x.exp()
        out.copy_(x * (torch.ones(5) + torch.zeros(5)))

    assert assert_replayed(compute, [x], [out]).kernels == ["aten.mul.Tensor"]


def test_memory_that_is_changed_in_place_is_built_anew_each_time():
    x, out, total = torch.randn(4), torch.empty(4), torch.zeros(4)

    def compute():
        sums = torch.zeros(4)
        sums[1:3] += x[:2]
        out.copy_(sums)

    assert_replayed(compute, [x], [out])

    def add():
        total.add_(x)

    tape = Tape(add)
    tape.run()
    assert torch.equal(total, x + x)


def test_memory_of_results_is_used_again():
    x, out = torch.randn(1000), torch.empty(1000)

    def compute():
        y = x
        for _ in range(10):
            y = (y + 1.0) * 0.5
        out.copy_(y)

    tape = assert_replayed(compute, [x], [out])
    written = {kwargs["out"].data_ptr() for _, _, kwargs in tape._steps}
    assert len(written) == 2  # one in between, and where the last result goes


def test_a_function_that_draws_numbers_is_refused():
    with pytest.raises(DrawsNumbers, match="randn"):
        Tape(lambda: torch.randn(3))
    with pytest.raises(DrawsNumbers, match="bernoulli"):
        Tape(lambda: functional.dropout(torch.ones(3, requires_grad=True)))


@pytest.mark.parametrize("function", [lambda x: x if x.sum() > 0 else -x, lambda x: x.nonzero(), lambda x: x[x > 0]])
def test_kernels_that_depend_on_numbers_cannot_be_replayed(function):
    x = torch.randn(3)
    with pytest.raises(CannotReplay):
        Tape(lambda: function(x))
