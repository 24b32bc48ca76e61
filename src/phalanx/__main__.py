"""What `phalanx`, `python -m phalanx` and `fleetrun` run: settles what torch reads when it is loaded, then goes on."""

import os
import sys

os.environ.setdefault('TORCH_CPP_LOG_LEVEL', 'ERROR')  # else it warns of every node whose address has no name
os.environ.setdefault('PYTHONUNBUFFERED', '1')

RUNS = (['train'], ['launch'])  # what they make is in a folder, whoever reads what they print


def main(words: list[str] | None = None) -> int:
    from phalanx.cli.main import main
    from phalanx.system.output import keep_output
    from phalanx.system.process import loading, to_the_end
    from phalanx.system.stops import signal_of

    words = sys.argv[1:] if words is None else words
    output = keep_output()

    def command() -> int:
        try:
            status = main(words, loading)
        except KeyboardInterrupt as stop:  # while there is nothing to save
            number = signal_of(stop)
            sys.stderr.write(f'phalanx: stopped by {number.name}\n')
            status = 128 + number
        sys.stdout.flush()
        if output.lost is None or words[:1] in RUNS:
            return status
        sys.stderr.write(f'standard output could not be written: {output.lost.strerror}\n')
        return status or 1

    return to_the_end(command)


def fleetrun() -> int:
    """`phalanx launch` under the name that people bring along."""
    return main(['launch', *sys.argv[1:]])


if __name__ == '__main__':
    sys.exit(main())
