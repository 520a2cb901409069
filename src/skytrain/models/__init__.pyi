from .agreement import (
    as_typed as as_typed,
    check_mesh as check_mesh,
    read_hf_decoder as read_hf_decoder,
    written as written,
)
from .attention import Attention as Attention, KVCache as KVCache
from .branches import Branches as Branches
from .build import (
    build_model as build_model,
    count_parameters as count_parameters,
    outline_model as outline_model,
)
from .composing import compose_model as compose_model
from .decoder import (
    Decoder as Decoder,
    InitialValues as InitialValues,
    TensorPlan as TensorPlan,
    stage_layers as stage_layers,
)
from .device import (
    check_precision as check_precision,
    choose_device_type as choose_device_type,
    resolve_precision as resolve_precision,
)
from .experts import (
    Experts as Experts,
    MixtureOfExperts as MixtureOfExperts,
    Permute as Permute,
    Router as Router,
)
from .fp8 import Fp8Linear as Fp8Linear, Scaling as Scaling
from .fused import (
    Backend as Backend,
    FusedStream as FusedStream,
    Kernels as Kernels,
    fused_block as fused_block,
    fused_loss as fused_loss,
)
from .hf import FolderWeights as FolderWeights, load_hf_folder as load_hf_folder, save_hf_folder as save_hf_folder
from .hf_causal_lm import HFCausalLM as HFCausalLM
from .hf_form import explicit as explicit, hf_config as hf_config
from .hf_weights import WeightPair as WeightPair, from_hf as from_hf, to_hf as to_hf, weight_pairs as weight_pairs
from .initialise import VOCABULARY as VOCABULARY, initial_value as initial_value
from .kernels import kernels_available as kernels_available
from .kernels.cublaslt import cublaslt_available as cublaslt_available
from .llmc import LlmcWeights as LlmcWeights, load_llmc as load_llmc, save_llmc as save_llmc
from .loss import (
    LossSettings as LossSettings,
    WithAuxiliary as WithAuxiliary,
    count_targets as count_targets,
    flops_per_token as flops_per_token,
    join_auxiliary as join_auxiliary,
    lm_loss as lm_loss,
    split_auxiliary as split_auxiliary,
    token_loss as token_loss,
    weighted as weighted,
)
from .parametrization import UpdateScales as UpdateScales, update_scales as update_scales
from .recompute import Recompute as Recompute, nothing_kept as nothing_kept, run_block as run_block
from .rope import TokenPositions as TokenPositions
from .safetensors_header import read_headers as read_headers
from .safetensors_io import MAX_FILE_BYTES as MAX_FILE_BYTES
from .sizes import describe_sizes as describe_sizes
from .sources import find_weights as find_weights, is_pretrained as is_pretrained, place_of as place_of
from .weights import load_pretrained as load_pretrained
