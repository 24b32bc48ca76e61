"""Names of PaddleSeg's SegFormer, which counts its stages from 1."""

from phalanx.families.segmentation.models.segformer import SegFormer
from phalanx.weights.originals.original import PADDLE_BUFFERS, Original


def original(model: SegFormer) -> Original:
    """How PaddleSeg names the parameters of `model`."""
    return Original(
        rules=(
            (r'^backbone\.stages\.(\d)\.', lambda match: f'backbone.{int(match[1]) + 1}.'),
            (r'^backbone\.(\d)\.embed\.', r'backbone.patch_embed\1.proj.'),
            (r'^backbone\.(\d)\.embed_norm\.', r'backbone.patch_embed\1.norm.'),
            (r'^backbone\.(\d)\.norm\.', r'backbone.norm\1.'),
            (r'^backbone\.(\d)\.blocks\.', r'backbone.block\1.'),
            (r'\.attention\.query\.', '.attn.q.'),
            (r'\.attention\.key_value\.', '.attn.kv.'),
            (r'\.attention\.out\.', '.attn.proj.'),
            (r'\.attention\.reduce\.', '.attn.sr.'),
            (r'\.attention\.reduced_norm\.', '.attn.norm.'),
            (r'\.mlp\.widen\.', '.mlp.fc1.'),
            (r'\.mlp\.mix\.', '.mlp.dwconv.dwconv.'),
            (r'\.mlp\.narrow\.', '.mlp.fc2.'),
            (r'^linear\.(\d)\.', lambda match: f'linear_c{int(match[1]) + 1}.proj.'),
            (r'^fuse\.conv\.', 'linear_fuse._conv.'),
            (r'^fuse\.norm\.', 'linear_fuse._batch_norm.'),
            (r'^classify\.', 'linear_pred.'),
            *PADDLE_BUFFERS,
        ),
    )
