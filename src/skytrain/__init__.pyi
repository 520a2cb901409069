from .api import (
    Run as Run,
    compose as compose,
    data_module as data_module,
    evaluate as evaluate,
    evaluate_tasks as evaluate_tasks,
    generate as generate,
    lightning_module as lightning_module,
    list_runs as list_runs,
    load_run as load_run,
    plan as plan,
    prepare as prepare,
    train as train,
    trainer_options as trainer_options,
    tune as tune,
)
from .config import Composed as Composed, SkytrainError as SkytrainError
from .tokens import TokenDataModule as TokenDataModule
from .training import CausalLM as CausalLM

__version__: str
