"""The errors a user meets: each is one line that says what is wrong, where, and how to mend it."""


class HexadError(Exception):
    """Base of every error that Hexad raises on purpose.

    The command line prints its message without a traceback and exits with `exit_code`.
    """

    exit_code = 2


class InputError(HexadError, ValueError):
    """Something the caller gave is wrong: an argument, a file, an array, a name."""


class MissingExtraError(HexadError, ImportError):
    """An optional dependency is not installed; the message names the command that installs it."""


class TrialError(HexadError):
    """An arm of a study measured nothing, or what cannot be recorded; it becomes the trial's outcome."""
