"""A measure is a value with a text form: `ndcg@10`, `rbp(p=0.95)`, `ndcg@10(ties=average)`."""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from rankspark.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rankspark.measures.batch import Batch

    Kernel = Callable[[Batch, "Measure"], NDArray[np.float64]]

#: Beyond any list, and small enough for k + 1 to stay an int64 everywhere.
MAX_CUTOFF = 2**31 - 1

_TEXT = re.compile(r"\s*([a-z_][a-z0-9_]*)\s*(?:@\s*([^\s(]*)\s*)?(?:\(([^()]*)\)\s*)?", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class Param:
    """A parameter of a measure: one of several words, or a number in an open interval.

    Attributes:
        default: the value that the text form leaves out.
        words: the words allowed; empty for a number.
        above: a number must be larger than this.
        below: a number must be smaller than this.
    """

    default: float | str
    words: tuple[str, ...] = ()
    above: float = -math.inf
    below: float = math.inf

    @property
    def allowed(self) -> str:
        """What may be given, in words."""
        if self.words:
            return " or ".join(self.words)
        return f"a number above {_number(self.above)} and below {_number(self.below)}"

    def read(self, value: float | str) -> float | str | None:
        """The value in its one form, or None where it is not allowed."""
        if self.words:
            return value if value in self.words else None
        if isinstance(value, str):
            if not _NUMBER.fullmatch(value):
                return None
            value = float(value)
        return float(value) if self.above < value < self.below else None


#: Offered by every measure that can average over the orders of tied items.
TIES = Param("order", words=("order", "average"))


@dataclass(frozen=True)
class MeasureSpec:
    """What the registry knows of a measure.

        >>> from rankspark import MEASURES
        >>> MEASURES["ndcg"].range, MEASURES["ndcg"].cutoff
        ('[0, 1]', 'optional')

    Attributes:
        kernel: computes it for a batch of lists: float64[n]. Its docstring is the full definition.
        definition: one line.
        range: of the values, such as "[0, 1]".
        cutoff: whether `@k` must, may or must not be given.
        params: by name.
        undefined: the lists for which there is nothing to measure (DESIGN section 4): those without
            a "relevant" item, those without a "gain" (no grade above 0), or "never".
        ties: "averaged" if it takes ties=average, "indifferent" if the order has no effect, else
            "fixed".
        uses_threshold: whether `relevant_from` changes it.
        unscored_is_null: undefined stays null even where lists without relevant items count 0.
    """

    kernel: Kernel
    definition: str
    range: str
    cutoff: Literal["required", "optional", "forbidden"]
    params: Mapping[str, Param]
    undefined: Literal["relevant", "gain", "never"]
    ties: Literal["averaged", "indifferent", "fixed"]
    uses_threshold: bool
    unscored_is_null: bool


#: Every measure by name; `kernels` fills it, an entry at each kernel.
MEASURES: dict[str, MeasureSpec] = {}


def register(
    name: str,
    *,
    values: str,
    cutoff: Literal["required", "optional", "forbidden"],
    undefined: Literal["relevant", "gain", "never"] = "relevant",
    ties: Literal["averaged", "indifferent", "fixed"] = "averaged",
    params: Mapping[str, Param] = MappingProxyType({}),
    uses_threshold: bool = True,
    unscored_is_null: bool = False,
) -> Callable[[Kernel], Kernel]:
    """Enter a kernel into the registry.

    Args:
        name: of the measure.
        values: their range.
        cutoff: as in :class:`MeasureSpec`, like the arguments after it.
        undefined: see there.
        ties: see there.
        params: see there; that of ties is added.
        uses_threshold: see there.
        unscored_is_null: see there.
    """

    def enter(kernel: Kernel) -> Kernel:
        MEASURES[name] = MeasureSpec(
            kernel=kernel,
            definition=(inspect.getdoc(kernel) or "").partition("\n")[0].removesuffix("."),
            range=values,
            cutoff=cutoff,
            params=dict(params) | ({"ties": TIES} if ties == "averaged" else {}),
            undefined=undefined,
            ties=ties,
            uses_threshold=uses_threshold,
            unscored_is_null=unscored_is_null,
        )
        return kernel

    return enter


@dataclass(frozen=True)
class Measure:
    """A measure with its cutoff and parameters; always valid, and equal if it measures the same.

        >>> Measure.parse("nDCG @ 10 (ties=average)")
        Measure(name='ndcg', cutoff=10, params=(('ties', 'average'),))
        >>> str(Measure.parse("rbp(p=0.80)")), Measure.parse("rbp(p=0.95)").column_name
        ('rbp', 'rbp_p_0_95')

    Attributes:
        name: its name in the registry, such as "ndcg".
        cutoff: the k of "ndcg@10", a rank, or None for whole lists.
        params: sorted (name, value) pairs, without those at their default.

    Raises:
        ConfigError: an unknown name or parameter, a cutoff that is missing, too many or no positive
            integer, a value out of range.
    """

    name: str
    cutoff: int | None = None
    params: tuple[tuple[str, float | str], ...] = ()

    def __post_init__(self) -> None:
        """Check the fields and bring the parameters into their one form."""
        if self.name not in MEASURES:
            raise ConfigError(
                expected=f"a measure, one of {', '.join(sorted(MEASURES))}",
                found=repr(self.name),
                action=_hint(self.name, list(MEASURES), "use one of those"),
            )
        self._check_cutoff()
        object.__setattr__(self, "params", self._checked_params())

    @classmethod
    def parse(cls, text: str) -> Measure:
        """Read a text form; case and spaces do not matter.

        Args:
            text: `name`, `name@k`, `name(param=value, ...)` or `name@k(param=value, ...)`.

        Raises:
            ConfigError: not of that form, or no valid measure.
        """
        match = _TEXT.fullmatch(text.lower())
        if match is None:
            raise ConfigError(
                expected="a measure such as ndcg@10 or rbp(p=0.8)",
                found=repr(text),
                action="write name@k(param=value), where @k and the parentheses may be left out",
            )
        name, cutoff, params = match.groups()
        pairs: list[tuple[str, float | str]] = []
        for part in (params or "").split(",") if (params or "").strip() else ():
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if not (key and equals and value):
                raise ConfigError(
                    expected="parameters as name=value, with commas between them",
                    found=repr(text),
                    action=f"write it as in {name}(param=value)",
                )
            pairs.append((key, value))
        return cls(name, None if cutoff is None else _cutoff(cutoff, text), tuple(pairs))

    def __str__(self) -> str:
        """The canonical text: `parse(str(measure)) == measure`."""
        cutoff = "" if self.cutoff is None else f"@{self.cutoff}"
        params = ",".join(f"{key}={_number(value)}" for key, value in self.params)
        return f"{self.name}{cutoff}" + (f"({params})" if params else "")

    @property
    def column_name(self) -> str:
        """The name of its column, of a-z, 0-9 and _; no two measures share one."""
        # query_metrics counts n_relevant whatever is measured.
        parts = ["relevant_items" if self.name == "n_relevant" else self.name]
        if self.cutoff is not None:
            parts.append(f"at_{self.cutoff}")
        for key, value in self.params:
            # Only numbers hold these marks, and each keeps a letter of its own: 1e-05, 1e05, 1.5.
            coded = _number(value).replace(".", "_").replace("-", "m").replace("+", "")
            parts.append(f"{key}_{coded}")
        return "_".join(parts)

    @property
    def spec(self) -> MeasureSpec:
        """What the registry knows of it."""
        return MEASURES[self.name]

    def param(self, name: str) -> float | str:
        """The value of a parameter, its default where it is not given."""
        return dict(self.params).get(name, self.spec.params[name].default)

    def _check_cutoff(self) -> None:
        rule, cutoff = MEASURES[self.name].cutoff, self.cutoff
        if cutoff is None:
            if rule == "required":
                raise ConfigError(
                    expected=f"{self.name} with a cutoff",
                    found=repr(self.name),
                    action=f"write {self.name}@10, for instance",
                )
            return
        if rule == "forbidden":
            raise ConfigError(
                expected=f"{self.name} without a cutoff",
                found=f"'{self.name}@{cutoff}'",
                action=f"leave @{cutoff} out",
            )
        if type(cutoff) is not int or not 1 <= cutoff <= MAX_CUTOFF:
            raise _bad_cutoff(f"'{self.name}@{cutoff}'")

    def _checked_params(self) -> tuple[tuple[str, float | str], ...]:
        known = MEASURES[self.name].params
        checked: dict[str, float | str] = {}
        for key, given in self.params:
            if key not in known:
                raise ConfigError(
                    expected=f"for {self.name}: {', '.join(known) or 'no parameter'}",
                    found=f"the parameter {key!r}",
                    action=_hint(key, list(known), "leave it out"),
                )
            value = known[key].read(given)
            if value is None or key in checked:
                twice = " a second time" if key in checked else ""
                raise ConfigError(
                    expected=f"{key} of {self.name} to be {known[key].allowed}, given once",
                    found=f"{key}={given}{twice}",
                    action="correct it",
                )
            checked[key] = value
        return tuple(
            (key, value) for key, value in sorted(checked.items()) if value != known[key].default
        )


def _cutoff(text: str, measure: str) -> int:
    # The length bound spares int() from absurd inputs; MAX_CUTOFF decides.
    if not re.fullmatch(r"\d{1,20}", text, re.ASCII):
        raise _bad_cutoff(repr(measure))
    return int(text)


def _bad_cutoff(found: str) -> ConfigError:
    return ConfigError(
        expected=f"a cutoff that is a whole number from 1 to {MAX_CUTOFF}",
        found=found,
        action="write it as in ndcg@10",
    )


def _number(value: float | str) -> str:
    """The shortest text that reads back as the same number: 3, 0.8, 1e-05."""
    return value if isinstance(value, str) else repr(value).removesuffix(".0")


def _hint(given: str, known: list[str], otherwise: str) -> str:
    near = difflib.get_close_matches(given, known, n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise
