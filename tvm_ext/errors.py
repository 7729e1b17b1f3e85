"""The one exception tree. A message is one line: subject, what was found, the limit, the remedy."""

from __future__ import annotations


class TvmExtError(Exception):
    """Base of every error a user can cause; the command line prints it alone and exits with 2."""


class InstallError(TvmExtError):
    """The environment cannot work: a missing or broken dependency."""


class ArgumentError(TvmExtError):
    """An argument has a value, or is of a type, that it cannot have."""


class ModelError(TvmExtError):
    """The model file cannot be read, or holds something that cannot be compiled."""


class ShapeError(TvmExtError):
    """A shape given by the user does not fit the model, or one that is needed was not given."""


class TargetError(TvmExtError):
    """The target is unknown, or not usable on this machine."""


class LogError(TvmExtError):
    """A tuning log cannot be read or written, or lacks a record that was required."""


class FleetError(TvmExtError):
    """The tracker of a fleet cannot be reached, or has no device that could measure."""


class ArtifactError(TvmExtError):
    """A compiled artifact cannot be read or written."""


class InputError(TvmExtError):
    """A run-time input has the wrong name, type or shape."""


class VerifyError(TvmExtError):
    """A result differs from its reference by more than the stated bound."""


class PlanError(TvmExtError):
    """A tile plan is illegal for its task; `reason` is the word its failures are counted by."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
