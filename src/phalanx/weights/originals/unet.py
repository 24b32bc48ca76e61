"""Names of PaddleSeg's U-Net."""

from phalanx.families.segmentation.models.unet import UNet
from phalanx.weights.originals.original import PADDLE_BUFFERS, Original


def original(model: UNet) -> Original:
    """How PaddleSeg names the parameters of `model`."""
    return Original(
        rules=(
            (r'^classify\.', 'cls.'),
            (r'^encoder\.0\.', 'encode.double_conv.'),
            *(  # the first place of each level is the pooling
                (rf'^encoder\.{level}\.{place}\.', f'encode.down_sample_list.{level - 1}.{place + 1}.')
                for level in range(1, len(model.encoder))
                for place in range(2)
            ),
            (r'^decoder\.(\d)\.convs\.', r'decode.up_sample_list.\1.double_conv.'),
            (r'^decoder\.(\d)\.enlarge\.', r'decode.up_sample_list.\1.deconv.'),
            (r'\.conv\.(weight|bias)$', r'._conv.\1'),
            (r'\.norm\.', '._batch_norm.'),
            *PADDLE_BUFFERS,
        ),
        aliases={'conv.weight': 'cls.weight', 'conv.bias': 'cls.bias'},  # PaddleSeg registers its last convolution twice
    )
