"""Parts that PaddleOCR's configurations of all tasks share: label files, dictionaries, and image transforms."""

import os
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from phalanx.config.read import Node
from phalanx.paddle.configs.dialect import Section, with_value

IMAGENET = {'mean': [0.485, 0.456, 0.406], 'std': [0.229, 0.224, 0.225]}


def label_files(train: Section, evaluation: Section) -> dict[str, Any]:
    """Keys of `data` for a SimpleDataSet. PaddleOCR resolves the lists from the working folder, Phalanx from `data.root`."""
    roots = [section.require('data_dir') for section in (train, evaluation)]
    root = os.path.normpath(str(roots[0].value))
    if os.path.normpath(str(roots[1].value)) != root:
        message = f'{roots[1].value!r} is not that of Train.dataset, {roots[0].value!r}'
        evaluation.report(roots[1], 'data_dir', f'{message}; Phalanx has one for both, below which the lists lie')
    keys: dict[str, Any] = {'name': 'label_files', 'root': with_value(roots[0], root)}
    for section, split in ((train, 'train'), (evaluation, 'eval')):
        files = section.require('label_file_list')
        listed = files.value if isinstance(files.value, list) else [files]
        keys[split] = [with_value(node, os.path.relpath(str(node.value), root)) for node in listed]
    evaluation.one_of('ratio_list', 1.0, [1.0])
    return keys


def dictionary_of(settings: Section, node: Node, built_in: Mapping[str, str]) -> Node:
    """File of `character_dict_path`, or, where it does not exist, the built-in dictionary of that path in PaddleOCR.

    `built_in`: path within PaddleOCR -> name of the dictionary here. Reports a problem where neither exists.
    """
    path = PurePath(str(node.value))
    if Path(path).is_file():
        return node
    if (name := built_in_name(path, built_in)) is not None:
        return with_value(node, name)
    cure = 'start in the folder that the path begins in, or set -o Global.character_dict_path=FILE'
    settings.report(node, 'character_dict_path', f'there is no file {path}; {cure}')
    return node


def built_in_name(path: PurePath, built_in: Mapping[str, str]) -> str | None:
    """Value of the path within PaddleOCR with which `path` ends; None for another file."""
    ends = (
        name for original, name in built_in.items() if path.parts[-len(PurePath(original).parts) :] == PurePath(original).parts
    )
    return next(ends, None)


def take_common_step(name: str, step: Section) -> bool:
    """Take a transform that all tasks have and that needs no counterpart. False if `name` is another one."""
    match name:
        case 'DecodeImage':
            step.expect({'img_mode': 'BGR'})
            step.one_of('channel_first', False)
        case 'KeepKeys':
            step.ignore('keep_keys', reason='the inputs of the loss are always kept')
        case 'ToCHWImage':
            pass
        case _:
            return False
    return True


def read_normalisation(step: Section) -> dict[str, Node]:
    """Mean and std of NormalizeImage."""
    step.one_of('scale', '1./255.')
    step.one_of('order', 'chw', 'hwc')
    return {key: step.take(key, default) for key, default in IMAGENET.items()}


def note_pretrained(backbone: Section, *, default: bool) -> None:
    """Take `pretrained`, and note that its weights are not fetched: only the code of the project knows their address."""
    if backbone.take('pretrained', default).value:
        cure = 'add them by --set train.init_from=FILE_OR_ADDRESS train.init_part=backbone'
        message = 'the configuration does not name its file of ImageNet weights'
        backbone.reading.notes.append(
            f'{backbone.node.origin}: {backbone.key_path("pretrained")} is ignored: {message}; {cure}'
        )
    backbone.ignore('use_ssld', reason='it says which of those weights to fetch')
