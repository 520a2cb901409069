# `skytrain cloud init` reads these with `terraform output -json`. Add outputs freely; renaming one breaks it.

output "account_id" {
  description = "The AWS account that holds everything below."
  value       = local.account_id
}

output "region" {
  description = "The region of the network, the bucket and the key."
  value       = var.region
}

output "project" {
  description = "The value of the tag skytrain:project, and the first part of every key in the bucket."
  value       = var.project
}

output "bucket" {
  description = "The bucket that holds the store."
  value       = aws_s3_bucket.store.bucket
}

output "store" {
  description = "The root of the store: store=s3://BUCKET/PROJECT."
  value       = "s3://${aws_s3_bucket.store.bucket}/${var.project}"
}

output "kms_key_arn" {
  description = "The key that encrypts the bucket, the volumes, the image repository and the logs."
  value       = aws_kms_key.main.arn
}

output "ecr_repository_url" {
  description = "Where `docker push` sends training images."
  value       = aws_ecr_repository.images.repository_url
}

output "vpc_id" {
  description = "The network."
  value       = aws_vpc.main.id
}

output "private_subnets" {
  description = "Private subnets: zone name -> subnet id."
  value       = { for zone, subnet in aws_subnet.private : zone => subnet.id }
}

output "public_subnets" {
  description = "Public subnets: zone name -> subnet id."
  value       = { for zone, subnet in aws_subnet.public : zone => subnet.id }
}

output "node_subnets" {
  description = "Where machines start: `private`, or `public` when private subnets have neither NAT nor endpoints."
  value       = local.private_subnets_usable ? "private" : "public"
}

output "closed_network" {
  description = "True when nothing but AWS can be reached: interface endpoints and no NAT."
  value       = local.closed_network
}

output "security_group_id" {
  description = "The security group of every machine: EFA's rules to itself, HTTPS out, nothing in."
  value       = aws_security_group.node.id
}

output "operator_role_arn" {
  description = "Launches, watches, stops and cleans up."
  value       = aws_iam_role.operator.arn
}

output "machine_roles" {
  description = "The roles that `skytrain launch` creates: their path, their boundary, and their policies by kind of machine."
  value = merge(local.machine_policies, {
    path     = local.run_path
    boundary = aws_iam_policy.machines.arn
  })
}

output "node_role_arn" {
  description = "The pattern of the roles of machines that train."
  value       = aws_iam_role.node.arn
}

output "viewer_role_arn" {
  description = "Reads runs, logs, prices and costs; changes nothing."
  value       = aws_iam_role.viewer.arn
}

output "instance_profile_name" {
  description = "The instance profile of the pattern for machines that train, with which `doctor` asks."
  value       = aws_iam_instance_profile.node.name
}

output "prepare_instance_profile_name" {
  description = "The instance profile of the pattern for machines that prepare data."
  value       = aws_iam_instance_profile.prepare.name
}

output "serve_instance_profile_name" {
  description = "The instance profile of the pattern for machines that serve models."
  value       = aws_iam_instance_profile.serve.name
}

output "prepare_role_arn" {
  description = "The pattern of the roles of machines and Spark jobs that prepare data."
  value       = aws_iam_role.prepare.arn
}

output "emr_service_role_arn" {
  description = "The role with which EMR starts the nodes of clusters; null without EMR."
  value       = one(aws_iam_role.emr_service[*].arn)
}

output "emr_service_security_group_id" {
  description = "The group through which EMR reaches nodes in private subnets; null without EMR."
  value       = one(aws_security_group.emr_service[*].id)
}

output "emr_security_configuration" {
  description = "The security configuration of clusters: encrypted disks, IMDSv2; null without EMR."
  value       = one(aws_emr_security_configuration.main[*].name)
}

output "instance_families" {
  description = "The instance families that the operator may start."
  value       = var.instance_families
}

output "readable_buckets" {
  description = "Other buckets that operators and machines may read."
  value       = var.readable_buckets
}

output "log_groups" {
  description = "CloudWatch log groups: `nodes` for the machines, `flow` for the network (where it is recorded)."
  value       = { for name, group in aws_cloudwatch_log_group.main : name => group.name }
}

output "budget_name" {
  description = "The budget whose alarm warns about the monthly bill; null without one."
  value       = one(aws_budgets_budget.monthly[*].name)
}

output "for_eks" {
  description = "What infra/terraform/eks needs: `terraform output -json for_eks > ../eks/base.auto.tfvars.json`."
  value = {
    base = {
      account_id                  = local.account_id
      region                      = var.region
      project                     = var.project
      owner                       = var.owner
      bucket                      = aws_s3_bucket.store.bucket
      kms_key_arn                 = aws_kms_key.main.arn
      vpc_id                      = aws_vpc.main.id
      vpc_cidr                    = var.vpc_cidr
      private_subnets             = { for zone, subnet in aws_subnet.private : zone => subnet.id }
      private_subnet_networks     = { for zone, subnet in aws_subnet.private : zone => subnet.cidr_block }
      private_subnets_usable      = local.private_subnets_usable
      closed_network              = local.closed_network
      security_group_id           = aws_security_group.node.id
      endpoints_security_group_id = try(aws_security_group.endpoints[0].id, "")
      node_store_policy_arn       = aws_iam_policy.shared_store.arn
      operator_store_policy_arn   = aws_iam_policy.operator_store.arn
      exports_policy_arn          = aws_iam_policy.exports.arn
      secrets_policy_arn          = try(aws_iam_policy.node_secrets[0].arn, "")
      read_account_policy_arn     = aws_iam_policy.read_account.arn
      operator_role_arn           = aws_iam_role.operator.arn
      viewer_role_arn             = aws_iam_role.viewer.arn
      ecr_repository_url          = aws_ecr_repository.images.repository_url
      ecr_repository_arn          = aws_ecr_repository.images.arn
    }
  }
}
