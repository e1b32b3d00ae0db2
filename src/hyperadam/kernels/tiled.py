"""HyperAdam's step in plain torch: tiles of coordinates that stay in cache, every operation into a buffer kept for it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import elu_

from hyperadam.kernels.base import TILE
from hyperadam.kernels.fused import FusedKernel
from hyperadam.kernels.packing import Weights
from hyperadam.rules.base import Sums
from hyperadam.rules.hyperadam import ALMOST_ONE, EPSILON, GAMMA_MAX, HyperAdamRule, HyperAdamState
from hyperadam.rules.layers import NORM_GUARD, sum_of_squares


class Workspace:
    """The arrays of one tile, ``(rows, T)``: what the forward pass computes and the backward pass reads again."""

    def __init__(self, rule: HyperAdamRule, like: Tensor, width: int) -> None:
        J, S = rule.candidates, rule.state_size
        X = J if rule.preprocess else 1
        L = J if rule.lstm else 0

        def rows(count: int) -> Tensor:
            return like.new_empty(count, width)

        self.gn, self.xs, self.gates, self.ms = rows(1), rows(X + L), rows(4 * L), rows(J + S)
        self.decays, self.rho, self.m_hat, self.scale, self.tanh_c = rows(2 * J), rows(J), rows(J), rows(J), rows(L)
        self.x, self.s_old = self.xs[:X], self.xs[X:]
        self.i, self.f, self.z, self.o = self.gates.chunk(4) if L else (self.gates,) * 4
        self.u, self.r = self.decays[:J], self.decays[J:]


class TiledKernel(FusedKernel):
    """The torch backend of HyperAdam."""

    name = "torch"

    def __init__(self, rule: HyperAdamRule) -> None:
        super().__init__(rule)
        self._workspaces: dict[tuple[int, torch.dtype, torch.device], Workspace] = {}

    def supports(self, grad: Tensor, state: HyperAdamState) -> bool:
        return all(x.dtype == grad.dtype for x in state)

    def pack(self, like: Tensor) -> Weights:
        """The weights with the LSTM's forget bias of 1 joined to the learned one."""
        packed = super().pack(like)
        J = self.rule.candidates
        b_l = packed.b_l.clone()
        b_l[J : 2 * J] += 1
        return packed._replace(b_l=b_l)

    def sums(self, weights: Weights, grad: Tensor, state: HyperAdamState, sums: Sums) -> Tensor:
        columns = self.rule.state_size if sums else 1 + self.rule.candidates
        total = grad.new_zeros(grad.shape[0], columns, dtype=torch.float64)
        for run, here in self._run_tiles(grad):
            g, old = grad[run, here], HyperAdamState(*(x[run, :, here] for x in state))
            if sums:
                work = self._workspace(g)
                s, c = torch.empty_like(old.s), torch.empty_like(old.c)
                self._state_cell(weights, g, old, _inverse_norms(sums, run, g), work, s, c)
                total[run] += sum_of_squares(s)
            else:
                total[run, 0] += sum_of_squares(g)
                total[run, 1:] += sum_of_squares(old.m)
        return total

    def forward(
        self, weights: Weights, grad: Tensor, state: HyperAdamState, sums: Sums, new: HyperAdamState, update: Tensor
    ) -> None:
        for run, here in self._run_tiles(grad):
            g = grad[run, here]
            old, next_ = (HyperAdamState(*(x[run, :, here] for x in s)) for s in (state, new))
            work, norms = self._workspace(g), _inverse_norms(sums, run, g)
            self._state_cell(weights, g, old, norms, work, next_.s, next_.c)
            self._fields(weights, old.m, next_.s, norms, work)
            beta, gamma = work.u, work.r
            if self.rule.decay_bound is not None:
                beta = beta.mul_(self.rule.beta_max)
                gamma_min = torch.mul(beta, beta, out=work.scale).div_(self.rule.decay_bound)
                gamma = gamma.mul_(GAMMA_MAX - gamma_min).add_(gamma_min)
            one = g.new_ones(())
            torch.lerp(g, old.m, beta, out=next_.m)
            torch.lerp(g.square(), old.v, gamma, out=next_.v)
            torch.lerp(one, old.beta_hat, beta, out=next_.beta_hat)
            torch.lerp(one, old.gamma_hat, gamma, out=next_.gamma_hat)
            torch.div(next_.v, next_.gamma_hat, out=work.scale).add_(EPSILON).sqrt_().mul_(next_.beta_hat)
            torch.div(next_.m, work.scale, out=work.m_hat)
            torch.sum(work.m_hat.mul_(work.rho), dim=0, out=update[run, here])

    def _state_cell(
        self, w: Weights, g: Tensor, old: HyperAdamState, norms: Norms, work: Workspace, s: Tensor, c: Tensor
    ) -> None:
        """Line 8: fills ``s`` and ``c``, which may be the old ones."""
        torch.mul(g, norms[0][0], out=work.gn[0])
        if self.rule.preprocess:
            elu_(torch.addmm(w.b_p, w.theta_p, work.gn, out=work.x))
        else:
            work.x.copy_(work.gn)
        if not self.rule.lstm:
            s.copy_(work.x)
            return
        work.s_old.copy_(old.s)
        torch.addmm(w.b_l, w.theta_l, work.xs, out=work.gates)
        work.gates[: 2 * self.rule.candidates].sigmoid_()
        work.z.tanh_(), work.o.sigmoid_()
        torch.mul(work.f, old.c, out=c).addcmul_(work.i, work.z)
        torch.tanh(c, out=work.tanh_c)
        torch.mul(work.tanh_c, work.o, out=s)

    def _fields(self, w: Weights, m: Tensor, s: Tensor, norms: Norms, work: Workspace) -> None:
        """Lines 9, 10 and 17: the sigmoids behind the decay rates, and the weight field."""
        J = self.rule.candidates
        torch.mul(m, norms[0][1:, None], out=work.ms[:J])
        if self.rule.normalize_state:
            torch.mul(s, norms[1][:, None], out=work.ms[J:])
        else:
            work.ms[J:].copy_(s)
        torch.addmm(w.b_d, w.theta_d, work.ms, out=work.decays).sigmoid_()
        if self.rule.decay_bound is None:
            work.decays.clamp_(max=ALMOST_ONE)
        elu_(torch.addmm(w.b_q, w.theta_q, s, out=work.rho))

    def backward(
        self,
        weights: Weights,
        grad: Tensor,
        state: HyperAdamState,
        sums: Sums,
        d_update: Tensor,
        d_new: HyperAdamState,
        d_grad: Tensor,
        d_old: HyperAdamState,
    ) -> Weights:
        rule, J = self.rule, self.rule.candidates
        d_weights = Weights(*(torch.zeros_like(x) for x in weights))
        norms = [_inverse_norms(sums, run, grad) for run in range(grad.shape[0])]
        k_first = grad.new_zeros(grad.shape[0], 1 + J)  # sums over coordinates that the norms' adjoints need
        k_second = grad.new_zeros(grad.shape[0], rule.state_size)
        # The adjoint of s needs a sum over all coordinates before any of them can go on: one pass more.
        for collect in (True, False) if rule.normalize_state else (False,):
            for run, here in self._run_tiles(grad):
                g, d_d = grad[run, here], d_update[run, here]
                old, d_next, d_out = (HyperAdamState(*(x[run, :, here] for x in s)) for s in (state, d_new, d_old))
                work, norm = self._workspace(g), norms[run]
                s, c = torch.empty_like(old.s), torch.empty_like(old.c)
                self._state_cell(weights, g, old, norm, work, s, c)
                self._fields(weights, old.m, s, norm, work)
                d_g, d_decays, d_rho = self._adam_cell_backward(g, old, d_d, d_next, d_out, work)
                d_ms = weights.theta_d.T @ d_decays
                d_m, d_s_scaled = d_ms[:J], d_ms[J:]
                if collect:
                    k_second[run] += (d_s_scaled * s).sum(1)
                    continue
                k_first[run, 1:] += (d_m * old.m).sum(1)
                d_out.m.addcmul_(d_m, norm[0][1:, None])
                d_s = torch.addmm(d_next.s, weights.theta_q.T, d_rho)
                if rule.normalize_state:
                    d_s.addcmul_(d_s_scaled, norm[1][:, None]).addcmul_(s, (norm[1] ** 3 * k_second[run])[:, None], value=-1)
                else:
                    d_s += d_s_scaled
                d_weights.theta_d.addmm_(d_decays, work.ms.T)
                d_weights.b_d.add_(d_decays.sum(1, keepdim=True))
                d_weights.theta_q.addmm_(d_rho, s.T)
                d_weights.b_q.add_(d_rho.sum(1, keepdim=True))
                d_x = self._lstm_backward(weights, old, d_s, d_next, d_out, work, d_weights)
                if rule.preprocess:
                    d_z = d_x * torch.where(work.x > 0, 1, work.x + 1)
                    d_weights.theta_p.add_(d_z @ work.gn.T)
                    d_weights.b_p.add_(d_z.sum(1, keepdim=True))
                    d_x = weights.theta_p.T @ d_z
                k_first[run, 0] += (d_x[0] * g).sum()
                torch.addcmul(d_g, d_x[0], norm[0][0], out=d_grad[run, here])
        for run in range(grad.shape[0]):
            coefficients = norms[run][0] ** 3 * k_first[run]
            d_grad[run].sub_(coefficients[0] * grad[run])
            d_old.m[run].addcmul_(state.m[run], coefficients[1:, None], value=-1)
        return d_weights

    def _adam_cell_backward(
        self, g: Tensor, old: HyperAdamState, d_d: Tensor, d_next: HyperAdamState, d_out: HyperAdamState, work: Workspace
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Through lines 18 to 11: fills the moments' adjoints in ``d_out``; adjoints of g, the decay layer and ρ's layer."""
        q, u, r, rho = self.rule.decay_bound, work.u, work.r, work.rho
        beta, gamma = u, r
        if q is not None:
            beta = self.rule.beta_max * u
            gamma_min = beta**2 / q
            gamma = gamma_min + (GAMMA_MAX - gamma_min) * r
        g2 = g.square()
        m_g, v_g, beta_1, gamma_1 = old.m - g, old.v - g2, old.beta_hat - 1, old.gamma_hat - 1
        beta_hat, gamma_hat = torch.addcmul(g.new_ones(()), beta, beta_1), torch.addcmul(g.new_ones(()), gamma, gamma_1)
        v_tilde = torch.addcmul(g2, gamma, v_g).div_(gamma_hat)
        root = torch.rsqrt(v_tilde + EPSILON)
        scale = root / beta_hat
        m_hat = torch.addcmul(g, beta, m_g).mul_(scale)

        d_m_hat = d_d * rho
        d_m = torch.addcmul(d_next.m, d_m_hat, scale)
        d_field = d_m_hat.mul_(m_hat)
        d_beta_hat = torch.addcdiv(d_next.beta_hat, d_field, beta_hat, value=-1)
        d_v = d_field.mul_(root.square_()).div_(gamma_hat).mul_(-0.5)
        d_gamma_hat = torch.addcmul(d_next.gamma_hat, d_v, v_tilde, value=-1)
        d_v += d_next.v

        d_beta = torch.addcmul(d_m * m_g, d_beta_hat, beta_1)
        d_gamma = torch.addcmul(d_v * v_g, d_gamma_hat, gamma_1)
        d_g = ((1 - beta) * d_m).sum(0) + 2 * g * ((1 - gamma) * d_v).sum(0)
        for target, rate, value in zip(d_out, (beta, gamma, beta, gamma), (d_m, d_v, d_beta_hat, d_gamma_hat), strict=False):
            torch.mul(rate, value, out=target)
        if q is not None:
            d_beta = (d_beta + d_gamma * (1 - r) * beta * (2 / q)) * self.rule.beta_max
            d_gamma = d_gamma * (GAMMA_MAX - gamma_min)
        d_decays = torch.cat([d_beta * u * (1 - u), d_gamma * r * (1 - r)])
        d_rho = d_d * m_hat * torch.where(rho > 0, 1, rho + 1)
        return d_g, d_decays, d_rho

    def _lstm_backward(
        self,
        weights: Weights,
        old: HyperAdamState,
        d_s: Tensor,
        d_next: HyperAdamState,
        d_out: HyperAdamState,
        work: Workspace,
        d_weights: Weights,
    ) -> Tensor:
        """Through the LSTM: fills the adjoints of the old s and c, returns that of its input."""
        if not self.rule.lstm:
            d_out.s.zero_()
            return d_s
        i, f, z, o, tanh_c = work.i, work.f, work.z, work.o, work.tanh_c
        d_c = torch.addcmul(d_next.c, d_s * o, 1 - tanh_c.square())
        d_gates = torch.cat(
            [d_c * z * i * (1 - i), d_c * old.c * f * (1 - f), d_c * i * (1 - z.square()), d_s * tanh_c * o * (1 - o)]
        )
        torch.mul(d_c, f, out=d_out.c)
        d_xs = weights.theta_l.T @ d_gates
        d_weights.theta_l.addmm_(d_gates, work.xs.T)
        d_weights.b_l.add_(d_gates.sum(1, keepdim=True))
        X = work.x.shape[0]
        d_out.s.copy_(d_xs[X:])
        return d_xs[:X]

    def _run_tiles(self, grad: Tensor) -> Iterator[tuple[int, slice]]:
        for run in range(grad.shape[0]):
            for start in range(0, grad.shape[1], TILE):
                yield run, slice(start, start + TILE)

    def _workspace(self, g: Tensor) -> Workspace:
        key = g.numel(), g.dtype, g.device
        if key not in self._workspaces:
            if len(self._workspaces) > 8:
                self._workspaces.clear()
            self._workspaces[key] = Workspace(self.rule, g, g.numel())
        return self._workspaces[key]


#: Inverse norms over the whole vector, one tensor a round.
Norms = tuple[Tensor, ...]


def _inverse_norms(sums: Sums, run: int, like: Tensor) -> Norms:
    return tuple(torch.rsqrt(x[run] + NORM_GUARD).to(like.dtype) for x in sums)
