"""What `phalanx`, `python -m phalanx` and `fleetrun` run: settles what torch reads when it is loaded, then goes on."""

import os
import sys

os.environ.setdefault('TORCH_CPP_LOG_LEVEL', 'ERROR')  # else it warns of every node whose address has no name
os.environ.setdefault('PYTHONUNBUFFERED', '1')


def main() -> int:
    from phalanx.cli.main import main
    from phalanx.system.loading import loading

    return main(loading=loading)


def fleetrun() -> int:
    """`phalanx launch` under the name that people bring along."""
    from phalanx.cli.main import main
    from phalanx.system.loading import loading

    return main(['launch', *sys.argv[1:]], loading)


if __name__ == '__main__':
    sys.exit(main())
