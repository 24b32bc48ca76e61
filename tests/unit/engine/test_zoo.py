"""Models by name: a wrong name or option is reported with the valid ones."""

from pathlib import Path

import pytest
import safetensors.torch
import torch

from phalanx import create_model


@pytest.mark.parametrize(
    ('name', 'num_classes', 'options', 'message'),
    [
        ('pp_litseg', 3, {}, "'pp_litseg' is not one of .*; did you mean 'pp_liteseg'"),
        ('pp_liteseg', 3, {'backbone': 'stdc3'}, "backbone.name: 'stdc3' is not one of stdc1, stdc2, .*; did you mean"),
        ('crnn', 3, {'backbone': 'resnet34'}, "backbone.name: 'resnet34' is not one of .*; did you mean 'resnet34_vd'"),
        ('pp_liteseg', 0, {}, 'num_classes must be an integer of at least 1, got 0'),
        ('pp_liteseg', '3', {}, "num_classes must be an integer of at least 1, got '3'"),
    ],
)
def test_a_model_that_cannot_be_is_refused_with_what_can(
    name: str, num_classes: int, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        create_model(name, num_classes=num_classes, **options)


def test_a_model_starts_from_weights_for_other_classes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs = create_model('pp_liteseg', num_classes=5)
    safetensors.torch.save_file(theirs.state_dict(), tmp_path / 'five.safetensors')
    ours = create_model('pp_liteseg', num_classes=3, weights=tmp_path / 'five.safetensors')
    state, other = ours.state_dict(), theirs.state_dict()
    differing = {name for name in state if not torch.equal(state[name], other[name])}
    assert differing == {f'heads.{head}.classify.weight' for head in range(3)}
    (warning,) = caplog.messages
    assert (
        'five.safetensors: 3 tensors are of another shape and stay as initialised: heads.0.classify.weight is [5, ' in warning
    )
