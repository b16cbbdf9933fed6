"""The update rules of torch.optim, as map nodes over parameter, gradient, state and control values.

- State that PyTorch creates at the first step starts as PyTorch starts it, mostly as zeros. Where PyTorch starts with
  a gradient (SGD with dampening), the rule checks the step counter.
- Learning rates are slots, so a schedule can change them without a new plan.
- PyTorch computes bias corrections in double precision on the host. Here they are computed with expm1 from exact
  constants, so that no precision is lost by cancellation.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from handheld.frontend.update import Update
from handheld.frontend.values import Val
from handheld.graph.dtypes import F32
from handheld.graph.graph import View


def _sgd(u: Update) -> None:
    group = u.group
    decay, momentum, dampening = (float(group[k]) for k in ("weight_decay", "momentum", "dampening"))

    def start(p: Val, g: Val) -> Val:
        return g + p * decay if decay else g

    if not momentum and not u.moving:
        u.apply([], [u.rates["lr"]], lambda p, g, lr: [p - lr * start(p, g)])
        return

    def build(p: Val, g: Val, buffer: Val, lr: Val, *rest: Val) -> list[Val]:
        g = start(p, g)
        factor = rest[-1] if u.moving else momentum
        new = buffer * factor + (g * (1 - dampening) if dampening else g)
        if dampening:
            new = rest[0].eq(0).where(g, new)
        return [p - lr * (g + new * factor if group["nesterov"] else new), new]

    scalars = [u.rates["lr"]] + ([u.rates["done"]] if dampening else []) + u.moving
    u.apply(["momentum_buffer"], scalars, build)


def _adam(u: Update, decoupled: bool) -> None:
    group = u.group
    (beta1, beta2), eps, decay = group["betas"], float(group["eps"]), float(group["weight_decay"])
    c1, c2 = u.correction(float(beta1), u.moving), u.correction(float(beta2))
    size = u.scalar("step size", [u.rates["lr"], c1], lambda lr, c: lr / c)
    root = u.scalar("root", [c2], lambda c: c.unary("sqrt"))
    shrink = decoupled or bool(group.get("decoupled_weight_decay"))
    amsgrad = bool(group["amsgrad"])

    def build(p: Val, g: Val, m: Val, v: Val, *rest: Val) -> list[Val]:
        best = rest[0] if amsgrad else None
        lr, step, r = rest[amsgrad:][:3]
        if decay and shrink:
            p = p * (1.0 - lr * decay)
        elif decay:
            g = g + p * decay
        m = m + (g - m) * (1.0 - rest[-1] if u.moving else float(1 - beta1))
        v = v * float(beta2) + g * g * float(1 - beta2)
        top = best.binary("max", v) if best is not None else v
        p = p - step * m / (top.unary("sqrt") / r + eps)
        return [p, m, v, top] if amsgrad else [p, m, v]

    fields = ["exp_avg", "exp_avg_sq"] + (["max_exp_avg_sq"] if amsgrad else [])
    u.apply(fields, [u.rates["lr"], size, root, *u.moving], build)


def _rmsprop(u: Update) -> None:
    group = u.group
    alpha, eps, decay, momentum = (float(group[k]) for k in ("alpha", "eps", "weight_decay", "momentum"))
    centered = bool(group["centered"])

    def build(p: Val, g: Val, square: Val, *rest: Val) -> list[Val]:
        scalars = 1 + len(u.moving)
        left, lr = list(rest[:-scalars]), rest[-scalars]
        g = g + p * decay if decay else g
        square = square * alpha + g * g * (1 - alpha)
        states, spread = [square], square
        if centered:
            mean = left.pop(0)
            mean = mean + (g - mean) * (1 - alpha)
            states.append(mean)
            spread = square - mean * mean
        move = g / (spread.unary("sqrt") + eps)
        if momentum or u.moving:
            move = left.pop(0) * (rest[-1] if u.moving else momentum) + move
            states.append(move)
        return [p - lr * move, *states]

    fields = ["square_avg"] + ["grad_avg"] * centered + ["momentum_buffer"] * bool(momentum or u.moving)
    u.apply(fields, [u.rates["lr"], *u.moving], build)


def _adagrad(u: Update) -> None:
    group = u.group
    eps, decay, slower = (float(group[k]) for k in ("eps", "weight_decay", "lr_decay"))
    inputs = [u.rates["lr"], u.rates["done"]]
    rate = u.scalar("rate", inputs, lambda lr, t: lr / (1.0 + t.to(F32) * slower)) if slower else u.rates["lr"]

    def build(p: Val, g: Val, total: Val, rate: Val) -> list[Val]:
        g = g + p * decay if decay else g
        total = total + g * g
        return [p - rate * (g / (total.unary("sqrt") + eps)), total]

    u.apply(["sum"], [rate], build, {"sum": float(u.owner.optimizer.defaults["initial_accumulator_value"])})


def _adadelta(u: Update) -> None:
    rho, eps, decay = (float(u.group[k]) for k in ("rho", "eps", "weight_decay"))

    def build(p: Val, g: Val, square: Val, moved: Val, lr: Val) -> list[Val]:
        g = g + p * decay if decay else g
        square = square * rho + g * g * (1 - rho)
        move = (moved + eps).unary("sqrt") / (square + eps).unary("sqrt") * g
        return [p - lr * move, square, moved * rho + move * move * (1 - rho)]

    u.apply(["square_avg", "acc_delta"], [u.rates["lr"]], build)


def _adamax(u: Update) -> None:
    (beta1, beta2), eps, decay = u.group["betas"], float(u.group["eps"]), float(u.group["weight_decay"])
    size = u.scalar("step size", [u.rates["lr"], u.correction(float(beta1))], lambda lr, c: lr / c)

    def build(p: Val, g: Val, m: Val, top: Val, size: Val) -> list[Val]:
        g = g + p * decay if decay else g
        m = m + (g - m) * float(1 - beta1)
        top = (top * float(beta2)).binary("max", g.unary("abs") + eps)
        return [p - size * m / top, m, top]

    u.apply(["exp_avg", "exp_inf"], [size], build)


def _nadam(u: Update) -> None:
    group, done, lr = u.group, u.rates["done"], u.rates["lr"]
    (beta1, beta2), eps, decay, slower = (
        group["betas"],
        *(float(group[k]) for k in ("eps", "weight_decay", "momentum_decay")),
    )
    shrink = bool(group["decoupled_weight_decay"])

    def momentum(ahead: int) -> View:
        def build(t: Val) -> Val:
            return (1.0 - 0.5 * ((t + ahead).to(F32) * (slower * math.log(0.96))).unary("exp")) * float(beta1)

        return u.scalar(f"momentum {ahead}", [done], build)

    now, following = momentum(1), momentum(2)
    product = u.set_group_state("mu_product", [u.group_state("mu_product", 1.0), now], lambda a, b: a * b)
    of_g = u.scalar("of gradient", [lr, now, product], lambda lr, mu, all_: lr * (1.0 - mu) / (1.0 - all_))
    of_m = u.scalar("of mean", [lr, following, product], lambda lr, mu, all_: lr * mu / (1.0 - all_ * mu))
    c2 = u.correction(float(beta2))

    def build(p: Val, g: Val, m: Val, v: Val, lr: Val, of_g: Val, of_m: Val, c2: Val) -> list[Val]:
        if decay and shrink:
            p = p * (1.0 - lr * decay)
        elif decay:
            g = g + p * decay
        m = m + (g - m) * float(1 - beta1)
        v = v * float(beta2) + g * g * float(1 - beta2)
        size = (v / c2).unary("sqrt") + eps
        return [p - of_g * (g / size) - of_m * (m / size), m, v]

    u.apply(["exp_avg", "exp_avg_sq"], [lr, of_g, of_m, c2], build)


def _rectification(u: Update, beta2: float) -> View:
    """Returns RAdam's factor for the step, or -1 as long as it uses the mean alone.

    PyTorch computes rho = rho_inf - 2 t b^t / (1 - b^t) in double precision, a difference of two numbers near 2000.
    With a = -log b it equals t + L(a / 2) - t L(t a / 2), where L(x) = coth x - 1 / x has no such difference.
    """
    if beta2 <= 0:  # rho is never above 5.
        return u.scalar("rectification", [u.rates["done"]], lambda t: t.to(F32) * 0.0 - 1.0)
    a, limit = -math.log(beta2), 2 / (1 - beta2) - 1
    first = 1 / math.tanh(a / 2) - 2 / a if a > 1e-3 else a / 6

    def build(done: Val) -> Val:
        t = (done + 1).to(F32)
        x = t * (a / 2)
        square = x * x
        near = x.const(-1382 / 638512875, F32)
        for coefficient in (2 / 93555, -1 / 4725, 2 / 945, -1 / 45, 1 / 3):
            near = near * square + coefficient
        far = 1.0 / x.unary("tanh") - 1.0 / x
        rho = t + first - t * x.lt(0.7).where(near * x, far)
        factor = ((rho - 4.0) * (rho - 2.0) / rho * (limit / ((limit - 4) * (limit - 2)))).unary("sqrt")
        return rho.gt(5.0).where(factor, -1.0)

    return u.scalar("rectification", [u.rates["done"]], build)


def _radam(u: Update) -> None:
    group = u.group
    (beta1, beta2), eps, decay = group["betas"], float(group["eps"]), float(group["weight_decay"])
    shrink = bool(group["decoupled_weight_decay"])
    size = u.scalar("step size", [u.rates["lr"], u.correction(float(beta1))], lambda lr, c: lr / c)
    root = u.scalar("root", [u.correction(float(beta2))], lambda c: c.unary("sqrt"))

    def build(p: Val, g: Val, m: Val, v: Val, lr: Val, size: Val, root: Val, factor: Val) -> list[Val]:
        if decay and shrink:
            p = p * (1.0 - lr * decay)
        elif decay:
            g = g + p * decay
        m = m + (g - m) * float(1 - beta1)
        v = v * float(beta2) + g * g * float(1 - beta2)
        adapted = factor * root / (v.unary("sqrt") + eps)
        return [p - size * m * factor.gt(0.0).where(adapted, 1.0), m, v]

    factor = _rectification(u, float(beta2))
    u.apply(["exp_avg", "exp_avg_sq"], [u.rates["lr"], size, root, factor], build)


def _rprop(u: Update) -> None:
    (less, more), (least, most) = u.group["etas"], u.group["step_sizes"]

    def build(p: Val, g: Val, before: Val, size: Val) -> list[Val]:
        turn = g * before
        size = size * turn.gt(0.0).where(float(more), turn.lt(0.0).where(size.const(float(less), F32), 1.0))
        size = size.binary("max", float(least)).binary("min", float(most))
        g = turn.lt(0.0).where(g.const(0.0, F32), g)
        return [p - g.unary("sign") * size, g, size]

    u.apply(["prev", "step_size"], [], build, {"step_size": float(u.group["lr"])})


def _asgd(u: Update) -> None:
    group, lr, done = u.group, u.rates["lr"], u.rates["done"]
    lambd, alpha, start, decay = (float(group[k]) for k in ("lambd", "alpha", "t0", "weight_decay"))
    eta, mu = u.group_state("eta", float(group["lr"])), u.group_state("mu", 1.0)

    def build(p: Val, g: Val, mean: Val, eta: Val, mu: Val) -> list[Val]:
        g = g + p * decay if decay else g
        p = p * (1.0 - eta * lambd) - eta * g
        return [p, mu.eq(1.0).where(p, mean + (p - mean) * mu)]

    u.apply(["ax"], [eta, mu], build)

    def slower(lr: Val, t: Val) -> Val:
        return lr * ((lr * lambd * (t + 1).to(F32)).unary("log1p") * -alpha).unary("exp")

    u.set_group_state("eta", [lr, done], slower)
    u.set_group_state("mu", [done], lambda t: 1.0 / ((t + 1).to(F32) - start).binary("max", 1.0))


#: The hyperparameter that a scheduler may change besides the rate, for the rules that can read it from a slot.
MOVING = {"SGD": "momentum", "RMSprop": "momentum", "Adam": "beta1", "AdamW": "beta1"}

RULES: dict[str, Callable[[Update], None]] = {
    "SGD": _sgd,
    "Adam": lambda u: _adam(u, False),
    "AdamW": lambda u: _adam(u, True),
    "NAdam": _nadam,
    "RAdam": _radam,
    "Adamax": _adamax,
    "Adagrad": _adagrad,
    "Adadelta": _adadelta,
    "RMSprop": _rmsprop,
    "Rprop": _rprop,
    "ASGD": _asgd,
}
