"""Options of the train.py of PaddleSeg, PaddleDetection and PaddleOCR that `phalanx train` accepts too."""

# option -> the assignment to the recipe that it makes
BROUGHT_ALONG = {
    'iters': 'train.steps={}',
    'batch_size': 'train.batch_size_per_rank={}',
    'learning_rate': 'optimizer.lr={}',
    'log_iters': 'report.every={}',
    'keep_checkpoint_max': 'checkpoint.keep={}',
    'save_interval': 'checkpoint.every={}',
    'num_workers': 'train.workers={}',
    'seed': 'train.seed={}',
    'amp': 'precision.dtype=fp16',
    'precision': 'precision.dtype={}',  # after `amp`, so that it chooses the dtype
    'eval': 'evaluate.enabled=true',
    'use_vdl': 'report.visualdl=true',
    'slim_config': 'slim_config={}',
}
TAKEN_ALONG = {  # options without effect here, with the reason
    'use_mpio': 'loader workers are processes in any case',
    'debug': 'every rank writes its own log',
    'fleet': 'the launcher sets the number of devices',
    'vdl_log_dir': 'VisualDL records lie in the run folder',
    'amp_level': "torch's autocast is what level O1 is",
}
