# What a provider without an account answers.

mock_data "aws_caller_identity" {
  defaults = { account_id = "123456789012" }
}
mock_data "aws_partition" {
  defaults = { partition = "aws", dns_suffix = "amazonaws.com" }
}
mock_data "aws_availability_zones" {
  defaults = { names = ["us-east-2a", "us-east-2b", "us-east-2c", "us-east-2d"] }
}
mock_resource "aws_kms_key" {
  defaults = { arn = "arn:aws:kms:us-east-2:123456789012:key/11111111-2222-3333-4444-555555555555" }
}
mock_resource "aws_iam_role" {
  defaults = { arn = "arn:aws:iam::123456789012:role/mocked" }
}
mock_resource "aws_ecr_repository" {
  defaults = { arn = "arn:aws:ecr:us-east-2:123456789012:repository/skytrain-demo" }
}
mock_resource "aws_sns_topic" {
  defaults = { arn = "arn:aws:sns:us-east-2:123456789012:skytrain-demo-budget" }
}
mock_resource "aws_cloudwatch_log_group" {
  defaults = { arn = "arn:aws:logs:us-east-2:123456789012:log-group:/skytrain/demo/mocked" }
}
mock_resource "aws_s3_bucket" {
  defaults = { arn = "arn:aws:s3:::mocked" }
}
mock_resource "aws_security_group" {
  defaults = { id = "sg-0123456789abcdef0" }
}
mock_resource "aws_vpc" {
  defaults = { arn = "arn:aws:ec2:us-east-2:123456789012:vpc/vpc-0123456789abcdef0" }
}

# One ARN each: the tests of permissions read from the attachments which policies a role has.
override_resource {
  target = aws_iam_policy.node_store
  values = { arn = "arn:aws:iam::123456789012:policy/node_store" }
}

override_resource {
  target = aws_iam_policy.node_machine
  values = { arn = "arn:aws:iam::123456789012:policy/node_machine" }
}

override_resource {
  target = aws_iam_policy.viewer_store
  values = { arn = "arn:aws:iam::123456789012:policy/viewer_store" }
}

override_resource {
  target = aws_iam_policy.read_account
  values = { arn = "arn:aws:iam::123456789012:policy/read_account" }
}

override_resource {
  target = aws_iam_policy.operator_store
  values = { arn = "arn:aws:iam::123456789012:policy/operator_store" }
}

override_resource {
  target = aws_iam_policy.operator_launch
  values = { arn = "arn:aws:iam::123456789012:policy/operator_launch" }
}

override_resource {
  target = aws_iam_policy.operator_groups
  values = { arn = "arn:aws:iam::123456789012:policy/operator_groups" }
}

override_resource {
  target = aws_iam_policy.operator_stop
  values = { arn = "arn:aws:iam::123456789012:policy/operator_stop" }
}

override_resource {
  target = aws_iam_policy.operator_shell
  values = { arn = "arn:aws:iam::123456789012:policy/operator_shell" }
}

override_resource {
  target = aws_iam_policy.node_sagemaker
  values = { arn = "arn:aws:iam::123456789012:policy/node_sagemaker" }
}

override_resource {
  target = aws_iam_policy.operator_sagemaker
  values = { arn = "arn:aws:iam::123456789012:policy/operator_sagemaker" }
}

override_resource {
  target = aws_iam_policy.operator_emr
  values = { arn = "arn:aws:iam::123456789012:policy/operator_emr" }
}

override_resource {
  target = aws_iam_policy.emr_service
  values = { arn = "arn:aws:iam::123456789012:policy/emr_service" }
}

override_resource {
  target = aws_iam_role.operator
  values = { arn = "arn:aws:iam::123456789012:role/skytrain-demo-us-east-2-operator" }
}

override_resource {
  target = aws_iam_role.node
  values = { arn = "arn:aws:iam::123456789012:role/skytrain-demo-us-east-2-node" }
}

override_resource {
  target = aws_iam_role.viewer
  values = { arn = "arn:aws:iam::123456789012:role/skytrain-demo-us-east-2-viewer" }
}

override_resource {
  target = aws_iam_role.prepare
  values = { arn = "arn:aws:iam::123456789012:role/skytrain-demo-us-east-2-prepare" }
}

override_resource {
  target = aws_iam_policy.prepare_data
  values = { arn = "arn:aws:iam::123456789012:policy/prepare_data" }
}

override_resource {
  target = aws_iam_role.serve
  values = { arn = "arn:aws:iam::123456789012:role/skytrain-demo-us-east-2-serve" }
}

override_resource {
  target = aws_iam_policy.serve_store
  values = { arn = "arn:aws:iam::123456789012:policy/serve_store" }
}

override_resource {
  target = aws_iam_policy.operator_serve
  values = { arn = "arn:aws:iam::123456789012:policy/operator_serve" }
}

override_resource {
  target = aws_iam_policy.node_secrets
  values = { arn = "arn:aws:iam::123456789012:policy/node_secrets" }
}

override_resource {
  target = aws_iam_policy.operator_roles
  values = { arn = "arn:aws:iam::123456789012:policy/operator_roles" }
}

override_resource {
  target = aws_iam_policy.exports
  values = { arn = "arn:aws:iam::123456789012:policy/exports" }
}

override_resource {
  target = aws_iam_policy.serve_machine
  values = { arn = "arn:aws:iam::123456789012:policy/serve_machine" }
}

override_resource {
  target = aws_iam_policy.viewer_limits
  values = { arn = "arn:aws:iam::123456789012:policy/viewer_limits" }
}

override_resource {
  target = aws_kms_key.emr_disks
  values = { arn = "arn:aws:kms:us-east-2:123456789012:key/22222222-2222-3333-4444-555555555555" }
}

override_resource {
  target = aws_iam_policy.prepare_emr_disks
  values = { arn = "arn:aws:iam::123456789012:policy/prepare_emr_disks" }
}

override_resource {
  target = aws_iam_policy.machines
  values = { arn = "arn:aws:iam::123456789012:policy/machines" }
}

override_resource {
  target = aws_iam_policy.shared_store
  values = { arn = "arn:aws:iam::123456789012:policy/shared_store" }
}

override_resource {
  target = aws_iam_policy.shared_machine
  values = { arn = "arn:aws:iam::123456789012:policy/shared_machine" }
}

override_resource {
  target = aws_iam_policy.shared_serve
  values = { arn = "arn:aws:iam::123456789012:policy/shared_serve" }
}
