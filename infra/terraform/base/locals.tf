data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

data "aws_availability_zones" "available" {
  #checkov:skip=CKV_AWS_394:Only the first three names count, and a new zone sorts last; `zones` pins others
  state = "available"

  filter { # no local zones: they have neither the GPUs nor a NAT gateway
    name   = "opt-in-status"
    values = ["opt-in-not-required"]
  }
}

locals {
  account_id = data.aws_caller_identity.current.account_id
  partition  = data.aws_partition.current.partition
  # Names of services end in amazonaws.com in every partition, but for three in China, where EMR's, CloudWatch Logs' and
  # EC2's end as addresses do there. EC2 has both names: EKS asks roles of nodes for the longer one.
  service_suffix = local.partition == "aws-cn" ? "amazonaws.com.cn" : "amazonaws.com"
  ec2_services   = distinct(["ec2.amazonaws.com", "ec2.${local.service_suffix}"])
  emr_service    = "elasticmapreduce.${local.service_suffix}"
  suffixes       = distinct(["amazonaws.com", data.aws_partition.current.dns_suffix]) # of requests through a service
  # A request that a service makes to KMS for somebody.
  via = {
    for service in ["ec2", "s3", "secretsmanager", "ssm"] :
    service => [for suffix in local.suffixes : "${service}.${var.region}.${suffix}"]
  }
  # Some regions have two zones, and some show an account two of their three.
  zones_of_region = data.aws_availability_zones.available.names

  zones = coalesce(var.zones, slice(local.zones_of_region, 0, min(3, length(local.zones_of_region))))

  name = "skytrain-${var.project}"
  # IAM and budgets have no regions, so that a second base of the project in another region needs other names.
  global_name = "${local.name}-${var.region}"
  bucket_name = coalesce(var.bucket_name, "${local.name}-${local.account_id}-${var.region}")

  # Policies name what Terraform creates by ARNs that are known before it exists.
  bucket_arn    = "arn:${local.partition}:s3:::${local.bucket_name}"
  project_arn   = "${local.bucket_arn}/${var.project}" # every object of the project lies below
  log_group     = "/skytrain/${var.project}/nodes"
  log_group_arn = "arn:${local.partition}:logs:${var.region}:${local.account_id}:log-group:${local.log_group}"
  node_role_arn = "arn:${local.partition}:iam::${local.account_id}:role/${local.global_name}-node"
  # Patterns of the roles that each launch creates for its machines (roles_run.tf).
  machine_role_arns = [for kind in ["node", "prepare", "serve"] : "arn:${local.partition}:iam::${local.account_id}:role/${local.global_name}-${kind}"]
  profile_arns      = [for kind in ["node", "prepare", "serve"] : "arn:${local.partition}:iam::${local.account_id}:instance-profile/${local.global_name}-${kind}"]
  # What launches create. IAM has no regions: the path keeps bases of two regions, and projects, apart.
  run_path         = "/skytrain/${var.region}/${var.project}/"
  run_roles_arn    = "arn:${local.partition}:iam::${local.account_id}:role${local.run_path}*"
  run_profiles_arn = "arn:${local.partition}:iam::${local.account_id}:instance-profile${local.run_path}*"
  # API keys of endpoints.
  endpoint_keys_arn = "arn:${local.partition}:ssm:${var.region}:${local.account_id}:parameter/skytrain/${var.project}/serve/*"
  ec2_arn           = "arn:${local.partition}:ec2:${var.region}:${local.account_id}"
  # AWS's own containers with PyTorch; the same account in all regions but a few.
  aws_images_arn = "arn:${local.partition}:ecr:${var.region}:${var.aws_images_account}:repository/pytorch-training"

  private_subnets_usable = var.nat_gateway || var.interface_endpoints
  closed_network         = var.interface_endpoints && !var.nat_gateway

  # The base belongs to the project, not to a run, and does not expire: it has neither skytrain:run nor
  # skytrain:expires-at. That is how `skytrain gc` and the roles tell it from what a run has left.
  tags = {
    "skytrain:project" = var.project
    "skytrain:owner"   = var.owner
  }
}
