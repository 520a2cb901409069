from .compare_page import compare_html as compare_html
from .console import Console as Console
from .corpus_page import corpus_html as corpus_html
from .curves import (
    MAX_RUNS as MAX_RUNS,
    AttemptSpan as AttemptSpan,
    RunCurves as RunCurves,
    curves_of as curves_of,
    page_data as page_data,
    shown_metrics as shown_metrics,
)
from .dashboard_page import dashboard_data as dashboard_data, dashboard_html as dashboard_html
from .merge_page import merge_html as merge_html, merge_table as merge_table, merge_tasks_table as merge_tasks_table
from .page import framed_page as framed_page
from .plots import best_svg as best_svg, curves_svg as curves_svg, load_svg as load_svg, loss_svg as loss_svg
from .png import png_of as png_of
from .run_page import RunPage as RunPage, run_html as run_html
from .sweep_page import SweepReport as SweepReport, sweep_html as sweep_html, sweep_plots as sweep_plots
from .tables import (
    best_lines as best_lines,
    best_table as best_table,
    catalog_table as catalog_table,
    choice_text as choice_text,
    cluster_table as cluster_table,
    comparison_table as comparison_table,
    corpus_text as corpus_text,
    cpu_table as cpu_table,
    describe_status as describe_status,
    failure_lines as failure_lines,
    headline as headline,
    machine_notes as machine_notes,
    machine_rows as machine_rows,
    offers_text as offers_text,
    prices_note as prices_note,
    results_table as results_table,
    status_rows as status_rows,
    sweep_rows as sweep_rows,
    text_table as text_table,
    tokens_table as tokens_table,
    trial_rows as trial_rows,
    view_line as view_line,
    view_rows as view_rows,
)
from .terminal import loss_curve as loss_curve, sparkline as sparkline, trend_rows as trend_rows
