"""Standard output and error that never fail: text that cannot be written is dropped.

Training goes on, and saves, when the reader of its output has ended (`| head`, or `| tee`, which dies of the same Ctrl-C),
when the terminal or the connection is gone, and when the disk behind `> file` is full. After `protect_output`, `print`, rich,
logging handlers, warnings, argparse and tracebacks all write through the streams of this module.
"""

import errno
import io
import os
import select
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

TEMPORARY = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # space may be freed: keep trying with later lines


class Output(io.FileIO):
    """File descriptor 1 or 2 with writes that never fail. `lost`: error behind dropped output, if its reader still ran."""

    lost: OSError | None = None

    def write(self, data: 'ReadableBuffer') -> int:
        """Write or drop all of `data`; return its number of bytes."""
        remaining = memoryview(data).cast('B')
        size = len(remaining)
        try:
            while remaining:
                count = super().write(remaining)
                if count is None:  # another program has made the pipe non-blocking, and it is full
                    select.select([], [self], [])
                remaining = remaining[count or 0 :]
        except OSError as error:
            if error.errno not in TEMPORARY:  # also protects libraries that write to it, and child processes
                redirect_to_null(self.fileno())
            if error.errno != errno.EPIPE:  # a reader that has ended needs no error
                self.lost = error
        return size


def redirect_to_null(descriptor: int) -> None:
    """Redirect `descriptor` to the null device, in this process and in those it starts from now on."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere == descriptor:  # it was closed, so the null device got its number
        os.set_inheritable(descriptor, True)
        return
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def protect_output() -> Output:
    """Make writes to standard output and error of this process never fail; return the raw standard output.

    A closed stream (`>&-`) becomes the null device: otherwise the next opened file would get its number, and its output.
    """
    # The lowest free number is reused, so descriptors are checked in ascending order.
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            redirect_to_null(descriptor)
    outputs = [Output(1, 'w', closefd=False), Output(2, 'w', closefd=False)]
    sys.stdout, sys.stderr = (_text_stream(*pair) for pair in zip(outputs, (sys.stdout, sys.stderr), strict=True))
    return outputs[0]


def _text_stream(output: Output, before: object) -> io.TextIOWrapper:
    """Text stream with the settings of `before`; characters outside its encoding are written as `\\u2264`."""
    if not isinstance(before, io.TextIOWrapper):  # None where it was closed
        return io.TextIOWrapper(io.BufferedWriter(output), encoding='utf-8')
    return io.TextIOWrapper(
        output if before.write_through else io.BufferedWriter(output),  # raw under `python -u`
        encoding=before.encoding,
        errors='backslashreplace' if before.errors == 'strict' else before.errors,
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )
