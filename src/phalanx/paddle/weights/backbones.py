"""Names of Paddle's backbones that several of its networks share."""

from phalanx.paddle.weights.original import Rule, number_from

PP_LCNET: tuple[Rule, ...] = (
    (r'^backbone\.stem\.', 'backbone.conv1.'),
    (r'^backbone\.stages\.(\d)\.', number_from('backbone.blocks{}.', 2)),
    (r'^(backbone.*)\.depthwise\.', r'\1.dw_conv.'),
    (r'^(backbone.*)\.pointwise\.', r'\1.pw_conv.'),
    (r'^(backbone.*)\.squeeze\.squeeze\.', r'\1.se.conv1.'),
    (r'^(backbone.*)\.squeeze\.excite\.', r'\1.se.conv2.'),
    (r'^(backbone.*)\.norm\.', r'\1.bn.'),
)
PP_LCNET_V3: tuple[Rule, ...] = (
    *PP_LCNET,
    (r'^backbone\.narrow\.', 'backbone.layer_list.'),
    (r'^(backbone.*)\.conv\.full\.', r'\1.conv_kxk.'),
    (r'^(backbone.*)\.conv\.small\.', r'\1.conv_1x1.'),
    (r'^(backbone.*)\.conv\.identity\.', r'\1.identity.'),
    (r'^(backbone.*_conv)\.conv\.', r'\1.reparam_conv.'),  # of a merged sum
    (r'^(backbone.*)\.before\.', r'\1.lab.'),
    (r'^(backbone.*)\.after\.', r'\1.act.lab.'),
)
MOBILENET_V3: tuple[Rule, ...] = (  # its blocks
    (r'^(backbone.*)\.widen\.', r'\1.expand_conv.'),
    (r'^(backbone.*)\.filter\.', r'\1.bottleneck_conv.'),
    (r'^(backbone.*)\.squeeze\.squeeze\.', r'\1.mid_se.conv1.'),
    (r'^(backbone.*)\.squeeze\.excite\.', r'\1.mid_se.conv2.'),
    (r'^(backbone.*)\.narrow\.', r'\1.linear_conv.'),
    (r'^(backbone.*)\.norm\.', r'\1.bn.'),
)
RESNET_VD: tuple[Rule, ...] = (  # all but the convolutions of its blocks
    (r'^backbone\.stem\.(\d)\.', number_from('backbone.conv1_{}.')),
    (r'^backbone\.stages\.(\d)\.(\d+)\.', r'backbone.bb_\1_\2.'),
    (r'^(backbone.*)\.conv\.', r'\1._conv.'),
    (r'^(backbone.*)\.norm\.', r'\1._batch_norm.'),
    (r'^(backbone.*)\.shortcut\.', r'\1.short.'),
)
BOTTLENECK: tuple[Rule, ...] = (
    (r'^(backbone.*)\.squeeze\.', r'\1.conv0.'),
    (r'^(backbone.*)\.spatial\.', r'\1.conv1.'),
    (r'^(backbone.*)\.widen\.', r'\1.conv2.'),
)
