from .terminal import loss_curve as loss_curve
