"""Many small Lasso problems at once, exactly: min ½ wᵀGw − bᵀw + alpha·‖w‖₁ for each G (d, d) and b (d,) of a batch.

The homotopy method (least-angle regression) walks each problem's solution path down from the alpha at which w = 0. The
path is straight between events, at which one coordinate joins or leaves; each event is one sweep of the Gram matrix,
done for all problems together. Problems that are done leave the batch.
"""

import torch


def solve(G, b, alpha):
    """(P, d) weights of P problems, given as float64 G (P, d, d) and b (P, d)."""
    w = _path(G, b, alpha)
    bad = _violation(G, b, w, alpha) > 1e-9 * b.abs().amax(1).clamp_min(alpha)
    if bad.any():  # ties, as between equal columns, can lead the path astray: descend from where it ended
        w[bad] = coordinate_descent(G[bad], b[bad], alpha, w[bad])
    return w


def _violation(G, b, w, alpha):
    """(P,) how far each w is from optimality: the subgradient of smallest size."""
    slope = b - (G @ w.unsqueeze(-1))[..., 0]
    at_zero = (slope.abs() - alpha).clamp_min(0)
    return torch.where(w == 0, at_zero, (slope - alpha * w.sign()).abs()).nan_to_num(torch.inf).amax(1)


def _path(G, b, alpha):
    P, d = b.shape
    solution = torch.zeros_like(b)
    level, k = b.abs().max(1)  # the alpha that the path is at, and the coordinate of the next event
    state = {
        "M": G.clone(),  # swept on the active set A: −G_AA⁻¹ there, G_AA⁻¹G_AJ beside it
        "w": torch.zeros_like(b),
        "slope": b.clone(),  # b − Gw
        "sign": torch.zeros_like(b),  # of the active coordinates; 0 for the others
        "level": level,
        "k": k,
        "problem": torch.arange(P, device=b.device),
    }
    state = {name: t[level > alpha] for name, t in state.items()}
    for _ in range(10 * d):
        M, w, slope, sign, level, k, problem = state.values()
        if not len(problem):
            break
        rows = torch.arange(len(problem), device=b.device)
        joins = sign[rows, k] == 0
        _sweep(M, rows, k, joins)
        sign[rows, k] = torch.where(joins, slope[rows, k].sign(), 0.0)

        active = sign != 0
        rate = (M @ sign.unsqueeze(-1))[..., 0]  # minus dw on the active set, d slope on the others
        rising = _positive((level.unsqueeze(1) - slope) / (1 - rate))  # until the slope meets the level,
        falling = _positive((level.unsqueeze(1) + slope) / (1 + rate))  # or minus the level
        # What just left stands at the level that it left: it may come back at the other one only.
        rising[rows, k] = rising[rows, k].where(joins | (slope[rows, k] < 0), torch.inf)
        falling[rows, k] = falling[rows, k].where(joins | (slope[rows, k] > 0), torch.inf)
        to_join = torch.minimum(rising, falling).masked_fill(active, torch.inf)
        to_leave = _positive(w / rate).masked_fill(~active, torch.inf)
        step, next_k = torch.minimum(to_join, to_leave).min(1)
        done = level - alpha <= step
        step = torch.minimum(step, level - alpha)

        leaves = active[rows, next_k] & ~done
        w = w - step.unsqueeze(1) * rate.where(active, 0.0)
        w[rows, next_k] = torch.where(leaves, 0.0, w[rows, next_k])
        level = level - step
        slope = torch.where(active, level.unsqueeze(1) * sign, slope - step.unsqueeze(1) * rate)
        solution[problem[done]] = w[done]
        state = dict(zip(state, (M, w, slope, sign, level, next_k, problem), strict=True))
        if done.any():
            state = {name: t[~done] for name, t in state.items()}
    return solution


def _sweep(M, rows, k, joins):
    """Sweep each matrix on its k-th coordinate, in place: into the active set, or out of it again."""
    column = M[rows, :, k]
    pivot = column[rows, k].unsqueeze(1)
    scaled = column / pivot
    M.baddbmm_(scaled.unsqueeze(2), column.unsqueeze(1), alpha=-1)
    new = torch.where(joins.unsqueeze(1), scaled, -scaled)
    new[rows, k] = -1 / pivot[:, 0]
    M[rows, :, k] = new
    M[rows, k, :] = new


def _positive(step):
    return torch.where(step > 1e-12, step, torch.inf)


def coordinate_descent(G, b, alpha, w=None, sweeps=10_000):
    """The plain method, one coordinate after the other: slow where columns are alike, but it takes any problem."""
    w = torch.zeros_like(b) if w is None else w.nan_to_num(0.0, 0.0, 0.0)
    slope = b - (G @ w.unsqueeze(-1))[..., 0]
    for sweep in range(sweeps):
        for j in range(b.shape[1]):
            curvature = G[:, j, j]
            pull = slope[:, j] + curvature * w[:, j]
            new = pull.sign() * (pull.abs() - alpha).clamp_min(0) / curvature.where(curvature > 0, 1.0)
            new = new.where(curvature > 0, 0.0)
            slope -= G[:, :, j] * (new - w[:, j]).unsqueeze(1)
            w[:, j] = new
        if sweep % 10 == 9 and (_violation(G, b, w, alpha) <= 1e-9 * b.abs().amax(1).clamp_min(alpha)).all():
            break
    return w
