"""The end of a process of ours."""

import subprocess
import sys

import pytest

from running import clean_environment

BEGIN = """
import atexit, sys, threading, time
from phalanx.system.process import run_and_exit

class Left:
    def __del__(self):
        print('taken apart')

left = Left()

def command():
    atexit.register(print, 'registered')
    threading.Thread(target=lambda: (time.sleep(0.2), print('a thread'))).start()
    print('done', end=' ')
    {last}
    return 3

sys.exit(run_and_exit(command))
"""


def ended(last: str) -> subprocess.CompletedProcess[str]:
    script = BEGIN.replace('{last}', last)
    return subprocess.run([sys.executable, '-c', script], env=clean_environment(), capture_output=True, text=True, check=False)


def test_a_process_ends_when_all_that_waits_for_its_end_is_done() -> None:
    run = ended('pass')
    assert (run.returncode, run.stdout, run.stderr) == (3, 'done a thread\nregistered\n', '')


@pytest.mark.parametrize(('last', 'status', 'said'), [('1 / 0', 1, 'ZeroDivisionError'), ('sys.exit(5)', 5, '')])
def test_an_error_ends_it_as_the_interpreter_does(last: str, status: int, said: str) -> None:
    run = ended(last)
    assert (run.returncode, run.stdout) == (status, 'done a thread\nregistered\ntaken apart\n')
    assert said in run.stderr
