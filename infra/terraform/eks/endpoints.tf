# In a closed network the cluster's own calls need endpoints too, besides those of the base.
resource "aws_vpc_endpoint" "interface" {
  for_each = var.base.closed_network ? toset(["eks", "eks-auth", "elasticloadbalancing", "sqs"]) : []

  vpc_id              = var.base.vpc_id
  service_name        = "com.amazonaws.${local.region}.${each.key}"
  vpc_endpoint_type   = "Interface"
  private_dns_enabled = true
  subnet_ids          = [local.subnets[0]]
  security_group_ids  = [var.base.endpoints_security_group_id]
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = "*"
      Action    = "*"
      Resource  = "*"
      Condition = { StringEquals = { "aws:PrincipalAccount" = local.account } }
    }]
  })

  tags = { Name = "${local.name}-${each.key}" }
}
