"""Errors that commands report to the user, and their text."""

import re

TERMINAL_CODES = re.compile(r'\x1b\[[0-9;]*m')  # colours and the like

LFS = b'version https://git-lfs'  # the first bytes of a file that stands for another
POINTER = 'is a Git LFS pointer: `git lfs pull` in its repository fetches the file itself'


class RequestError(Exception):
    """The request was wrong; nothing was started. One line per problem."""


class SameRequestError(RequestError):
    """Request that was wrong on all ranks; rank 0 reports it."""


class CheckpointError(Exception):
    """A checkpoint cannot be used. The message names the file and the reason."""


class RunError(Exception):
    """The run cannot go on. The message names the step, the reason, and the checkpoint that remains."""


class StoppedError(Exception):
    """The user or a scheduler stopped the run; a checkpoint of the last step is on disk."""


def describe_error(error: Exception) -> str:
    """Message of an error for the user; of an OSError, `path: reason`."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f'{error.filename}: {error.strerror}' if error.filename else error.strerror


def first_line(error: Exception) -> str:
    """First line of the message of an error, without terminal codes."""
    return TERMINAL_CODES.sub('', str(error)).partition('\n')[0]
