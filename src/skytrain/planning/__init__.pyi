from .best import (
    BestRow as BestRow,
    batches as batches,
    expected_loss as expected_loss,
    expected_loss_text as expected_loss_text,
    model_sizes as model_sizes,
    recipe_efficiency as recipe_efficiency,
    repetition_text as repetition_text,
    rough_tokens as rough_tokens,
    served_flops as served_flops,
    usd_per_served_flop as usd_per_served_flop,
)
from .budget import Budget as Budget, Spending as Spending, seconds_ahead as seconds_ahead
from .catalog import (
    HOURS_PER_MONTH as HOURS_PER_MONTH,
    MARKETS as MARKETS,
    REGIONS as REGIONS,
    STALE_DAYS as STALE_DAYS,
    Catalog as Catalog,
    Market as Market,
    Price as Price,
    ServicePrices as ServicePrices,
    load_catalog as load_catalog,
    quota_code as quota_code,
    save_catalog as save_catalog,
    unit_prices as unit_prices,
)
from .communication import Node as Node
from .corpus_costs import (
    SHUFFLE_BYTES_PER_DOCUMENT as SHUFFLE_BYTES_PER_DOCUMENT,
    SPARK_START_CPU_SECONDS as SPARK_START_CPU_SECONDS,
    CorpusWork as CorpusWork,
    PreparationOption as PreparationOption,
    corpus_work as corpus_work,
    rank_options as rank_options,
)
from .costs import (
    BOOT_SECONDS as BOOT_SECONDS,
    EVALUATION_COST as EVALUATION_COST,
    INTERRUPTIONS_PER_HOUR as INTERRUPTIONS_PER_HOUR,
    full_steps as full_steps,
    task_tokens as task_tokens,
    work_of as work_of,
    young_daly_seconds as young_daly_seconds,
)
from .experiments import CostSheet as CostSheet, cost_sheet as cost_sheet, planned_trials as planned_trials
from .flops import (
    decoder_flops_per_token as decoder_flops_per_token,
    decoder_size as decoder_size,
    training_flops_per_token as training_flops_per_token,
)
from .hardware import Generation as Generation, Gpu as Gpu, device_peak as device_peak, find_gpu as find_gpu
from .images import (
    IMAGE_LINES as IMAGE_LINES,
    ImageLine as ImageLine,
    image_line as image_line,
    lines_for as lines_for,
)
from .loss_laws import (
    BESIROGLU as BESIROGLU,
    HOFFMANN as HOFFMANN,
    LAWS as LAWS,
    LossForecaster as LossForecaster,
    LossLaw as LossLaw,
    OwnRun as OwnRun,
    best_batch as best_batch,
    hellaswag as hellaswag,
    known_texts as known_texts,
    least_known as least_known,
    lowest_of_each as lowest_of_each,
    useful_tokens as useful_tokens,
)
from .measurements import (
    WARM_STEPS as WARM_STEPS,
    Measurement as Measurement,
    decoder_fields as decoder_fields,
    load_measurements as load_measurements,
    save_measurement as save_measurement,
    warm_worst as warm_worst,
)
from .memory import (
    ADAMW as ADAMW,
    DRIVER_FRACTION as DRIVER_FRACTION,
    MIB as MIB,
    planned_precision as planned_precision,
    saved_weight_bytes as saved_weight_bytes,
    train_bytes_per_parameter as train_bytes_per_parameter,
    usable_bytes as usable_bytes,
)
from .mesh import (
    DIMENSIONS as DIMENSIONS,
    Mesh as Mesh,
    mesh_words as mesh_words,
    parallel_settings as parallel_settings,
)
from .offers import (
    EC2 as EC2,
    LONGEST_HOURS as LONGEST_HOURS,
    NODES as NODES,
    Offer as Offer,
    Offering as Offering,
    PlanRequest as PlanRequest,
    Seller as Seller,
    find_offers as find_offers,
)
from .plan_file import (
    CostForecast as CostForecast,
    JobKind as JobKind,
    Plan as Plan,
    PlannedData as PlannedData,
    PlannedOffer as PlannedOffer,
    ZonePrice as ZonePrice,
    plan_document as plan_document,
    plan_hash as plan_hash,
    read_plan as read_plan,
    timestamp as timestamp,
    write_plan as write_plan,
)
from .plan_finish import finish_plan as finish_plan, finish_work as finish_work
from .plan_making import (
    BudgetTooSmall as BudgetTooSmall,
    PlanMaterial as PlanMaterial,
    choose as choose,
    costly_settings as costly_settings,
    explain as explain,
    fallbacks as fallbacks,
    make_plan as make_plan,
    refuse as refuse,
)
from .plan_prepare import (
    PREPARE_P90_FACTOR as PREPARE_P90_FACTOR,
    PrepareWork as PrepareWork,
    prepare_plan as prepare_plan,
    scratch_bytes_per_document as scratch_bytes_per_document,
)
from .plan_rows import offer_rows as offer_rows, purchase_rows as purchase_rows
from .plan_serve import ServeWork as ServeWork, serve_plan as serve_plan
from .plan_smoke import SmokeSettings as SmokeSettings, delayed_plan as delayed_plan, smoke_plan as smoke_plan
from .ranking import (
    CpuMachine as CpuMachine,
    Ranked as Ranked,
    rank_catalog as rank_catalog,
    rank_cpu_machines as rank_cpu_machines,
)
from .refresh import refresh_catalog as refresh_catalog
from .search import (
    Machines as Machines,
    Placement as Placement,
    best_placement as best_placement,
    largest_micro_batch as largest_micro_batch,
)
from .serving import (
    ServedShape as ServedShape,
    ServingFit as ServingFit,
    fit_serving as fit_serving,
    refuse_serving as refuse_serving,
)
from .tokens import (
    Purchase as Purchase,
    at_most as at_most,
    best_purchase as best_purchase,
    most_tokens as most_tokens,
)
from .workload import (
    Workload as Workload,
    fixed_of as fixed_of,
    job_of as job_of,
    leaves_mesh_open as leaves_mesh_open,
    workload_of as workload_of,
)
