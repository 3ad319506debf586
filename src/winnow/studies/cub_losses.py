"""Lists of overrides for the studies that are still functions; removed with the last of them."""

from winnow.studies import settings

CONFIG = settings.CONFIG
CCP = [*settings.ccp().to_args(), "train.eval_steps=25", "train.patience=60"]
