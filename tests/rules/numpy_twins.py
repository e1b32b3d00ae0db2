"""The rules once more in float64 NumPy, coordinate-major ``(p, rows)`` as the papers write them: nothing is shared with
the package but the numbers of the meta-parameters."""

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def elu(x):
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def parameters(rule):
    return {name: value.detach().double().numpy() for name, value in rule.named_parameters()}


def lstm(theta, prefix, x, h, c):
    units = h.shape[1]
    gates = (
        x @ theta[f"{prefix}.theta_x"].T + h @ theta[f"{prefix}.theta_s"].T + theta[f"{prefix}.b"].T
    )
    i, f, z, o = (gates[:, k * units : (k + 1) * units] for k in range(4))
    c = c * sigmoid(f + 1.0) + sigmoid(i) * np.tanh(z)
    return sigmoid(o) * np.tanh(c), c


class HyperAdamTwin:
    """Algorithm 2 for one run of p coordinates."""

    def __init__(self, rule, p):
        self.theta, self.config, self.J = parameters(rule), rule.config, rule.candidates
        self.C = {name: np.zeros((p, self.J)) for name in ("m", "v", "beta_hat", "gamma_hat")}
        self.s, self.c = np.zeros((p, self.J)), np.zeros((p, self.J))

    def step(self, g):
        theta, config = self.theta, self.config
        G = np.repeat(g[:, None], self.J, axis=1)
        x = (g / np.sqrt(g @ g + 1e-16))[:, None]
        if config["preprocess"]:
            x = elu(x @ theta["theta_p"].T + theta["b_p"].T)
        if config["lstm"]:
            self.s, self.c = lstm(theta, "lstm", x, self.s, self.c)
        else:
            self.s = x

        s = self.s
        if config["normalize_state"]:
            s = s / np.sqrt((s**2).sum(0) + 1e-16)
        m_normalised = self.C["m"] / np.sqrt((self.C["m"] ** 2).sum(0) + 1e-16)
        inputs = np.hstack([m_normalised, s])
        beta = sigmoid(inputs @ theta["theta_u"].T + theta["b_u"].T)
        gamma = sigmoid(inputs @ theta["theta_r"].T + theta["b_r"].T)
        q = config["decay_bound"]
        if q is not None:
            beta = beta * np.sqrt(q * 0.9999)
            gamma = beta**2 / q + (0.9999 - beta**2 / q) * gamma
        self.beta, self.gamma = beta, gamma

        targets = {"m": G, "v": G**2, "beta_hat": np.ones_like(G), "gamma_hat": np.ones_like(G)}
        rates = {"m": beta, "v": gamma, "beta_hat": beta, "gamma_hat": gamma}
        for name, target in targets.items():
            self.C[name] = rates[name] * self.C[name] + (1 - rates[name]) * target
        self.m_hat = (self.C["m"] / self.C["beta_hat"]) / np.sqrt(
            self.C["v"] / self.C["gamma_hat"] + 1e-24
        )
        rho = elu(self.s @ theta["theta_q"].T + theta["b_q"].T)
        return (rho * self.m_hat).sum(1)


class RNNpropTwin:
    def __init__(self, rule, p):
        self.theta, units = parameters(rule), rule.units
        self.m, self.v, self.t = np.zeros(p), np.zeros(p), 0
        self.layers = [(np.zeros((p, units)), np.zeros((p, units))) for _ in range(2)]

    def step(self, g):
        self.t += 1
        self.m = 0.95 * self.m + 0.05 * g
        self.v = 0.95 * self.v + 0.05 * g**2
        correction = 1 - 0.95**self.t
        scale = np.sqrt(self.v / correction) + 1e-8
        x = np.stack([g / scale, self.m / correction / scale], axis=1)
        x = elu(x @ self.theta["theta_p"].T + self.theta["b_p"].T)
        for k in range(2):
            self.layers[k] = lstm(self.theta, f"lstm{k + 1}", x, *self.layers[k])
            x = self.layers[k][0]
        return np.tanh(x @ self.theta["theta_q"].T + self.theta["b_q"].T)[:, 0]


class DMTwin:
    def __init__(self, rule, p):
        self.theta, units = parameters(rule), rule.units
        self.layers = [(np.zeros((p, units)), np.zeros((p, units))) for _ in range(2)]

    def step(self, g):
        x = np.empty((len(g), 2))
        for i, value in enumerate(g):
            x[i] = (
                (np.log(abs(value)) / 10, np.sign(value))
                if abs(value) >= np.exp(-10)
                else (-1, np.exp(10) * value)
            )
        for k in range(2):
            self.layers[k] = lstm(self.theta, f"lstm{k + 1}", x, *self.layers[k])
            x = self.layers[k][0]
        return -(x @ self.theta["theta_q"].T + self.theta["b_q"].T)[:, 0]


def pace_twin(step, total, warmup, share=20):
    """The share of the step size, from a list of all of a training's."""
    if total is None:
        return np.minimum(1, np.float64(step) / warmup) if warmup else 1.0
    rising = max(1, -(-total // share))
    up = np.arange(1, rising + 1, dtype=np.float64) / rising
    down = np.arange(total - rising, 0, -1, dtype=np.float64) / (total + 1 - rising)
    shares = np.concatenate([up, down])
    assert len(shares) == total
    return shares[min(step, total) - 1]


def scale_twin(rms, shape):
    """How much longer a relative step is than a plain one."""
    inputs = max(1, np.prod(shape) / shape[0]) if len(shape) > 1 else 1
    floor = 0.1 if inputs <= 64 else 0.1 * 8 / np.sqrt(inputs)
    if len(shape) < 2:  # vectors, by half: a size of 1 makes steps √10 times as long
        return np.sqrt(rms / 0.1) if rms > 0.1 else 1.0
    if rms == 0:
        return floor / 0.1
    return (rms if rms > floor / 20 else floor / 20) / 0.1


def narrow_twin(shape):
    """How much shorter a relative step is with the option width: of vectors, convolutions and wide
    matrices."""
    if len(shape) < 2:
        return 0.5
    inputs = np.prod(shape[1:])
    return (448 / inputs if inputs > 448 else 1.0) * (0.4 if len(shape) > 2 else 1)
