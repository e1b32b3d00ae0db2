"""What runs on the GPU for HyperAdam2: one pass over all coordinates, and the sums it leaves.

A coordinate's networks are unrolled: no thread needs another's numbers. The TensorCell has spoken
before, in torch."""

from __future__ import annotations

import triton
import triton.language as tl

from hyperadam.kernels.triton.device import COUNT, FIRST, PARTS, address, find, load, store
from hyperadam.rules.hyperadam2 import EPSILON

#: What the programs are written for.
SLOW, GAMMAS = tl.constexpr(3), tl.constexpr(2)
#: Rows of the table after the three that ``find`` reads: a part's number in the batch, addresses,
#: and the seed of its rounding.
NUMBER, GRAD, PARAM, M, V, SEED = (tl.constexpr(row) for row in range(3, 9))
#: Places among a part's controls: the step's size and the weight decay, both times lr, ρ of the
#: first γ and of the second, one over the bias corrections of the slow βs and of the γs.
SIZE, DECAY, RHO_1, RHO_2, BETA_HAT, GAMMA_HAT, CONTROLS = (
    tl.constexpr(place) for place in (0, 1, 2, 6, 10, 13, 15)
)
#: Places in a unit's row: what it reads of each Adam and of the second moments, its bias, what it
#: adds to ρ of the first γ and of the second.
RATIO, BIAS, OUT_1, OUT_2, ROW = (tl.constexpr(place) for place in (4, 5, 6, 10, 14))
#: Sums over coordinates: of w², g², each m², each v.
TOTALS = tl.constexpr(7)

EPS = tl.constexpr(EPSILON)


@triton.jit
def step(
    table,
    controls,
    units,
    shares,
    UNITS: tl.constexpr,
    EACH: tl.constexpr,
    BETA_1: tl.constexpr,
    BETA_2: tl.constexpr,
    BETA_3: tl.constexpr,
    GAMMA_1: tl.constexpr,
    GAMMA_2: tl.constexpr,
    BLOCK: tl.constexpr,
    SLOPE: tl.constexpr,
    STATE: tl.constexpr,
    WEIGHT: tl.constexpr,
):
    """One step: overwrites state, moves the param, and leaves this program's share of the sums in
    ``shares (programs, runs, TOTALS)``.

    ``controls (parts, runs, CONTROLS)`` are the TensorCell's, ``units (1 or runs, UNITS, ROW)`` the
    weight field's; ``EACH`` run may have its own. ``SLOPE``, ``STATE`` and ``WEIGHT`` are the
    dtypes of gradient, state and param."""
    part, run, start, stride, n = find(table, BLOCK)
    grad, param = address(part, GRAD, SLOPE), address(part, PARAM, WEIGHT)
    m, v = address(part, M, STATE), address(part, V, STATE)
    seed = tl.load(part + SEED * PARTS)
    control = controls + (tl.load(part + NUMBER * PARTS) * tl.num_programs(1) + run) * CONTROLS
    weights = units + run * (EACH * UNITS * ROW)

    of_w, of_g = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    of_m1, of_m2 = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    of_m3 = tl.zeros((BLOCK,), tl.float64)
    of_v1, of_v2 = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    for here in range(start, n, stride):
        at = here + tl.arange(0, BLOCK)
        # past the end all is zero, and adds nothing to a sum
        g = load(grad, run, 1, 0, at, n)
        m1 = BETA_1 * load(m, run, SLOW, 0, at, n) + (1 - BETA_1) * g
        m2 = BETA_2 * load(m, run, SLOW, 1, at, n) + (1 - BETA_2) * g
        m3 = BETA_3 * load(m, run, SLOW, 2, at, n) + (1 - BETA_3) * g
        v1 = GAMMA_1 * load(v, run, GAMMAS, 0, at, n) + (1 - GAMMA_1) * g * g
        v2 = GAMMA_2 * load(v, run, GAMMAS, 1, at, n) + (1 - GAMMA_2) * g * g
        d = update(g, m1, m2, m3, v1, v2, control, weights, UNITS)

        w = load(param, run, 1, 0, at, n)
        w = (w - (tl.load(control + SIZE) * d + tl.load(control + DECAY) * w)).to(WEIGHT)
        tl.store(param + run * n + at, w, mask=at < n)

        # 32 bits of noise serve two rows, 16 each
        noise_1, noise_2, noise_3 = at, at, at
        if m.dtype.element_ty == tl.bfloat16:
            where = at.to(tl.int32)
            whose = where * 0 + run.to(tl.int32)
            noise_1, noise_2, noise_3, _ = tl.philox(seed, where, whose, where * 0, where * 0)
        store(m, m1, noise_1, run, SLOW, 0, at, n)
        store(m, m2, noise_1 >> 16, run, SLOW, 1, at, n)
        store(m, m3, noise_2, run, SLOW, 2, at, n)
        store(v, v1, noise_2 >> 16, run, GAMMAS, 0, at, n)
        store(v, v2, noise_3, run, GAMMAS, 1, at, n)

        of_w += square(w)
        of_g += square(g)
        of_m1 += square(m1)
        of_m2 += square(m2)
        of_m3 += square(m3)
        of_v1 += v1.to(tl.float64)
        of_v2 += v2.to(tl.float64)

    share = shares + (tl.program_id(0) * tl.num_programs(1) + run) * TOTALS
    tl.store(share, tl.sum(of_w, 0))
    tl.store(share + 1, tl.sum(of_g, 0))
    tl.store(share + 2, tl.sum(of_m1, 0))
    tl.store(share + 3, tl.sum(of_m2, 0))
    tl.store(share + 4, tl.sum(of_m3, 0))
    tl.store(share + 5, tl.sum(of_v1, 0))
    tl.store(share + 6, tl.sum(of_v2, 0))


