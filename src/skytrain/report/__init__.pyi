from .merge_page import merge_html as merge_html, merge_table as merge_table
from .terminal import loss_curve as loss_curve, metric_curve as metric_curve
