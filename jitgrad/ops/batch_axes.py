"""Which array operations take a batch of operands as they are: what batching has to know of them."""

from __future__ import annotations

from typing import Final

from jitgrad.core.primitive import Primitive
from jitgrad.ops import factorisations, matrices, norms, recurrence, reduction, signal, softmax, sorting, statistics

__all__ = ["ALONG_AXES", "LEADING"]

LEADING: Final[frozenset[Primitive]] = frozenset(
    {
        matrices.lower,
        matrices.solve_lower,
        matrices.solve_matrix,
        matrices.inverse,
        matrices.pseudo_inverse,
        matrices.determinant,
        matrices.sign_and_log_determinant,
        matrices.cofactors,
        matrices.cofactors_change,
        factorisations.cholesky_factor,
        factorisations.eigen,
        factorisations.eigenvalues_of,
        factorisations.singular,
        factorisations.singular_values_of,
        factorisations.orthogonal,
        signal.sliding_factors,
        signal.sliding_products,
    }
)
"""They work on the last axes; leading ones, of the same extents in every operand, are a batch."""

ALONG_AXES: Final[frozenset[Primitive]] = frozenset(
    {
        norms.length,
        norms.power_length,
        recurrence.cumulative_sum_along,
        recurrence.cumulative_product,
        recurrence.recurrence,
        reduction.exclusive_products,
        reduction.shared_at_extremum,
        reduction.mean_at_extremum,
        reduction.argmax_over,
        reduction.argmin_over,
        softmax.softmax_pull,
        softmax.softmax_over,
        softmax.softmax_shares,
        softmax.logsumexp_over,
        softmax.log_softmax_pull,
        softmax.log_softmax_over,
        sorting.sorting_order,
        sorting.sorted_values,
        statistics.center,
        statistics.scaled_center,
        statistics.var_over,
        statistics.std_over,
    }
)
"""They work along ``axis`` or ``axes``; every other axis, in every operand, is a batch."""
