# Who may use the Kubernetes API. Administrators by EKS's own policy; operators and viewers of the base as groups, whose
# permissions stand in infra/kubernetes/base/access.yaml and end at the project's namespaces.

resource "aws_eks_access_entry" "admin" {
  for_each = toset(var.admin_principals)

  cluster_name  = aws_eks_cluster.main.name
  principal_arn = each.key
}

resource "aws_eks_access_policy_association" "admin" {
  for_each = toset(var.admin_principals)

  cluster_name  = aws_eks_cluster.main.name
  principal_arn = each.key
  policy_arn    = "arn:${local.partition}:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"

  access_scope {
    type = "cluster"
  }

  depends_on = [aws_eks_access_entry.admin]
}

resource "aws_eks_access_entry" "people" {
  for_each = {
    "skytrain:operators" = var.base.operator_role_arn
    "skytrain:viewers"   = var.base.viewer_role_arn
  }

  cluster_name      = aws_eks_cluster.main.name
  principal_arn     = each.value
  kubernetes_groups = [each.key]
}

# What `aws eks update-kubeconfig` calls.
resource "aws_iam_role_policy" "people" {
  for_each = { operator = var.base.operator_role_arn, viewer = var.base.viewer_role_arn }

  name = "${local.name}-eks"
  role = reverse(split("/", each.value))[0]
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid      = "FindTheCluster"
      Effect   = "Allow"
      Action   = "eks:DescribeCluster"
      Resource = local.cluster_arn
    }]
  })
}

# Karpenter's nodes join with the same role as those of the node groups, whose entry EKS makes itself.
resource "aws_eks_access_entry" "nodes" {
  cluster_name  = aws_eks_cluster.main.name
  principal_arn = aws_iam_role.node.arn
  type          = "EC2_LINUX"
}
