"""What runs on the GPU: the rule on tiles of (PAD rows, BLOCK coordinates), a run at a time.

Rows beyond the rule's are zero from the first line to the last, and are never written. One launch
serves up to PARTS tensors: a program finds its own in a table of addresses."""

from __future__ import annotations

import triton
import triton.language as tl

from hyperadam.rules.hyperadam import ALMOST_ONE, EPSILON, GAMMA_MAX

PARTS = tl.constexpr(256)
#: Rows of the table: a part's first program and how many it has, coordinates, addresses, scalars.
FIRST, COUNT, N, GRAD, PARAM, M, V, BETA_HAT, GAMMA_HAT, S_OLD, C_OLD, SCALE, SIZE, DECAY, SEED = (
    tl.constexpr(field) for field in range(15)
)

#: Places among the matrices, each (PAD, PAD): of x and s in the LSTM's four gates, of m and s in
#: the two decay rates, of s in the weight field; among the columns, each (PAD,): theta_p, biases.
XL, SL, MD, SD, SQ = (tl.constexpr(place) for place in (0, 4, 8, 10, 12))
P, BP, BL, BD, BQ = (tl.constexpr(place) for place in (0, 1, 2, 6, 8))

EPS = tl.constexpr(EPSILON)
BELOW_ONE = tl.constexpr(ALMOST_ONE)
TO_ONE = tl.constexpr(1 - ALMOST_ONE)
GAMMA_END = tl.constexpr(GAMMA_MAX)


@triton.jit
def moment_sums(
    table,
    shares,
    J: tl.constexpr,
    PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    STATE: tl.constexpr,
):
    """This program's share of (‖g‖², ‖m¹‖², …, ‖m^J‖²), into ``shares (programs, runs, 1 + J)``."""
    part, run, start, stride, n = find(table, BLOCK)
    grad, m = address(part, GRAD, tl.float32), address(part, M, STATE)
    row = tl.arange(0, PAD)
    of_g = tl.zeros((1, BLOCK), tl.float64)
    of_m = tl.zeros((PAD, BLOCK), tl.float64)
    for here in range(start, n, stride):
        at = here + tl.arange(0, BLOCK)[None, :]
        g = load(grad, run, 1, 0, at, n).to(tl.float64)
        m_old = load(m, run, J, row[:, None], at, n).to(tl.float64)
        of_g += g * g
        of_m += m_old * m_old
    share = shares + (tl.program_id(0) * tl.num_programs(1) + run) * (1 + J)
    tl.store(share + tl.arange(0, 1), tl.sum(of_g, 1))
    tl.store(share + 1 + row, tl.sum(of_m, 1), mask=row < J)


@triton.jit
def state_sums(
    table,
    shares,
    matrices,
    columns,
    scales,
    J: tl.constexpr,
    PAD: tl.constexpr,
    S: tl.constexpr,
    PREPROCESS: tl.constexpr,
    LSTM: tl.constexpr,
    BLOCK: tl.constexpr,
    STATE: tl.constexpr,
):
    """This program's share of ‖s_t^j‖², the state computed but not kept."""
    part, run, start, stride, n = find(table, BLOCK)
    grad = address(part, GRAD, tl.float32)
    s, c = address(part, S_OLD, STATE), address(part, C_OLD, STATE)
    row = tl.arange(0, PAD)
    of_s = tl.zeros((PAD, BLOCK), tl.float64)
    for here in range(start, n, stride):
        at = here + tl.arange(0, BLOCK)[None, :]
        g_unit = load(grad, run, 1, 0, at, n) * tl.load(scales + run * (1 + J))
        s_old, c_old = 0.0, 0.0
        if LSTM:
            s_old = load(s, run, J, row[:, None], at, n)
            c_old = load(c, run, J, row[:, None], at, n)
        s_new, _ = state_cell(g_unit, s_old, c_old, matrices, columns, PAD, PREPROCESS, LSTM)
        # biases make a state of the coordinates past the end, too
        s_new = tl.where(at < n, s_new, 0.0).to(tl.float64)
        of_s += s_new * s_new
    share = shares + (tl.program_id(0) * tl.num_programs(1) + run) * S
    tl.store(share + row, tl.sum(of_s, 1), mask=row < S)


