"""What `phalanx`, `python -m phalanx` and `fleetrun` run: settles what torch reads when it is loaded, then goes on."""

import os
import sys

os.environ.setdefault('TORCH_CPP_LOG_LEVEL', 'ERROR')  # else it warns of every node whose address has no name
os.environ.setdefault('PYTHONUNBUFFERED', '1')


def main(words: list[str] | None = None) -> int:
    from phalanx.cli.main import main
    from phalanx.system.process import loading, to_the_end

    return to_the_end(lambda: main(words, loading))


def fleetrun() -> int:
    """`phalanx launch` under the name that people bring along."""
    return main(['launch', *sys.argv[1:]])


if __name__ == '__main__':
    sys.exit(main())
