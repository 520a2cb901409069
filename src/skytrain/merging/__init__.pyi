from .agreement import check_inputs as check_inputs, common_ancestor as common_ancestor
from .domains import DomainsFile as DomainsFile, read_domains as read_domains
from .inputs import MergeInput as MergeInput, is_weights_only as is_weights_only, open_inputs as open_inputs
from .methods import MergeMethod as MergeMethod
from .provenance import (
    MERGE_FILE as MERGE_FILE,
    MergedFrom as MergedFrom,
    Provenance as Provenance,
    provenance_key as provenance_key,
    read_folder_provenance as read_folder_provenance,
    read_provenance as read_provenance,
)
from .results import (
    MergeReport as MergeReport,
    ModelRow as ModelRow,
    PathPoint as PathPoint,
    TaskScore as TaskScore,
    judge as judge,
)
from .soups import (
    FoundWeights as FoundWeights,
    ema_weights as ema_weights,
    greedy_soup as greedy_soup,
    posterior_weights as posterior_weights,
)
from .streaming import MergePlan as MergePlan, load_merged as load_merged
from .writing import (
    is_written as is_written,
    open_merged as open_merged,
    write_ensemble as write_ensemble,
    write_merged as write_merged,
)
