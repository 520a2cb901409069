# What a provider without an account answers.

mock_data "aws_partition" {
  defaults = { partition = "aws", dns_suffix = "amazonaws.com" }
}
mock_data "aws_eks_addon_version" {
  defaults = { version = "v1.2.3-eksbuild.1" }
}
mock_resource "aws_eks_cluster" {
  defaults = {
    arn        = "arn:aws:eks:us-east-2:123456789012:cluster/skytrain-demo"
    endpoint   = "https://mocked.eks.amazonaws.com"
    vpc_config = { cluster_security_group_id = "sg-0cluster000000000" }
  }
}
mock_resource "aws_kms_key" {
  defaults = { arn = "arn:aws:kms:us-east-2:123456789012:key/22222222-2222-3333-4444-555555555555" }
}
mock_resource "aws_iam_role" {
  defaults = { arn = "arn:aws:iam::123456789012:role/mocked" }
}
mock_resource "aws_iam_policy" {
  defaults = { arn = "arn:aws:iam::123456789012:policy/mocked" }
}
mock_resource "aws_iam_instance_profile" {
  defaults = { arn = "arn:aws:iam::123456789012:instance-profile/mocked" }
}
mock_resource "aws_launch_template" {
  defaults = { id = "lt-0123456789abcdef0", latest_version = 1 }
}
mock_resource "aws_sqs_queue" {
  defaults = {
    arn = "arn:aws:sqs:us-east-2:123456789012:skytrain-demo-karpenter"
    url = "https://sqs.us-east-2.amazonaws.com/123456789012/skytrain-demo-karpenter"
  }
}
mock_resource "aws_cloudwatch_event_rule" {
  defaults = { arn = "arn:aws:events:us-east-2:123456789012:rule/mocked" }
}
mock_resource "aws_cloudwatch_log_group" {
  defaults = { arn = "arn:aws:logs:us-east-2:123456789012:log-group:/aws/eks/skytrain-demo/cluster" }
}
mock_resource "aws_security_group" {
  defaults = { id = "sg-0fsx0000000000000" }
}
mock_resource "aws_fsx_lustre_file_system" {
  defaults = { id = "fs-0123456789abcdef0", dns_name = "fs-0123456789abcdef0.fsx.us-east-2.amazonaws.com", mount_name = "abcdefgh" }
}
mock_resource "aws_eks_node_group" {
  defaults = { resources = [{ autoscaling_groups = [{ name = "eks-gpu-mocked" }], remote_access_security_group_id = "" }] }
}
