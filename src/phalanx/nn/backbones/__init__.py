"""Backbones: networks that turn images into feature maps of increasing stride.

BACKBONES holds those that `backbone` in a recipe can name, for the networks of every family. A builder takes the strides of the
maps that the network needs, for example `(4, 8, 16, 32)`, and its keyword-only parameters are its keys in the recipe. It may
return more maps, or others: the network selects its maps by `select_maps`, which refuses a backbone that does not fit.

To add one: a file here that ends with a builder, and a line in BACKBONES. Use `parallel.norms.BatchNorm2d`, which can be
synchronised, and the dropout layers of `nn.stochastic`; a backbone initialises its own weights, and every parameter must
contribute to the coarsest map.
"""

from collections.abc import Callable

from phalanx.nn.backbones.backbone import Backbone as Backbone
from phalanx.nn.backbones.backbone import select_maps as needed  # noqa: F401 - the earlier name, for plugins
from phalanx.nn.backbones.backbone import select_maps as select_maps
from phalanx.nn.backbones.csp_rep_resnet import csp_rep_resnet
from phalanx.nn.backbones.hgnetv2 import hgnetv2
from phalanx.nn.backbones.hrnet import hrnet_w18, hrnet_w48
from phalanx.nn.backbones.lcnetv3 import pp_lcnet_v3
from phalanx.nn.backbones.lcnetv4 import pp_lcnet_v4
from phalanx.nn.backbones.line_mobilenet_v3 import mobilenet_v3
from phalanx.nn.backbones.mix_vit import mit_b0, mit_b1, mit_b2, mit_b3, mit_b4, mit_b5
from phalanx.nn.backbones.mobilenet_v1 import mobilenet_v1_enhance
from phalanx.nn.backbones.mobilenet_v2 import mobilenet_v2
from phalanx.nn.backbones.mobilenet_v3 import mobilenet_v3_halved
from phalanx.nn.backbones.pp_lcnet import pp_lcnet
from phalanx.nn.backbones.resnet34_vd import resnet34_vd
from phalanx.nn.backbones.resnet_vd import resnet18_vd, resnet50_vd, resnet101_vd
from phalanx.nn.backbones.stdc import stdc1, stdc2
from phalanx.nn.backbones.timm_backbone import timm_backbone
from phalanx.nn.backbones.xception import xception65

BACKBONES: dict[str, Callable[..., Backbone]] = {
    'stdc1': stdc1,
    'stdc2': stdc2,
    'hrnet_w18': hrnet_w18,
    'hrnet_w48': hrnet_w48,
    'mit_b0': mit_b0,
    'mit_b1': mit_b1,
    'mit_b2': mit_b2,
    'mit_b3': mit_b3,
    'mit_b4': mit_b4,
    'mit_b5': mit_b5,
    'xception65': xception65,
    'resnet18_vd': resnet18_vd,
    'resnet34_vd': resnet34_vd,
    'resnet50_vd': resnet50_vd,
    'resnet101_vd': resnet101_vd,
    'mobilenet_v1_enhance': mobilenet_v1_enhance,
    'mobilenet_v2': mobilenet_v2,
    'mobilenet_v3': mobilenet_v3,
    'mobilenet_v3_halved': mobilenet_v3_halved,
    'pp_lcnet': pp_lcnet,
    'pp_lcnet_v3': pp_lcnet_v3,
    'pp_lcnet_v4': pp_lcnet_v4,
    'csp_rep_resnet': csp_rep_resnet,
    'hgnetv2': hgnetv2,
    'timm_backbone': timm_backbone,
}
