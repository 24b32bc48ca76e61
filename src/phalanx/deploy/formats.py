"""Formats of exported files and their options; loads no torch, so that the options of commands can name them."""

FORMATS = {'onnx': '.onnx', 'openvino': '.xml', 'torch_export': '.pt2'}  # name -> suffix
AXES = {'batch': 0, 'height': 2, 'width': 3}  # input dimensions that may vary
OLDEST_OPSET = 18  # of ONNX's operators that torch exports
