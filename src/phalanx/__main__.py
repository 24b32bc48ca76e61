"""Entry point of `phalanx`, `python -m phalanx` and `fleetrun`: settings that torch reads on import, then the command."""

import os
import sys

os.environ.setdefault('TORCH_CPP_LOG_LEVEL', 'ERROR')  # else it warns of every node whose address has no name
os.environ.setdefault('PYTHONUNBUFFERED', '1')

RUNS = (['train'], ['launch'])  # what they make is in a folder, whoever reads what they print


def main(words: list[str] | None = None) -> int:
    from phalanx.cli.main import main
    from phalanx.system.output import protect_output
    from phalanx.system.process import fast_imports, run_and_exit
    from phalanx.system.stops import interrupt_at_stops, interrupting_signal

    if os.getpid() == 1:  # the first process of a container, to which the kernel delivers no signal without a handler
        interrupt_at_stops()
    words = sys.argv[1:] if words is None else words
    output = protect_output()

    def command() -> int:
        try:
            status = main(words, fast_imports)
        except KeyboardInterrupt as stop:  # while there is nothing to save
            number = interrupting_signal(stop)
            sys.stderr.write(f'phalanx: stopped by {number.name}\n')
            status = 128 + number
        sys.stdout.flush()
        if output.lost is None or words[:1] in RUNS:
            return status
        sys.stderr.write(f'standard output could not be written: {output.lost.strerror}\n')
        return status or 1

    return run_and_exit(command)


def fleetrun() -> int:
    """`phalanx launch` under the name that people bring along."""
    return main(['launch', *sys.argv[1:]])


if __name__ == '__main__':
    sys.exit(main())
