# Three node groups: system (CPU), and GPU nodes on demand and spot that start empty. Karpenter brings GPU nodes by
# itself when pods wait; the GPU groups here are for reserved capacity and for schedules.

locals {
  gpu_groups = {
    for market, group in var.gpu_nodes : market => merge(group, {
      zone   = coalesce(group.zone, local.zones[0])
      subnet = var.base.private_subnets[coalesce(group.zone, local.zones[0])]
      efa    = local.instance_types[group.instance_type].efa
      nvme   = local.instance_types[group.instance_type].nvme
    })
  }

  # The primary interface cannot be EFA only: its card carries an EFA device beside it, every other card one of its own.
  efa_devices = {
    for market, group in local.gpu_groups : market => concat(
      [{ card = 0, device = 0, type = "interface" }],
      group.efa > 0 ? [{ card = 0, device = 1, type = "efa-only" }] : [],
      [for card in range(1, max(group.efa, 1)) : { card = card, device = 0, type = "efa-only" }],
    )
  }

  node_security_groups = [aws_eks_cluster.main.vpc_config[0].cluster_security_group_id, var.base.security_group_id]
}

resource "aws_eks_node_group" "system" {
  cluster_name    = aws_eks_cluster.main.name
  node_group_name = "system"
  node_role_arn   = aws_iam_role.node.arn
  subnet_ids      = local.subnets
  version         = var.kubernetes_version
  ami_type        = "AL2023_x86_64_STANDARD"
  capacity_type   = "ON_DEMAND"
  instance_types  = [var.system_nodes.instance_type]

  launch_template {
    id      = aws_launch_template.system.id
    version = aws_launch_template.system.latest_version
  }

  scaling_config {
    min_size     = var.system_nodes.count
    desired_size = var.system_nodes.count
    max_size     = var.system_nodes.max
  }

  update_config {
    max_unavailable = 1
  }

  node_repair_config {
    enabled = true
  }

  labels = { "skytrain/pool" = "system" }

  depends_on = [aws_iam_role_policy_attachment.node, aws_eks_addon.before_nodes]
}

resource "aws_eks_node_group" "gpu" {
  for_each = local.gpu_groups

  cluster_name    = aws_eks_cluster.main.name
  node_group_name = "gpu-${each.key}"
  node_role_arn   = aws_iam_role.node.arn
  subnet_ids      = [each.value.subnet] # EFA and placement groups work inside one zone
  version         = var.kubernetes_version
  ami_type        = "AL2023_x86_64_NVIDIA"
  capacity_type   = each.key == "spot" ? "SPOT" : "ON_DEMAND"
  instance_types  = [each.value.instance_type]

  launch_template {
    id      = aws_launch_template.gpu[each.key].id
    version = aws_launch_template.gpu[each.key].latest_version
  }

  scaling_config {
    min_size     = 0
    desired_size = 0
    max_size     = each.value.max
  }

  update_config {
    max_unavailable = 1
  }

  node_repair_config { # replaces a node whose GPU the node monitoring agent reports as broken
    enabled = true
  }

  labels = merge(
    {
      "skytrain/pool"          = "gpu-${each.key}"
      "skytrain/market"        = each.key
      "nvidia.com/gpu.present" = "true"
    },
    each.value.efa > 0 ? { "vpc.amazonaws.com/efa.present" = "true" } : {},
  )

  taint {
    key    = "nvidia.com/gpu"
    value  = "true"
    effect = "NO_SCHEDULE"
  }

  dynamic "taint" {
    for_each = each.key == "spot" ? [1] : []
    content {
      key    = "skytrain/spot"
      value  = "true"
      effect = "NO_SCHEDULE"
    }
  }

  lifecycle {
    ignore_changes = [scaling_config[0].desired_size] # schedules and people change it
  }

  depends_on = [aws_iam_role_policy_attachment.node, aws_eks_addon.before_nodes]
}

resource "aws_placement_group" "gpu" {
  for_each = { for market, group in local.gpu_groups : market => group if group.efa > 0 }

  name     = "${local.name}-eks-${each.key}"
  strategy = "cluster"
}

# Off-peak training: the group grows and shrinks by the clock, whether or not anybody is awake.
resource "aws_autoscaling_schedule" "start" {
  for_each = var.gpu_schedule

  scheduled_action_name  = "${local.name}-${each.key}-start"
  autoscaling_group_name = aws_eks_node_group.gpu[each.key].resources[0].autoscaling_groups[0].name
  recurrence             = each.value.start
  min_size               = 0
  desired_capacity       = each.value.nodes
  max_size               = var.gpu_nodes[each.key].max
}

resource "aws_autoscaling_schedule" "stop" {
  for_each = var.gpu_schedule

  scheduled_action_name  = "${local.name}-${each.key}-stop"
  autoscaling_group_name = aws_eks_node_group.gpu[each.key].resources[0].autoscaling_groups[0].name
  recurrence             = each.value.stop
  min_size               = 0
  desired_capacity       = 0
  max_size               = var.gpu_nodes[each.key].max
}
