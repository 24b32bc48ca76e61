"""First program of a rank process: ties its life and its log to the launcher, then executes the rank.

A separate file with few imports: it costs every rank one bare interpreter start, some 15 ms.
`python child.py LOG MODE TERMINAL PROGRAM ARGS...`: standard output and error go to the file LOG.<rank>, opened with MODE `a`
or `w`; the rank TERMINAL keeps those of the launcher.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    log, mode, terminal, program, *arguments = sys.argv[1:]
    rank = os.environ['RANK']
    if sys.platform == 'linux':
        # A launcher that is killed cannot end its ranks: the kernel does it.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(os.environ['PHALANX_LAUNCHER']):
            sys.exit('the launcher is gone')
    if rank != terminal:
        truncate = os.O_TRUNC if mode == 'w' else 0
        file = os.open(f'{log}.{rank}', os.O_WRONLY | os.O_CREAT | os.O_APPEND | truncate, 0o644)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
    os.execvp(program, [program, *arguments])


if __name__ == '__main__':
    main()
