#!/usr/bin/env python3
"""Enumerates the verification rule `transport` by itself, in rational numbers, from the description in
src/verify/rule_transport.c and docs/methods/verification.md; nothing of the C code is used.

For random distributions p and q over a small vocabulary it goes through all drafts (independent, or without
replacement) and adds up the distribution of the emitted token. Fractions do not round, so that the difference from p
must be exactly 0: for the plan of the description, and for plans of random numbers, which may change the acceptance but
not the emitted distribution. A negative control, in which the row of a draft is computed from another q, must differ.

    python3 tests/support/enumerate_transport.py [CASES] [SEED]
"""
import random
import sys
from fractions import Fraction as F


def weights(q, without, floor=F(0)):
    return [x / max(1 - x, floor) if without and x < 1 else x for x in q]


def plan_of_two(r, q, without):
    """The plan for the last draft but one: the most that the last draft can accept, and tau."""
    v = weights(q, without)
    total = sum(v)
    capacity = [x * (total - w) if without else (1 - x) * x for x, w in zip(q, v)]
    low, high = F(0), F(1)
    for _ in range(12):
        tau = (low + high) / 2
        m = sum(m_of(r[t], q[t], v[t], total, tau, capacity[t]) for t in range(len(q)))
        low, high = (tau, high) if m > tau else (low, tau)
    return v, low, capacity


def random_plan(dice, r, q, without):
    v = [x * F(dice.randint(0, 8), 4) for x in q]
    return v, F(dice.randint(0, 8), 8), [F(dice.randint(0, 8), 8) * (x + y) for x, y in zip(r, q)]


def m_of(r, q, v, total, tau, capacity):
    others = total - v
    if others <= 0 or total <= 0:
        return F(0)
    return max(F(0), min((r - q + v * tau) / total, capacity / others, r / others))


def table(r, banked, q, plan):
    """Rows r_x of the step for one draft: for each x, (r_x on tokens not drafted, the factor of the banked mass)."""
    v, tau, capacity = plan
    n, total = len(q), sum(v)
    m = [m_of(r[t], q[t], v[t], total, tau, capacity[t]) for t in range(n)]
    high = [total > v[t] and m[t] * (total - v[t]) >= capacity[t] for t in range(n)]
    left = sum(m)
    scale = min([F(1)] + [q[t] / (v[t] * (left - m[t])) for t in range(n) if v[t] * (left - m[t]) > q[t]])
    m = [x * scale for x in m]
    left = sum(m)
    low = sum(m[t] for t in range(n) if not high[t])
    row = [q[t] - v[t] * (left - m[t]) for t in range(n)]
    column = [r[t] - m[t] * (total - v[t]) for t in range(n)]
    assert min(row) >= 0 and min(column) >= 0
    d = [min(a, b) for a, b in zip(row, column)]
    row = [a - b for a, b in zip(row, d)]
    column = [a - b for a, b in zip(column, d)]
    spare_total = banked + sum(column)
    assert sum(row) == spare_total
    f = [min(F(1), column[t] / (v[t] * low)) if high[t] and v[t] * low > 0 else F(0) for t in range(n)]
    freed = sum(a * b for a, b in zip(f, v))
    e = [column[t] - f[t] * v[t] * low if high[t] else column[t] + freed * m[t] for t in range(n)]
    rows = {}
    for x in range(n):
        if q[x] == 0:
            continue
        spare = row[x] / spare_total if spare_total else F(0)
        out = [(v[x] * m[z] * (1 if high[z] else 1 - f[x]) + spare * e[z]) / q[x] for z in range(n)]
        out[x] = (d[x] + f[x] * v[x] * low + spare * e[x]) / q[x]
        rows[x] = (out, spare / q[x])
    return rows


def without_token(q, x):
    rest = [F(0) if t == x else y for t, y in enumerate(q)]
    total = sum(rest)
    return [y / total for y in rest] if total else None


def emit(r, bank, q, k, without, make_plan, chance, out, wrong_q=None):
    """Adds the distribution of the emitted token to `out`; returns the probability that it is a draft."""
    if k == 0 or q is None:
        for t, mass in enumerate(r):
            out[t] += chance * (mass + bank[t])
        return chance * sum(bank)
    if k == 1:
        plan = ([F(0)] * len(q), F(0), [F(0)] * len(q))
    else:
        plan = make_plan(r, q, without)
    rows = table(r, sum(bank), wrong_q or q, plan)
    accepted = F(0)
    for x in range(len(q)):
        if q[x] == 0:
            continue
        r_x, factor = rows[x]
        bank_x = [b * factor for b in bank]
        bank_x[x] += r_x[x]
        r_x = [F(0) if t == x else y for t, y in enumerate(r_x)]
        q_x = without_token(q, x) if without else q
        accepted += emit(r_x, bank_x, q_x, k - 1, without, make_plan, chance * q[x], out)
    return accepted


def optimum(p, q, k, without):
    """The least cut: min over S of p(S) + 1 - P(all drafts are in S)."""
    n = len(p)

    def inside(members, q, k):
        if k == 0 or q is None:
            return F(1)
        return sum(q[x] * inside(members, without_token(q, x) if without else q, k - 1) for x in members if q[x])

    best = F(1)
    for mask in range(1 << n):
        members = [t for t in range(n) if mask >> t & 1]
        best = min(best, sum(p[t] for t in members) + 1 - inside(members, q, k))
    return best


def random_dist(dice, n):
    w = [F(dice.choice([0, 1, 2, 3, 5, 8, 13, 40])) for _ in range(n)]
    w[dice.randrange(n)] += 1
    return [x / sum(w) for x in w]


def main():
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    dice = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    gap, caught = F(0), 0
    for case in range(cases):
        n, k, without = dice.randint(2, 4), dice.randint(1, 3), dice.random() < 0.7
        p, q, other = (random_dist(dice, n) for _ in range(3))
        plans = [lambda r, q, w: random_plan(dice, r, q, w)]
        if k <= 2:
            plans.append(plan_of_two)
        for make_plan in plans:
            out = [F(0)] * n
            accepted = emit(p, [F(0)] * n, q, k, without, make_plan, F(1), out)
            assert out == p, f"case {case}: emitted {out} instead of {p}"
            best = optimum(p, q, k, without)
            assert accepted <= best, f"case {case}: {accepted} is accepted, the optimum is {best}"
            if make_plan is plan_of_two:
                gap = max(gap, best - accepted)
        out = [F(0)] * n
        support = [x if y else F(0) for x, y in zip(other, q)]
        if all((x > 0) == (y > 0) for x, y in zip(q, other)) and q != other:
            emit(p, [F(0)] * n, q, 1, without, plans[0], F(1), out, wrong_q=support)
            caught += out != p
    print(f"{cases} cases: the distribution is exactly the target's; with the plan for two drafts at most "
          f"{float(gap):.4f} below the optimum; a wrong q changed the distribution in {caught} cases")
    assert caught > 0


if __name__ == "__main__":
    main()
