"""One step of a kernel from a test's point of view: gradient and state in, update out."""

import torch

from hyperadam.kernels import Motion, Part


def step(kernel, grad, state, seed=0):
    """The update for ``grad (..., p)``; ``state`` is overwritten. Zeros moved by ``-lr = 1`` are the update."""
    update = torch.zeros_like(grad)
    batch = kernel.admit([Part(update, state)], runs=grad.shape[:-1].numel())
    move(kernel, batch, [grad], [Motion(-1.0, seed=seed)])
    return update


def move(kernel, batch, grads, motions):
    kernel.take(batch, grads)
    kernel.step_(
        batch, kernel.rule.total_sums(lambda earlier: kernel.sums(batch, earlier)), motions
    )


def clone(state):
    return type(state)(*(x.detach().clone() for x in state))


def differentiate(tape, grads, probes):
    """Updates, last state, adjoints of the gradients and gradients of the weights of one period."""
    dtype = next(tape.rule.parameters()).dtype
    tape.start(tape.rule.init_state(grads[0].to(dtype)))
    updates = torch.stack([tape.step(g.to(dtype)) for g in grads])
    state = clone(tape.state)
    d_grads = torch.stack([tape.step_back(probe.to(dtype)) for probe in probes.flip(0)])
    names = [
        "update",
        *state._fields,
        "gradient",
        *(name for name, _ in tape.rule.named_parameters()),
    ]
    return dict(zip(names, [updates, *state, d_grads, *tape.gradients()], strict=True))
