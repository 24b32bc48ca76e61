"""What `phalanx`, `python -m phalanx` and `fleetrun` run: settles what torch reads when it is loaded, then goes on."""

import os
import sys

os.environ.setdefault('TORCH_CPP_LOG_LEVEL', 'ERROR')  # else it warns of every machine whose address has no name
os.environ.setdefault('PYTHONUNBUFFERED', '1')


def main() -> int:
    if sys.argv[1:2] == ['launch']:
        del sys.argv[1]
        return fleetrun()
    from phalanx.cli import main

    return main()


def fleetrun() -> int:
    """`phalanx launch`, without what only recipes need: a start should cost no more than torchrun's."""
    from phalanx.launch.command import command

    return command(sys.argv[1:])


if __name__ == '__main__':
    sys.exit(main())
