locals {
  addons = merge(
    {
      # Before nodes: a node without network, proxy and identity agent never becomes ready.
      vpc-cni = {
        first = true
        configuration = {
          enableNetworkPolicy = "true" # the NetworkPolicies of infra/kubernetes do nothing without it
          env                 = { ENABLE_PREFIX_DELEGATION = "true", NETWORK_POLICY_ENFORCING_MODE = "standard" }
        }
      }
      kube-proxy             = { first = true, configuration = null }
      eks-pod-identity-agent = { first = true, configuration = null }

      coredns                   = { first = false, configuration = { nodeSelector = { "skytrain/pool" = "system" } } }
      metrics-server            = { first = false, configuration = null }
      aws-ebs-csi-driver        = { first = false, configuration = null }
      eks-node-monitoring-agent = { first = false, configuration = null }
    },
    var.fsx == null ? {} : { aws-fsx-csi-driver = { first = false, configuration = null } },
    var.cloudwatch_observability ? {
      amazon-cloudwatch-observability = {
        first = false
        configuration = {
          agent = { config = { logs = { metrics_collected = { kubernetes = { enhanced_container_insights = true, accelerated_compute_metrics = true } } } } }
        }
      }
    } : {},
  )
}

data "aws_eks_addon_version" "main" {
  for_each = local.addons

  addon_name         = each.key
  kubernetes_version = var.kubernetes_version
}

resource "aws_eks_addon" "before_nodes" {
  for_each = { for name, each in local.addons : name => each if each.first }

  cluster_name                = aws_eks_cluster.main.name
  addon_name                  = each.key
  addon_version               = lookup(var.addon_versions, each.key, data.aws_eks_addon_version.main[each.key].version)
  configuration_values        = each.value.configuration == null ? null : jsonencode(each.value.configuration)
  resolve_conflicts_on_create = "OVERWRITE"
  resolve_conflicts_on_update = "OVERWRITE"

  dynamic "pod_identity_association" {
    for_each = contains(keys(local.drivers), each.key) ? [local.drivers[each.key]] : []
    content {
      service_account = pod_identity_association.value.account
      role_arn        = aws_iam_role.driver[each.key].arn
    }
  }

  depends_on = [aws_iam_role_policy_attachment.driver]
}

resource "aws_eks_addon" "main" {
  for_each = { for name, each in local.addons : name => each if !each.first }

  cluster_name                = aws_eks_cluster.main.name
  addon_name                  = each.key
  addon_version               = lookup(var.addon_versions, each.key, data.aws_eks_addon_version.main[each.key].version)
  configuration_values        = each.value.configuration == null ? null : jsonencode(each.value.configuration)
  resolve_conflicts_on_create = "OVERWRITE"
  resolve_conflicts_on_update = "OVERWRITE"

  dynamic "pod_identity_association" {
    for_each = contains(keys(local.drivers), each.key) ? [local.drivers[each.key]] : []
    content {
      service_account = pod_identity_association.value.account
      role_arn        = aws_iam_role.driver[each.key].arn
    }
  }

  depends_on = [aws_eks_node_group.system, aws_iam_role_policy_attachment.driver]
}
