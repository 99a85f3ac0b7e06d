"""What the measures share of a batch of lists, computed when first asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from rankspark.measures.lists import (
    Bools,
    Floats,
    Gain,
    Ints,
    Options,
    RankedLists,
    Selection,
    descending,
    ordinals,
    running_count,
    segment_count,
)
from rankspark.measures.measure import Measure
from rankspark.measures.orders import Order, discount, finite_sums, gains_of, order_of


@dataclass(frozen=True, eq=False)
class Batch:
    """n lists and what the measures share of them, computed when first asked for."""

    lists: RankedLists
    options: Options

    def order(self, measure: Measure) -> Order:
        """The lists as they stand or, where the measure or the options ask for it, over their ties.

        Raises:
            ValueError: the ties are not known.
        """
        asked = dict(measure.params).get("ties", self.options.ties)
        return self._ties_averaged if asked == "average" else self._as_ranked

    @cached_property
    def gainful(self) -> Selection:
        """The shown items with a grade above 0."""
        return Selection(self.lists, np.flatnonzero(self.lists.relevance > 0))

    @cached_property
    def relevant(self) -> Selection:
        """The shown items that are relevant."""
        least = self.options.relevant_from
        if least is None:
            return self.gainful
        return Selection(self.lists, self.gainful.index[self.gainful.relevance >= least])

    @cached_property
    def pool(self) -> Pool:
        """The items that count as known: the judged ones where given, or those shown."""
        if self.lists.judged is None or self.options.ideal == "shown":
            known = self.gainful
        else:
            offsets, grades = self.lists.judged
            items = RankedLists(offsets, ordinals(offsets), grades)
            known = Selection(items, np.flatnonzero(grades > 0))
        return Pool(known, self.options)

    @cached_property
    def judged(self) -> Bools:
        """bool[m]: whether the relevance of each shown item is known."""
        return ~np.isnan(self.lists.relevance)

    @cached_property
    def judged_before(self) -> Ints:
        """int64[m + 1]: the judged items before each place, over all lists."""
        return running_count(self.judged)

    @cached_property
    def _as_ranked(self) -> Order:
        return order_of(self.lists, self.gainful, self.relevant, average_ties=False)

    @cached_property
    def _ties_averaged(self) -> Order:
        return order_of(self.lists, self.gainful, self.relevant, average_ties=True)


@dataclass(frozen=True, eq=False)
class Pool:
    """What is known of each list beyond its order: counts, and the ideal.

    Attributes:
        known: the known items with a grade above 0.
        options: the conventions.
    """

    known: Selection
    options: Options
    _discounted: dict[Gain, Floats] = field(default_factory=dict)

    @cached_property
    def n_gainful(self) -> Ints:
        """int64[n]: the items with a grade above 0."""
        return np.diff(self.known.bounds)

    @cached_property
    def n_relevant(self) -> Ints:
        """int64[n]."""
        least = self.options.relevant_from
        if least is None:
            return self.n_gainful
        return segment_count(self.known.relevance >= least, self.known.bounds)

    @cached_property
    def n_judged(self) -> Ints:
        """int64[n]."""
        return np.diff(self._judged_before[self.known.lists.offsets])

    def ideal_dcg(self, gain: Gain, cutoff: int | None) -> Floats:
        """float64[n]: the DCG of the best order at ranks 1, 2, 3 ..., cut at the cutoff.

        Raises:
            GainOverflow: a gain or the sum is not finite.
        """
        if gain not in self._discounted:
            self._discounted[gain] = gains_of(self._ideal_grades, gain) * discount(self._ideal_rank)
        values = self._discounted[gain]
        if cutoff is not None:
            values = np.where(self._ideal_rank <= cutoff, values, 0.0)
        return finite_sums(self.known.total(values))

    @cached_property
    def _ideal_grades(self) -> Floats:
        if self.options.ideal == "given":
            return self.known.relevance
        return descending(self.known.relevance, self.known.bounds)

    @cached_property
    def _ideal_rank(self) -> Ints:
        if self.options.ideal != "given":
            return self.known.number
        # MLlib walks all labels as they are given, also those of grade 0.
        before = self._judged_before
        return before[self.known.index] - before[self.known.heads] + 1

    @cached_property
    def _judged_before(self) -> Ints:
        return running_count(~np.isnan(self.known.lists.relevance))
