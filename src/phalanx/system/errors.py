"""What is wrong with a request, said before anything starts."""

import re

TERMINAL_CODES = re.compile(r'\x1b\[[0-9;]*m')  # colours and the like


class RequestError(Exception):
    """The request was wrong; nothing was started. One line a problem."""


class CheckpointError(Exception):
    """A checkpoint that cannot be used; says which file and why."""


class RunError(Exception):
    """The run cannot go on; the message says at which step, why, and what is left."""


class StoppedError(Exception):
    """The user (or a scheduler) asked the run to stop; a checkpoint of the step it reached is on disk."""


def describe_error(error: Exception) -> str:
    """What an error says, in the system's words after the path that they are about."""
    return f'{error.filename}: {error.strerror}' if isinstance(error, OSError) and error.filename else str(error)


def first_line(error: Exception) -> str:
    """The first line of what a library says, without codes for terminals."""
    return TERMINAL_CODES.sub('', str(error)).partition('\n')[0]
