"""Standard output and error that end no command: what cannot be written there any more is dropped.

Training goes on, and saves, when the program that reads its output has ended (`| head`, or `| tee`, which dies of the same
Ctrl-C), when the terminal or the connection is gone, and when the disk behind `> file` is full. Once a process has called
`keep_output`, `print`, rich, handlers of logging, warnings, argparse and tracebacks write through what is here.
"""

import errno
import io
import os
import select
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # there may be room again: later lines are tried


class Output(io.FileIO):
    """A descriptor, 1 or 2, of which writing never fails. `lost`: why something that has a reader was dropped."""

    lost: OSError | None = None

    def write(self, data: 'ReadableBuffer') -> int:
        """The number of bytes in `data`, all of which are written or dropped."""
        left = memoryview(data).cast('B')
        size = len(left)
        try:
            while left:
                count = super().write(left)
                if count is None:  # another program has made the pipe non-blocking, and it is full
                    select.select([], [self], [])
                left = left[count or 0 :]
        except OSError as error:
            if error.errno not in PASSING:  # for the code of libraries and for child processes as well
                replace_by_nothing(self.fileno())
            if error.errno != errno.EPIPE:  # a reader that has ended has what it wanted
                self.lost = error
        return size


def replace_by_nothing(descriptor: int) -> None:
    """Lets `descriptor` go to the null device, here and in processes started from now on."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere == descriptor:  # it was closed, and is the first free one
        os.set_inheritable(descriptor, True)
        return
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def protect_output() -> Output:
    """Makes standard output and error of this process such that writing never fails; the descriptor of standard output.

    One that is closed (`>&-`) becomes the null device: a file that is opened later would take its number, and get the output.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            replace_by_nothing(descriptor)
    outputs = [Output(1, 'w', closefd=False), Output(2, 'w', closefd=False)]
    sys.stdout, sys.stderr = (_text(*pair) for pair in zip(outputs, (sys.stdout, sys.stderr), strict=True))
    return outputs[0]


def _text(output: Output, before: object) -> io.TextIOWrapper:
    """A text stream as Python made it (`before`); a character that its encoding lacks is written as `\\u2264`."""
    if not isinstance(before, io.TextIOWrapper):  # None where it was closed
        return io.TextIOWrapper(io.BufferedWriter(output), encoding='utf-8')
    return io.TextIOWrapper(
        output if before.write_through else io.BufferedWriter(output),  # raw under `python -u`
        encoding=before.encoding,
        errors='backslashreplace' if before.errors == 'strict' else before.errors,
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )
