# In a closed network the cluster's own calls need endpoints too, besides those of the base.
locals {
  interface_services = var.base.closed_network ? toset(["eks", "eks-auth", "elasticloadbalancing", "sqs"]) : []
}

# As in the base: in China some names begin with "cn.".
data "aws_vpc_endpoint_service" "china" {
  for_each = local.partition == "aws-cn" ? local.interface_services : []

  service_type = "Interface"
  filter {
    name   = "service-name"
    values = [for start in ["", "cn."] : "${start}com.amazonaws.${local.region}.${each.key}"]
  }
}

resource "aws_vpc_endpoint" "interface" {
  for_each = local.interface_services

  vpc_id              = var.base.vpc_id
  service_name        = local.partition == "aws-cn" ? data.aws_vpc_endpoint_service.china[each.key].service_name : "com.amazonaws.${local.region}.${each.key}"
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
