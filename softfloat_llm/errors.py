"""Every exception that this package raises. Each says what was being done, what was found and what to do.

The command line turns them into exit codes: 2 where the words were wrong, 3 where an input cannot be used.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping


class SoftfloatError(Exception):
    """Base of all errors that a person's input can cause."""

    exit_code = 3


class WordError(SoftfloatError):
    """The words of a request are wrong: an unknown name, a malformed text form."""

    exit_code = 2


class FormatError(WordError):
    """An unknown format, or values that a format cannot hold."""


class OrderError(WordError):
    """A summation order that cannot be parsed, or cannot be applied."""


class PrecisionError(WordError):
    """A precision whose text or combination of stages has no meaning."""


class RecipeError(WordError):
    """A recipe, site or stage that does not exist, or sites whose formats do not fit together."""


class CheckpointError(SoftfloatError):
    """A checkpoint file that is missing, damaged, or does not match its config."""


class ConfigError(SoftfloatError):
    """A model configuration with a key or value that cannot be honoured."""


class TokenError(SoftfloatError):
    """Tokens or a prompt that the model cannot take."""


class NonFiniteError(SoftfloatError):
    """A token was asked of a row that holds NaN, or an accumulator left the range of its format."""


class RunError(SoftfloatError):
    """A saved run that cannot be read, or two runs that cannot be compared."""


class SweepError(SoftfloatError):
    """A sweep whose folder, cluster or packages cannot be had."""


class GridError(SweepError, WordError):
    """A sweep's grid whose words have no meaning: they stop it before anything runs."""

    exit_code = 2


class LiveError(SoftfloatError):
    """An engine that is to be run is not installed here, or cannot run what it was asked to."""


class ProbeError(SoftfloatError):
    """A kernel that cannot be asked for the order of its sums, or whose answers contradict one another."""


class ArrayError(SoftfloatError):
    """A file of arrays that cannot be read, or arrays that do not fit what is asked of them."""


class VectorError(SoftfloatError):
    """A file of conformance vectors with a line that is none, or vectors that cannot be made."""


class GoldenError(SoftfloatError):
    """A golden folder that is incomplete, or would be overwritten."""


class ReportError(SoftfloatError):
    """A picture or page that cannot be drawn: what it needs is not installed, or there is nothing to draw."""


class FetchError(SoftfloatError):
    """A download or conversion that did not produce what was expected."""


def why(error: BaseException, *, with_file: bool = False) -> str:
    """What went wrong, for the middle of a message: the system's words without their number, one line.

    `with_file`: after the file that it refused, where the message does not name it already.

    >>> why(FileNotFoundError(2, "No such file or directory", "x.toml"))
    'No such file or directory'
    """
    if isinstance(error, OSError) and error.strerror:
        names = [str(name) for name in (error.filename, error.filename2) if name is not None and with_file]
        return f"{' and '.join(names)}: {error.strerror}" if names else error.strerror
    if isinstance(error, UnicodeDecodeError):
        return f"it is no text in UTF-8 (byte {error.start} is {error.object[error.start]:#04x})"
    return str(error).split("\n", maxsplit=1)[0].rstrip(".") or type(error).__name__


def nearest(word: str, known: Iterable[str], also: Mapping[str, str] | None = None) -> str:
    """A hint for a message: " Did you mean 'bf16'?", or nothing when no known word is near.

    `also`: what others call a known word, in lower case.
    """
    found = nearest_word(word, known, also)
    return f" Did you mean {found!r}?" if found else ""


def nearest_word(word: str, known: Iterable[str], also: Mapping[str, str] | None = None) -> str | None:
    """The known word that is meant: by another name of it, by its letters, or as a part of it; None where none is."""
    asked, spelled = str(word).strip().lower(), {str(each).lower(): str(each) for each in known}
    if also and asked in also:
        return also[asked]
    if close := difflib.get_close_matches(asked, list(spelled), n=1, cutoff=0.5):
        return spelled[close[0]]
    return next((spelled[each] for each in sorted(spelled) if len(asked) > 2 and each.startswith(asked)), None)
