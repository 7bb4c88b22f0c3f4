"""What `attention` must compute, in float64, and the scale by which errors are measured.

The scale. Let s_j = q.k_j / sqrt(d) be the logits of one query over the keys it sees, w = softmax(s) and
O = sum_j w_j v_j. A kernel of unit roundoff u errs in three places:

- sum w v and sum w are rounded: at most a few u of sum_j w_j |v_j|, and so is each exp, which is a factor on w_j;
- logit j is off by e_j, at most a few u of L_j = sum_c |q_c k_jc| / sqrt(d) + (max s - s_j): its dot product, and the
  difference from the maximum that exp is taken of. Differentiating the softmax, O moves by sum_j w_j e_j (v_j - O).

By the inequality of Cauchy and Schwarz the second is at most u sqrt(sum w L^2) sqrt(sum w v^2 - O^2), hence

    scale = sum_j w_j |v_j| + sqrt(sum_j w_j L_j^2) * sqrt(sum_j w_j v_j^2 - O^2)

Where one key takes all the weight the second factor vanishes, so huge logits loosen nothing there; where all logits are
zero so is the first. It takes matrix products alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Mask = NDArray[np.bool_]


def reference(inputs: Mapping[str, NDArray[np.float32]], axes: Mapping[str, int]) -> dict[str, tuple[Doubles, Doubles]]:
    """`O` of shape (heads, m, d), and the condition scale described above.

    A query that sees no key gives zeros with scale 0. Where the largest visible logit is no finite number the row is
    NaN; otherwise an element is NaN or infinite as the sum of the visible values of V in its column is, whatever their
    weights, and values of keys that are not seen have no influence at all. Such elements have a scale that is not
    finite: they are compared by class alone.
    """
    heads, m, n, d = (axes[name] for name in ("heads", "m", "n", "d"))
    q = np.asarray(inputs["Q"], dtype=np.float64).reshape(heads, m, d)
    k = np.asarray(inputs["K"], dtype=np.float64).reshape(heads, n, d)
    v = np.asarray(inputs["V"], dtype=np.float64).reshape(heads, n, d)
    if heads * m * n == 0:
        return {"O": (np.zeros((heads, m, d)), np.zeros((heads, m, d)))}
    seen = np.arange(n) <= np.arange(m)[:, None] + (n - m) if axes["causal"] else np.ones((m, n), dtype=bool)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        weights, moved = _softmax(q, k, seen)
        value, scale = _mean(weights, moved, v)
        value, scale = _with_classes(value, scale, v, seen)
    blind = ~seen.any(axis=1)
    value[:, blind], scale[:, blind] = 0.0, 0.0
    return {"O": (value, scale)}


def _softmax(q: Doubles, k: Doubles, seen: Mask) -> tuple[Doubles, Doubles]:
    """Weights (heads, m, n), zero where not seen, and sqrt(sum w L^2) as (heads, m, 1)."""
    q = q / np.sqrt(q.shape[-1])
    keys = k.swapaxes(1, 2)
    logits = q @ keys
    condition = np.abs(q) @ np.abs(keys)
    if not seen.all():
        logits[:, ~seen] = -np.inf
    logits -= logits.max(axis=2, keepdims=True)
    condition -= logits
    weights = np.exp(logits, out=logits)
    weights /= weights.sum(axis=2, keepdims=True)
    if not seen.all():
        condition[:, ~seen] = 0.0
    condition *= condition
    condition *= weights
    return weights, np.sqrt(condition.sum(axis=2, keepdims=True))


def _mean(weights: Doubles, moved: Doubles, v: Doubles) -> tuple[Doubles, Doubles]:
    """Weighted means of the finite values of V, and their scale."""
    finite = np.where(np.isfinite(v), v, 0.0)
    value = weights @ finite
    spread = np.maximum(weights @ finite**2 - value**2, 0.0)
    return value, weights @ np.abs(finite) + moved * np.sqrt(spread)


def _with_classes(value: Doubles, scale: Doubles, v: Doubles, seen: Mask) -> tuple[Doubles, Doubles]:
    """NaN and infinities of V where they are seen."""
    if np.isfinite(v).all():
        return value, scale
    count = seen.astype(np.float64)
    up, down = count @ np.isposinf(v) > 0, count @ np.isneginf(v) > 0
    lost = (count @ np.isnan(v) > 0) | (up & down)
    added = np.select([lost, up, down], [np.nan, np.inf, -np.inf], 0.0)
    return value + added, scale + np.abs(added)
