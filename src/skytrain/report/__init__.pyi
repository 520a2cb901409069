from .terminal import loss_curve as loss_curve, metric_curve as metric_curve
