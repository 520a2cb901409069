from .load_plot import load_svg as load_svg
from .merge_page import merge_html as merge_html, merge_table as merge_table, merge_tasks_table as merge_tasks_table
from .png import png_of as png_of
from .run_page import RunPage as RunPage, run_html as run_html
from .sweep_page import SweepReport as SweepReport, sweep_html as sweep_html, sweep_plots as sweep_plots
from .terminal import loss_curve as loss_curve, metric_curve as metric_curve
