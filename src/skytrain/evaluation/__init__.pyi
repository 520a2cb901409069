from .ensemble import (
    EnsembleDefinition as EnsembleDefinition,
    EnsembleModel as EnsembleModel,
    ensemble_key as ensemble_key,
    window_log_likelihoods as window_log_likelihoods,
)
from .evaluators import (
    Evaluator as Evaluator,
    Samples as Samples,
    Scorer as Scorer,
    ValidationLoss as ValidationLoss,
    plugged_in_evaluator as plugged_in_evaluator,
)
from .generation import Sampling as Sampling, generate as generate, generate_after as generate_after
from .harness import HarnessRequest as HarnessRequest, run_harness as run_harness
from .loading import PlacedModel as PlacedModel, place_model as place_model
from .loss import (
    HeldOut as HeldOut,
    LossReport as LossReport,
    evaluate_loss as evaluate_loss,
)
from .spread_model import EngineModel as EngineModel, LoopModel as LoopModel, MeshModel as MeshModel
from .tasks.evaluator import (
    TaskEvaluator as TaskEvaluator,
    TaskSources as TaskSources,
    load_questions as load_questions,
)
from .tasks.llmc import encode_items as encode_items, write_llmc as write_llmc
from .tasks.measures import (
    Measure as Measure,
    ModelResults as ModelResults,
    PairedDifference as PairedDifference,
    TaskResult as TaskResult,
    compare as compare,
)
from .tasks.sources import load_data as load_data, stored_task_key as stored_task_key
from .whole_model import WholeModel as WholeModel
