"""Weights of the original projects, put into our networks. A function an architecture says which array goes where."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from phalanx.families.detection.models.ppyoloe import PPYOLOE
from phalanx.families.recognition.models.crnn import CRNN
from phalanx.families.recognition.models.svtr_lcnet import SVTRLCNet
from phalanx.families.recognition.models.svtr_lcnetv3 import SVTRLCNetV3, SVTRLCNetV4
from phalanx.families.segmentation.models.deeplabv3p import DeepLabV3Plus
from phalanx.families.segmentation.models.ocrnet import OCRNet
from phalanx.families.segmentation.models.pp_liteseg import PPLiteSeg
from phalanx.families.segmentation.models.segformer import SegFormer
from phalanx.families.segmentation.models.unet import UNet
from phalanx.families.table.models.slanet import SLANet
from phalanx.families.text_detection.models.db import DB
from phalanx.paddle.weights import db, ppyoloe, recognition, segmentation, slanet
from phalanx.paddle.weights.original import Original

ORIGINALS: dict[type[nn.Module], Callable[[Any], Original]] = {
    CRNN: recognition.crnn,
    DB: db.original,
    DeepLabV3Plus: segmentation.deeplabv3p,
    OCRNet: segmentation.ocrnet,
    PPLiteSeg: segmentation.pp_liteseg,
    PPYOLOE: ppyoloe.original,
    SegFormer: segmentation.segformer,
    SLANet: slanet.original,
    SVTRLCNet: recognition.svtr_lcnet,
    SVTRLCNetV3: recognition.svtr_lcnetv3,
    UNet: segmentation.unet,
}

# Of networks whose exported files can be read: their layers with weights, in the order of the original's ONNX files.
IN_ORDER: dict[type[nn.Module], Callable[[Any], list[str]]] = {
    DB: db.in_order,
    SLANet: slanet.in_order,
    SVTRLCNetV3: recognition.svtr_in_order,
    SVTRLCNetV4: recognition.svtr_v4_in_order,
}


def stored_as_in_paddle(model: nn.Module) -> dict[str, Tensor]:
    """The state of `model` by our names, laid out as in Paddle, whose linear layers are [in, out] where torch's are [out, in].

    Without torch's own count of the steps of a batch norm. The tensors are views: what fills them fills the model.
    """
    linear = {f'{name}.weight' for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    state = {name: tensor for name, tensor in model.state_dict().items() if not name.endswith('.num_batches_tracked')}
    return {name: tensor.T if name in linear else tensor for name, tensor in state.items()}
