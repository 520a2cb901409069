output "cluster_name" {
  description = "aws eks update-kubeconfig --name NAME --region REGION"
  value       = aws_eks_cluster.main.name
}

output "cluster_endpoint" {
  description = "The API server: reachable from inside the network, and from public_endpoint_cidrs."
  value       = aws_eks_cluster.main.endpoint
}

output "kubernetes_version" {
  description = "The version of the control plane."
  value       = aws_eks_cluster.main.version
}

output "cluster_security_group_id" {
  description = "The security group that EKS gave the control plane and the nodes."
  value       = aws_eks_cluster.main.vpc_config[0].cluster_security_group_id
}

output "node_role_arn" {
  description = "The role of the nodes."
  value       = aws_iam_role.node.arn
}

output "pod_roles" {
  description = "Roles of service accounts: training, operator, serving."
  value       = { for name, role in aws_iam_role.pod : name => role.arn }
}

output "training_namespace" {
  description = "Where jobs run."
  value       = split("/", var.service_accounts.training)[0]
}

output "training_service_account" {
  description = "The service account of a job's pods."
  value       = split("/", var.service_accounts.training)[1]
}

output "image_repository" {
  description = "Where training images lie."
  value       = var.base.ecr_repository_url
}

output "instance_families" {
  description = "What Karpenter may start: cloud.eks.instance_families of Skytrain."
  value       = var.karpenter.instance_families
}

output "region" {
  description = "aws eks update-kubeconfig --name NAME --region REGION"
  value       = local.region
}

output "karpenter_queue" {
  description = "Karpenter's interruption queue: settings.interruptionQueue of its chart."
  value       = aws_sqs_queue.karpenter.name
}

output "fsx_file_system_id" {
  description = "The file system; null without one."
  value       = one(aws_fsx_lustre_file_system.main[*].id)
}

output "addon_versions" {
  description = "Versions of the add-ons: paste them into addon_versions to pin them."
  value       = { for name, each in data.aws_eks_addon_version.main : name => lookup(var.addon_versions, name, each.version) }
}

# One line per value that manifests need: `terraform output -raw cluster_env > ../../kubernetes/overlays/cluster/values/cluster.env`
output "cluster_env" {
  description = "The file values/cluster.env of an overlay of infra/kubernetes."
  value = join("\n", concat(
    [
      "CLUSTER=${aws_eks_cluster.main.name}",
      "REGION=${local.region}",
      "PROJECT=${var.base.project}",
      "STORE=s3://${var.base.bucket}/${var.base.project}",
      "NODE_PROFILE=${aws_iam_instance_profile.node.name}",
      "CLUSTER_SECURITY_GROUP=${aws_eks_cluster.main.vpc_config[0].cluster_security_group_id}",
      "NODE_SECURITY_GROUP=${var.base.security_group_id}",
      "KMS_KEY=${var.base.kms_key_arn}",
      "KARPENTER_SUBNET=${local.subnets[0]}",
      "MAX_GPUS=${var.karpenter.max_gpus}",
      "FAMILIES=${join(",", [for i in range(8) : var.karpenter.instance_families[min(i, length(var.karpenter.instance_families) - 1)]])}", # eight, whatever there are
      "LOAD_BALANCER_SUBNETS=${join(",", local.subnets)}",
      "NETWORK=${var.base.vpc_cidr}",
      "LOAD_BALANCER_NETWORKS=${join(",", [for i in range(3) : local.subnet_networks[min(i, length(local.subnet_networks) - 1)]])}", # three, whatever the zones
    ],
    var.fsx == null ? [] : [
      "FSX_ID=${aws_fsx_lustre_file_system.main[0].id}",
      "FSX_DNS=${aws_fsx_lustre_file_system.main[0].dns_name}",
      "FSX_MOUNT=${aws_fsx_lustre_file_system.main[0].mount_name}",
      "FSX_CAPACITY=${var.fsx.capacity_gb}Gi",
    ],
    [""],
  ))
}
