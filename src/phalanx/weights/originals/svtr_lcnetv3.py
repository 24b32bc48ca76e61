"""Names of PaddleOCR's PP-OCRv4 and PP-OCRv5 mobile recognisers, and the layers of their exported files."""

from phalanx.families.recognition.models.svtr_lcnetv3 import SVTRLCNetV3
from phalanx.nn.backbones.lcnetv3 import ConvSum
from phalanx.weights.originals.db import PP_LCNET_V3
from phalanx.weights.originals.original import PADDLE_BUFFERS, Original, Rule, layers_with_weights
from phalanx.weights.originals.svtr_lcnet import NECK

NRTR: tuple[Rule, ...] = (
    (r'^nrtr\.enter\.', 'head.before_gtc.1.fc.'),
    (r'^nrtr\.embedding\.', 'nrtr.embedding.embedding.'),
    (r'^nrtr\.classify\.', 'nrtr.tgt_word_prj.'),
    (r'^nrtr\.blocks\.', 'nrtr.decoder.'),
    (r'^(nrtr.*)\.qkv\.', r'\1.self_attn.qkv.'),
    (r'^(nrtr.*)\.before\.', r'\1.self_attn.out_proj.'),
    (r'^(nrtr.*)\.query\.', r'\1.cross_attn.q.'),
    (r'^(nrtr.*)\.key_value\.', r'\1.cross_attn.kv.'),
    (r'^(nrtr.*)\.seen\.', r'\1.cross_attn.out_proj.'),
    (r'^nrtr\.', 'head.gtc_head.'),
)


def original(model: SVTRLCNetV3) -> Original:
    """How PaddleOCR names the parameters of `model`. Where that has no NRTR head, the one of a file is left over."""
    return Original(
        rules=((r'^head\.', 'head.ctc_head.fc.'), *PP_LCNET_V3, *NECK, *NRTR, *PADDLE_BUFFERS),
        computed=frozenset({'head.gtc_head.positional_encoding.pe'}),
    )


def in_order(model: SVTRLCNetV3) -> list[str]:
    """The layers of `model` that have weights in evaluation, in the order in which PaddleOCR computes them, which is ours.

    Raises ValueError where exported files have other layers.
    """
    if any(isinstance(module, ConvSum) for module in model.modules()):
        raise ValueError('exported files of svtr_lcnetv3 have a single convolution for each sum: build it with `merged: true`')
    return [name for name in layers_with_weights(model) if not name.startswith('nrtr.')]
