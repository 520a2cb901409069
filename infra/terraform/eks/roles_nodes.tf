# Nodes join, pull images and open Session Manager. What pods may do is in roles_pods.tf: a node's role gives them nothing.

resource "aws_iam_role" "node" {
  name        = local.role_names["node"]
  description = "Nodes of ${local.name}: join the cluster, pull images, Session Manager."
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = local.ec2_services }
    }]
  })
}

resource "aws_iam_role_policy_attachment" "node" {
  for_each = toset([
    "AmazonEKSWorkerNodePolicy",
    "AmazonEC2ContainerRegistryPullOnly",
    "AmazonSSMManagedInstanceCore",
  ])

  role       = aws_iam_role.node.name
  policy_arn = "${local.managed}/${each.key}"
}

resource "aws_iam_instance_profile" "node" { # for Karpenter, which then needs no permission to create profiles
  name = local.role_names["node"]
  role = aws_iam_role.node.name
}
