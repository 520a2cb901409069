data "aws_partition" "current" {}

locals {
  name        = "skytrain-${var.base.project}"
  global_name = "${local.name}-${var.base.region}-eks" # IAM has no regions
  # IAM takes role names of 64 characters. A longer one is cut, and its hash keeps it unlike the others.
  long_names = {
    for role in concat(keys(local.pods), [for name in keys(local.drivers) : trimprefix(trimprefix(name, "amazon-"), "aws-")], ["control-plane", "karpenter", "node"]) :
    role => "${local.global_name}-${role}"
  }
  role_names = {
    for role, name in local.long_names :
    role => length(name) <= 64 ? name : "${substr(name, 0, 55)}-${substr(sha256(name), 0, 8)}"
  }
  partition = data.aws_partition.current.partition
  # As in the base: in China some names of services have another end, and EC2 has both. EKS asks roles of nodes for the longer.
  service_suffix = local.partition == "aws-cn" ? "amazonaws.com.cn" : "amazonaws.com"
  ec2_services   = distinct(["ec2.amazonaws.com", "ec2.${local.service_suffix}"])
  via_ec2        = [for suffix in distinct(["amazonaws.com", data.aws_partition.current.dns_suffix]) : "ec2.${local.region}.${suffix}"]
  account        = var.base.account_id
  region         = var.base.region

  zones   = sort(keys(var.base.private_subnets))
  subnets = [for zone in local.zones : var.base.private_subnets[zone]]
  # Addresses of those subnets.
  subnet_networks = [for zone in local.zones : var.base.private_subnet_networks[zone]]
  cluster_arn     = "arn:${local.partition}:eks:${local.region}:${local.account}:cluster/${local.name}"
  ec2_arn         = "arn:${local.partition}:ec2:${local.region}"
  managed         = "arn:${local.partition}:iam::aws:policy"

  # As the base: the project, and nobody's run, so that `skytrain gc` leaves the cluster alone.
  tags = {
    "skytrain:project" = var.base.project
    "skytrain:owner"   = var.base.owner
  }
}
