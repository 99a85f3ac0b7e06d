"""What can go wrong, one class a cause.

Every message is one line for the person on call: what was expected, what was found, what to do.
``exit_code`` is what the command line and the jobs end with.
"""

from __future__ import annotations


class RanksparkError(Exception):
    """Base of every error that rankspark raises on purpose.

        >>> print(ConfigError(expected="a cutoff", found="'ndcg@0'", action="count from 1"))
        expected a cutoff; found 'ndcg@0'; count from 1
        >>> ConfigError.exit_code
        2

    Args:
        expected: what should have been there.
        found: what was there instead.
        action: what to do about it.
    """

    exit_code = 1

    def __init__(self, *, expected: str, found: str, action: str) -> None:
        # Engine messages quoted in `found` span lines; a scheduler shows only one.
        self.expected, self.found, self.action = (
            " ".join(part.split()) for part in (expected, found, action)
        )
        super().__init__(f"expected {self.expected}; found {self.found}; {self.action}")

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.expected, self.found, self.action))


def _rebuild(cls: type[RanksparkError], expected: str, found: str, action: str) -> RanksparkError:
    return cls(expected=expected, found=found, action=action)


class ConfigError(RanksparkError):
    """The command line or the configuration is wrong."""

    exit_code = 2


class InputError(RanksparkError):
    """The input is missing, empty, unreadable or of the wrong schema."""

    exit_code = 3


class NoRowsError(InputError):
    """The date has no row at all; published as empty only where that was asked for."""


class GainOverflow(InputError):  # noqa: N818  says what happened
    """A relevance is too large for the gain function that a measure uses."""


class QualityError(RanksparkError):
    """A gate on the data's quality failed; nothing was published."""

    exit_code = 4


class PublishError(RanksparkError):
    """Publishing failed; the published tables are as they were."""

    exit_code = 5


class LockedError(RanksparkError):
    """Another run holds the date; try later."""

    exit_code = 75