@triton.jit
def step(
    table,
    matrices,
    columns,
    scales,
    state_scales,
    J: tl.constexpr,
    PAD: tl.constexpr,
    S: tl.constexpr,
    PREPROCESS: tl.constexpr,
    LSTM: tl.constexpr,
    NORMALIZE: tl.constexpr,
    BOUND: tl.constexpr,
    BETA_MAX: tl.constexpr,
    BLOCK: tl.constexpr,
    STATE: tl.constexpr,
    WEIGHT: tl.constexpr,
    RELATIVE: tl.constexpr,
):
    """Algorithm 2 from line 8 on for a block of coordinates: overwrites state, moves the param.

    ``scales (runs, 1 + J)`` are one over the norms of g and m, ``state_scales (runs, S)`` one over
    those of s. ``STATE`` and ``WEIGHT`` are the dtypes of state and param. ``RELATIVE`` updates are
    multiplied by their part's own scale, one for each run."""
    part, run, start, _, n = find(table, BLOCK)
    row = tl.arange(0, PAD)[:, None]
    at = start + tl.arange(0, BLOCK)[None, :]
    g = load(address(part, GRAD, tl.float32), run, 1, 0, at, n)

    s, c = address(part, S_OLD, STATE), address(part, C_OLD, STATE)
    s_old, c_old = 0.0, 0.0
    if LSTM:
        s_old, c_old = load(s, run, J, row, at, n), load(c, run, J, row, at, n)
    g_unit = g * tl.load(scales + run * (1 + J))
    s_new, c_new = state_cell(g_unit, s_old, c_old, matrices, columns, PAD, PREPROCESS, LSTM)

    m = address(part, M, STATE)
    m_old = load(m, run, J, row, at, n)
    m_unit = m_old * tl.load(scales + run * (1 + J) + 1 + row, mask=row < J, other=0.0)
    s_unit = s_new
    if NORMALIZE:
        s_unit = s_new * tl.load(state_scales + run * S + row, mask=row < S, other=0.0)
    rates = decay_rates(m_unit, s_unit, matrices, columns, PAD, BOUND, BETA_MAX)
    beta, beta_rest, gamma, gamma_rest = rates

    v = address(part, V, STATE)
    beta_hat, gamma_hat = address(part, BETA_HAT, STATE), address(part, GAMMA_HAT, STATE)
    m_new = beta * m_old + beta_rest * g
    v_new = gamma * load(v, run, J, row, at, n) + gamma_rest * g * g
    beta_hat_new = beta * load(beta_hat, run, J, row, at, n) + beta_rest
    gamma_hat_new = gamma * load(gamma_hat, run, J, row, at, n) + gamma_rest
    moment_field = m_new / beta_hat_new * tl.rsqrt(v_new / gamma_hat_new + EPS)
    weight_field = elu(product(matrices, SQ, s_new, PAD) + column(columns, BQ, PAD))
    d = tl.sum(weight_field * moment_field, 0)[None, :]
    if RELATIVE:
        scale = tl.load(address(part, SCALE, tl.float32) + run)
        # chosen, not just multiplied: fused with what follows, a scale of 1 would change bits
        d = tl.where(scale == 1, d, scale * d)

    param = address(part, PARAM, WEIGHT)
    w = load(param, run, 1, 0, at, n)
    w -= scalar(part, SIZE) * (d + scalar(part, DECAY) * w)
    tl.store(param + run * n + at, w.to(WEIGHT), mask=at < n)

    # 32 bits of noise serve two tensors, 16 each
    noise_m, noise_hat, noise_s = row, row, row
    if m.dtype.element_ty == tl.bfloat16:
        where = tl.broadcast_to(at.to(tl.int32), (PAD, BLOCK))
        whose = tl.broadcast_to((run * PAD).to(tl.int32) + row, (PAD, BLOCK))
        seed = tl.load(part + SEED * PARTS)
        noise_m, noise_hat, noise_s, _ = tl.philox(seed, where, whose, where * 0, where * 0)
    store(m, m_new, noise_m, run, J, row, at, n)
    store(v, v_new, noise_m >> 16, run, J, row, at, n)
    store(beta_hat, beta_hat_new, noise_hat, run, J, row, at, n)
    store(gamma_hat, gamma_hat_new, noise_hat >> 16, run, J, row, at, n)
    store(s, s_new, noise_s, run, S, row, at, n)
    if LSTM:
        store(c, c_new, noise_s >> 16, run, J, row, at, n)


@triton.jit
def find(table, BLOCK: tl.constexpr):
    """This program's part (a column of the table), run, first coordinate, the way to the next
    block that is its own, and the part's coordinates."""
    program = tl.program_id(0).to(tl.int64)
    first = tl.load(table + FIRST * PARTS + tl.arange(0, PARTS))
    part = table + tl.sum((first <= program).to(tl.int32), 0) - 1
    start = (program - tl.load(part + FIRST * PARTS)) * BLOCK
    stride = tl.load(part + COUNT * PARTS) * BLOCK
    return part, tl.program_id(1).to(tl.int64), start, stride, tl.load(part + N * PARTS)


@triton.jit
def address(part, field: tl.constexpr, DTYPE: tl.constexpr):
    return tl.load(part + field * PARTS).to(tl.pointer_type(DTYPE))


@triton.jit
def scalar(part, field: tl.constexpr):
    """A float32 that the table holds by its bits."""
    return tl.load(part + field * PARTS).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def state_cell(
    g,
    s,
    c,
    matrices,
    columns,
    PAD: tl.constexpr,
    PREPROCESS: tl.constexpr,
    LSTM: tl.constexpr,
):
    """F_h: the normalised gradient ``g (1, BLOCK)``, preprocessed and fed to the LSTM."""
    if PREPROCESS:
        x = elu(column(columns, P, PAD) * g + column(columns, BP, PAD))
    else:
        x = tl.where(tl.arange(0, PAD)[:, None] == 0, g, 0.0)
    if LSTM:
        i = gate(x, s, 0, matrices, columns, PAD)
        f = gate(x, s, 1, matrices, columns, PAD)
        z = gate(x, s, 2, matrices, columns, PAD)
        o = gate(x, s, 3, matrices, columns, PAD)
        c = tl.sigmoid(f + 1) * c + tl.sigmoid(i) * tanh(z)
        s = tl.sigmoid(o) * tanh(c)
    else:
        s = x
    return s, c


@triton.jit
def gate(x, s, place: tl.constexpr, matrices, columns, PAD: tl.constexpr):
    """One of the LSTM's four, in the order of ``rules.layers.LSTM``."""
    of_x = product(matrices, XL + place, x, PAD)
    return of_x + product(matrices, SL + place, s, PAD) + column(columns, BL + place, PAD)


@triton.jit
def decay_rates(
    m,
    s,
    matrices,
    columns,
    PAD: tl.constexpr,
    BOUND: tl.constexpr,
    BETA_MAX: tl.constexpr,
):
    """F_u and F_r: β, 1-β, γ, 1-γ. Taken as a difference, what is left to 1 has few digits."""
    u = product(matrices, MD, m, PAD) + product(matrices, SD, s, PAD) + column(columns, BD, PAD)
    r = product(matrices, MD + 1, m, PAD) + product(matrices, SD + 1, s, PAD)
    r += column(columns, BD + 1, PAD)
    beta, beta_rest = tl.sigmoid(u), tl.sigmoid(-u)
    gamma, gamma_rest = tl.sigmoid(r), tl.sigmoid(-r)
    if BOUND == 0:
        # comparisons, since tl.minimum would lose what is not a number
        beta = tl.where(beta > BELOW_ONE, BELOW_ONE, beta)
        beta_rest = tl.where(beta_rest < TO_ONE, TO_ONE, beta_rest)
        gamma = tl.where(gamma > BELOW_ONE, BELOW_ONE, gamma)
        gamma_rest = tl.where(gamma_rest < TO_ONE, TO_ONE, gamma_rest)
    else:
        beta, beta_rest = BETA_MAX * beta, (1 - BETA_MAX) + BETA_MAX * beta_rest
        gamma_min = beta * beta * (1 / BOUND)
        gamma = gamma_min + (GAMMA_END - gamma_min) * gamma
        gamma_rest = (1 - GAMMA_END) + (GAMMA_END - gamma_min) * gamma_rest
    return beta, beta_rest, gamma, gamma_rest


@triton.jit
def product(matrices, place: tl.constexpr, x, PAD: tl.constexpr):
    """A matrix times a tile, in full float32."""
    k = tl.arange(0, PAD)
    theta = tl.load(matrices + place * PAD * PAD + k[:, None] * PAD + k[None, :])
    return tl.dot(theta, x, input_precision="ieee")


@triton.jit
def column(columns, place: tl.constexpr, PAD: tl.constexpr):
    return tl.load(columns + place * PAD + tl.arange(0, PAD))[:, None]


@triton.jit
def elu(x):
    return tl.where(x > 0, x, expm1(x))


@triton.jit
def tanh(x):
    e = expm1(-2 * tl.abs(x))
    return tl.where(x < 0, e, -e) / (2 + e)


@triton.jit
def expm1(x):
    """exp(x) - 1 with all digits near 0, too: a long vector's gradients are tiny once normalised.

    Written out: its name differs from GPU to GPU, and the interpreter has none."""
    series = x * (1 / 5040) + (1 / 720)
    series = series * x + (1 / 120)
    series = series * x + (1 / 24)
    series = series * x + (1 / 6)
    series = series * x + (1 / 2)
    series = series * x + 1
    return tl.where(tl.abs(x) < 0.35, series * x, tl.exp(x) - 1)


@triton.jit
def load(x, run, ROWS: tl.constexpr, row, at, n):
    """Rows and coordinates of ``x (runs, ROWS, n)`` in float32, zero outside."""
    there = (row < ROWS) & (at < n)
    return tl.load(x + (run * ROWS + row) * n + at, mask=there, other=0.0).to(tl.float32)


@triton.jit
def store(x, value, noise, run, ROWS: tl.constexpr, row, at, n):
    """The way back; to bfloat16 it rounds up or down by chance, by the low 16 bits of ``noise``."""
    if x.dtype.element_ty == tl.bfloat16:
        bits = value.to(tl.int32, bitcast=True)
        rounded = (bits + (noise & 0xFFFF).to(tl.int32)) & -65536
        # what is not a number must not be carried over into one
        value = tl.where(value == value, rounded.to(tl.float32, bitcast=True), value)
    there = (row < ROWS) & (at < n)
    tl.store(x + (run * ROWS + row) * n + at, value.to(x.dtype.element_ty), mask=there)
