"""`phalanx serve MODEL.onnx`: an exported model as a small HTTP service."""
