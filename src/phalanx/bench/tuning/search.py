"""Search: trials of a recipe, each a run of its own, with settings from Optuna.

DIR/journal.log         what Optuna knows: survives kills, and several commands on one or more nodes share it
DIR/trial_007/          the run of a trial: resumed if it was stopped or killed
DIR/search.html         the page (`page.write_page`)

A trial belongs to the process that locks its file in DIR/locks. One that is unfinished and not locked was stopped or killed;
the next process that needs a trial continues it.
"""

import contextlib
import fcntl
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import IO, Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from phalanx.bench.tuning.page import write_page
from phalanx.bench.tuning.space import Assignments, Dimension
from phalanx.config.arguments import repeat_options
from phalanx.engine.job import Job, open_job
from phalanx.engine.overview import read_facts
from phalanx.launch.from_python import run_command
from phalanx.report.readable import format_number
from phalanx.system.disk import LOCK, exclude_others, is_locked
from phalanx.system.errors import RequestError, RunError, StoppedError

WARM_UP = 5  # trials before any is ended early
LEAST_SHARE = 20  # per cent of a trial before it is ended early: a warm-up says little
ATTEMPTS = 200  # settings to draw until one is new
POLL_S = 0.2
REPEATS = 'repeats'  # attribute of a drawn setting that was tried already: not a trial


@dataclass(frozen=True)
class Request:
    """Request for a search. Several commands with the same one share a folder."""

    recipe: str
    assignments: Assignments
    space: Sequence[Dimension]
    trials: int
    seed: int
    prunes: bool

    def identity(self, job: Job) -> dict[str, Any]:
        """Return the part that must be equal in all commands of a search."""
        return {'recipe': job.digest(), 'search': sorted(dimension.text for dimension in self.space)}


class Search:
    """The trials of a request in a folder."""

    def __init__(self, request: Request, job: Job, folder: Path, say: Callable[[str], object]) -> None:
        """Create the study, or join it. Raises RequestError if the folder has another one."""
        self.request, self.folder, self.say = request, folder, say
        self.metric = job.task.main_metric
        (folder / 'locks').mkdir(parents=True, exist_ok=True)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.study = optuna.create_study(
            study_name='phalanx',
            storage=JournalStorage(JournalFileBackend(str(folder / 'journal.log'))),
            direction='maximize',  # every main metric is the better the higher
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(WARM_UP, LEAST_SHARE),
        )
        # A later start, or another node, must not draw the same settings again.
        self.study.sampler = optuna.samplers.TPESampler(
            seed=request.seed + len(self.study.get_trials(deepcopy=False)),
            constant_liar=True,  # for trials in parallel
        )
        known, own = self.study.user_attrs.get('request'), request.identity(job)
        if known is None:
            self.study.set_user_attr('request', own)
        elif known != own:
            raise RequestError(f'{folder}: holds another search ({", ".join(known["search"])}); choose another --save_dir')

    def trials(self) -> list[FrozenTrial]:
        """Return all trials so far, without settings that were drawn again."""
        return [trial for trial in self.study.get_trials(deepcopy=False) if REPEATS not in trial.user_attrs]

    def best(self) -> FrozenTrial | None:
        complete = [trial for trial in self.trials() if trial.state == TrialState.COMPLETE]
        return max(complete, key=lambda trial: (trial.value, -trial.number), default=None)

    def work(self, stop: threading.Event, flags: Sequence[str]) -> None:
        """Run trials until there are enough. Raises StoppedError, and RequestError if a trial cannot start."""
        while not stop.is_set():
            with self._next() as trial:
                if trial is None:
                    return
                self._run(trial, stop, flags)
            self.write_page()
        raise StoppedError('stopped; the same command continues')

    def write_page(self) -> Path:
        """Write the page about all trials so far; return its path."""
        with exclude_others(self.folder / 'locks' / 'page'):
            return write_page(self.folder, self.study, self.trials(), self.metric, self.request.space)

    # Choosing trials.

    @contextlib.contextmanager
    def _next(self) -> Iterator[Trial | None]:
        """Context of the next trial, which this process owns meanwhile; None when there are enough."""
        with contextlib.ExitStack() as own:
            with exclude_others(self.folder / 'locks' / 'next'):
                trial = self._continued(own) or self._new(own)
            yield trial

    def _continued(self, own: contextlib.ExitStack) -> Trial | None:
        """Return an unfinished trial that no process owns."""
        for frozen in self.trials():
            if frozen.state == TrialState.RUNNING and self._own(frozen.number, own):
                trial = Trial(self.study, frozen._trial_id)  # Optuna has no public way to continue one
                if 'assigned' in trial.user_attrs:
                    return trial
                trial.set_user_attr(REPEATS, trial.number)  # killed while its settings were drawn
                self.study.tell(trial, state=TrialState.FAIL)
        return None

    def _new(self, own: contextlib.ExitStack) -> Trial | None:
        """Return a trial with settings that no other has; None if there are enough, or none are left."""
        if len(earlier := self.trials()) >= self.request.trials:
            return None
        for _ in range(ATTEMPTS):
            trial = self.study.ask()
            assigned = [dimension.assign(dimension.suggest(trial)) for dimension in self.request.space]
            texts = [text for text, _ in assigned]
            alike = next((other for other in earlier if other.user_attrs.get('assigned') == texts), None)
            if alike is None:
                digest = open_job(self.request.recipe, [*self.request.assignments, *assigned]).digest()
                alike = next((other for other in earlier if other.user_attrs.get('digest') == digest), None)
            if alike is None:
                self._own(trial.number, own)
                trial.set_user_attr('digest', digest)
                trial.set_user_attr('assigned', texts)
                return trial
            trial.set_user_attr(REPEATS, alike.number)
            self.study.tell(trial, state=TrialState.FAIL)
            if idle := [text.partition('=')[0] for text in texts if text not in alike.user_attrs['assigned']]:
                raise RequestError(
                    f'trials {alike.number} and {trial.number} resolve to the same recipe, although {", ".join(idle)} '
                    f'differs: it has no effect on the recipe; search another key'
                )
        self.say(f'all settings that {ATTEMPTS} draws found were tried: the search is complete')
        return None

    def _own(self, number: int, own: contextlib.ExitStack) -> bool:
        """Lock a trial until `own` ends; False if another process has it."""
        file = own.enter_context((self.folder / 'locks' / f'trial_{number:03}').open('a'))
        return _try_lock(file)

    # Running one.

    def run_folder(self, number: int) -> Path:
        return self.folder / f'trial_{number:03}'

    def _run(self, trial: Trial, stop: threading.Event, flags: Sequence[str]) -> None:
        """Train a trial, and tell Optuna its result."""
        assigned = list(trial.user_attrs['assigned'])
        self.say(f'trial {trial.number}: {" ".join(assigned)}')
        folder = self.run_folder(trial.number)
        while is_locked(folder / LOCK) and not stop.is_set():  # the ranks of a killed search save before they end
            stop.wait(POLL_S)
        sets = [*(text for text, _ in self.request.assignments), *assigned]
        words = ['train', self.request.recipe, '--save_dir', str(folder), *flags, '--set', *sets]
        follower = Follower(self.study, trial, self.metric, stop, prunes=self.request.prunes)
        try:
            run_command(words, follower.hear, follower.is_stopped, quiet=True)
        except StoppedError:
            if not follower.is_pruned:
                raise
        except RunError as error:
            if stop.is_set():  # before it could save
                raise StoppedError(str(error)) from None
            trial.set_user_attr('reason', str(error))
            self.study.tell(trial, state=TrialState.FAIL)
            self.say(f'trial {trial.number} failed: {error} ({folder}/log)')
            self._check_failures()
            return
        facts = read_facts(folder)
        if follower.is_pruned:
            self.study.tell(trial, state=TrialState.PRUNED)
            self.say(f'trial {trial.number}: ended early at step {facts.step}: worse than the median')
        elif facts.score is None:
            self.study.tell(trial, state=TrialState.FAIL)
            self.say(f'trial {trial.number} was never evaluated: set evaluate.every below train.steps')
            self._check_failures()
        else:
            self.study.tell(trial, facts.score.value)
            best = self.best()
            mark = ', the best so far' if best and best.number == trial.number else ''
            self.say(f'trial {trial.number}: {self.metric} {format_number(facts.score.value)}{mark}')

    def _check_failures(self) -> None:
        """Raise RequestError if the first trials all failed: a fault of the recipe, not of a setting."""
        states = [trial.state for trial in self.trials() if trial.state.is_finished()]
        if len(states) >= 3 and set(states) == {TrialState.FAIL}:
            raise RequestError(f'the first {len(states)} trials failed; see {self.folder}/trial_*/log')

    def records(self) -> list[dict[str, Any]]:
        """Return all trials, for scripts."""
        return [
            {
                'trial': trial.number,
                'value': trial.value if trial.state == TrialState.COMPLETE else None,
                'assigned': trial.user_attrs.get('assigned', []),
                'state': trial.state.name.lower(),
                'folder': str(self.run_folder(trial.number)),
            }
            for trial in self.trials()
        ]

    def describe_best(self) -> list[str]:
        """Return lines about the best trial, with the command that uses it."""
        if (best := self.best()) is None:
            return ['no trial is complete']
        folder, options = quote(str(self.run_folder(best.number))), repeat_options()
        return [
            f'best: trial {best.number}, {self.metric} {format_number(best.value)}, {" ".join(best.user_attrs["assigned"])}',
            f'next: phalanx predict {folder} IMAGES{options}; phalanx export {folder}{options}',
        ]


