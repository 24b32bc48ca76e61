"""Non-maximum suppression inside an exported graph, equal to `nms.multiclass_nms`. Shapes: A anchors, K classes, n results."""

from collections.abc import Mapping
from typing import Any

# One image at a time: images of a batch would give different numbers of boxes. NonMaxSuppression takes the best boxes per class
# first, so all that it lacks is a limit: keep the `pre_top_k` highest scores per class beforehand.
SUPPRESSION = """
<ir_version: {ir}, opset_import: ["" : {opset}]>
suppression (float[1, A, 4] raw_boxes, float[1, A, K] raw_scores) => (float[1, n, 6] detections)
<int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] last = {{-1}}, int64[2] image_and_box = {{0, 2}},
 float nothing = {{-1.0}}, int64[1] pre_top_k = {{{pre_top_k}}}, int64[1] keep_top_k = {{{keep_top_k}}},
 float iou = {{{nms_threshold:.9f}}}, float least = {{{score_threshold:.9f}}}>
{{
    of_class = Transpose <perm = [0, 2, 1]> (raw_scores)
    anchors = Shape <start = 2> (of_class)
    looked_at = Min (anchors, pre_top_k)
    highest, _places = TopK <axis = -1> (of_class, looked_at)
    lowest = Gather <axis = 2> (highest, last)
    is_high = GreaterOrEqual (of_class, lowest)
    likely = Where (is_high, of_class, nothing)
    chosen = NonMaxSuppression (raw_boxes, likely, pre_top_k, iou, least)
    scores_left = GatherND (likely, chosen)
    box_places = Gather <axis = 1> (chosen, image_and_box)
    boxes_left = GatherND (raw_boxes, box_places)
    class_column = Gather <axis = 1> (chosen, one)
    classes_left = Cast <to = 1> (class_column)
    left = Shape (scores_left)
    kept = Min (left, keep_top_k)
    scores_kept, order = TopK (scores_left, kept)
    boxes_kept = Gather (boxes_left, order)
    classes_kept = Gather (classes_left, order)
    score_column = Unsqueeze (scores_kept, one)
    rows = Concat <axis = 1> (boxes_kept, score_column, classes_kept)
    detections = Unsqueeze (rows, zero)
}}
"""
OUTPUTS = {'detections': '[1, found, 6]: x0, y0, x1, y1 in pixels of the input, score, class; the most probable first'}


def add_suppression(model: Any, nms: Mapping[str, float]) -> Any:
    """Append NMS to an ONNX model: outputs `boxes` [1, A, 4] and `scores` [1, A, K] become one output `detections`."""
    import onnx.compose  # it comes with the extra `export`
    import onnx.parser

    (opset,) = [one.version for one in model.opset_import if not one.domain]
    suppression = onnx.parser.parse_model(SUPPRESSION.format(ir=model.ir_version, opset=opset, **nms))
    return onnx.compose.merge_models(model, suppression, io_map=[('boxes', 'raw_boxes'), ('scores', 'raw_scores')])