@triton.jit
def add_up(table, shares, totals, CHUNK: tl.constexpr):
    """A part's sums, from its programs' ``shares``, into ``totals (parts, runs, TOTALS)``: one
    program for each part and run, so that they are always added in the same order."""
    part, run, runs = table + tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    first, count = tl.load(part + FIRST * PARTS), tl.load(part + COUNT * PARTS)
    place = tl.arange(0, 8)
    each = tl.arange(0, CHUNK)[:, None]
    total = tl.zeros((CHUNK, 8), tl.float64)
    for begin in range(0, count, CHUNK):
        share = shares + ((first + begin + each) * runs + run) * TOTALS + place[None, :]
        there = (begin + each < count) & (place[None, :] < TOTALS)
        total += tl.load(share, mask=there, other=0.0)
    number = tl.load(part + NUMBER * PARTS)
    tl.store(totals + (number * runs + run) * TOTALS + place, tl.sum(total, 0), mask=place < TOTALS)


@triton.jit
def update(g, m1, m2, m3, v1, v2, control, weights, UNITS: tl.constexpr):
    """d = Σ ρ m̂: the moment field, mixed by the weight field."""
    m1 *= tl.load(control + BETA_HAT)
    m2 *= tl.load(control + BETA_HAT + 1)
    m3 *= tl.load(control + BETA_HAT + 2)
    v1 *= tl.load(control + GAMMA_HAT)
    v2 *= tl.load(control + GAMMA_HAT + 1)
    r1, r2 = tl.rsqrt(v1 + EPS), tl.rsqrt(v2 + EPS)

    # how far each Adam agrees with their sum, and how the second moments compare
    u0, u1, u2, u3 = g * r2, m1 * r2, m2 * r2, m3 * r2
    share = (u0 + u1 + u2 + u3) / (1 + u0 * u0 + u1 * u1 + u2 * u2 + u3 * u3)
    x0, x1, x2, x3 = u0 * share, u1 * share, u2 * share, u3 * share
    ratio = v1 / (v1 + v2 + EPS) - 0.5

    # ρ m̂ = ρ̄ m̂ + Σ_unit h (θ₄ m̂): unit by unit, no ρ need be kept
    d = r1 * product(control + RHO_1, g, m1, m2, m3) + r2 * product(control + RHO_2, g, m1, m2, m3)
    for unit in tl.static_range(UNITS):
        row = weights + unit * ROW
        h = product(row, x0, x1, x2, x3) + tl.load(row + RATIO) * ratio + tl.load(row + BIAS)
        out = r1 * product(row + OUT_1, g, m1, m2, m3) + r2 * product(row + OUT_2, g, m1, m2, m3)
        d += tl.where(h > 0, h, 0.0) * out
    return d


@triton.jit
def product(row, x0, x1, x2, x3):
    """Four weights from ``row`` on, times one block of coordinates each."""
    low = tl.load(row) * x0 + tl.load(row + 1) * x1
    return low + tl.load(row + 2) * x2 + tl.load(row + 3) * x3


@triton.jit
def square(x):
    """In float64, where squares of float32 never overflow, alone or in sum."""
    x = x.to(tl.float64)
    return x * x