class Follower:
    """Listener to the events of a trial's run, which it ends early on Optuna's advice."""

    def __init__(self, study: optuna.Study, trial: Trial, metric: str, stop: threading.Event, *, prunes: bool) -> None:
        self.trial, self.metric, self.prunes = trial, metric, prunes
        self.is_pruned, self._stopped, self._total = False, stop, 0
        (known,) = (one for one in study.get_trials(deepcopy=False) if one.number == trial.number)
        self._reported = set(known.intermediate_values)

    def is_stopped(self) -> bool:
        return self.is_pruned or self._stopped.is_set()

    def hear(self, line: bytes) -> None:
        event: Mapping[str, Any] = json.loads(line)
        if event['kind'] == 'start':
            self._total = int(event['total_steps'])
        elif event['kind'] == 'eval' and event.get(self.metric) is not None and self._total:
            # By the share of the run, so that trials of different lengths are compared at the same point.
            share = round(100 * event['step'] / self._total)
            if share not in self._reported:
                self._reported.add(share)
                self.trial.report(float(event[self.metric]), share)
                self.is_pruned |= self.prunes and share < 100 and self.trial.should_prune()


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def run_in_parallel(search: Search, flags: Sequence[Sequence[str]]) -> None:
    """Work with one thread per entry of `flags`, the options of its trials. Raises the first error, once all have ended."""
    stop, errors = threading.Event(), list[Exception]()

    def work(own: Sequence[str]) -> None:
        try:
            search.work(stop, own)
        except Exception as error:  # noqa: BLE001 - raised below, in the main thread
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=work, args=[own]) for own in flags]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        search.say('stopping the trials, which save')
        stop.set()
        for thread in threads:
            thread.join()
    if errors:
        raise next((error for error in errors if not isinstance(error, StoppedError)), errors[0])
