# S3 by gateway: free, and the way that data takes whatever the other switches say.
resource "aws_vpc_endpoint" "s3" {
  vpc_id            = aws_vpc.main.id
  service_name      = "com.amazonaws.${var.region}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = [aws_route_table.private.id, aws_route_table.public.id]
  policy            = local.closed_network ? jsonencode(local.s3_endpoint_closed) : jsonencode(local.s3_endpoint_open)

  tags = { Name = "${local.name}-s3" }
}

locals {
  # With internet access a policy here stops nobody, and public data sets live in other people's buckets.
  s3_endpoint_open = {
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Principal = "*", Action = "s3:*", Resource = "*" }]
  }
  # In a closed network it keeps data inside: our bucket, those that the project may read, and AWS's own.
  s3_endpoint_closed = {
    Version = "2012-10-17"
    Statement = concat(
      [
        {
          Sid       = "TheStore"
          Effect    = "Allow"
          Principal = "*"
          Action    = "s3:*"
          Resource  = [local.bucket_arn, "${local.bucket_arn}/*"]
          Condition = { StringEquals = { "aws:PrincipalAccount" = local.account_id } }
        },
        {
          Sid       = "LayersOfImagesAndAgents"
          Effect    = "Allow"
          Principal = "*"
          Action    = "s3:GetObject"
          Resource = [
            "arn:${local.partition}:s3:::prod-${var.region}-starport-layer-bucket/*",
            "arn:${local.partition}:s3:::amazon-ssm-${var.region}/*",
          ]
        },
      ],
      length(var.readable_buckets) == 0 ? [] : [
        {
          Sid       = "OtherData"
          Effect    = "Allow"
          Principal = "*"
          Action    = ["s3:GetObject", "s3:ListBucket"]
          Resource  = local.readable_arns
        },
      ],
    )
  }

  # What a machine of a run calls.
  interface_services = concat(
    ["autoscaling", "ec2", "ec2messages", "ecr.api", "ecr.dkr", "kms", "logs", "monitoring", "ssm", "ssmmessages", "sts"],
    length(local.secret_names) > 0 ? ["secretsmanager"] : [],
  )
  endpoint_subnets = [for zone in slice(local.zones, 0, min(var.interface_endpoint_zones, length(local.zones))) : aws_subnet.private[zone].id]
}

# An interface endpoint is com.amazonaws.REGION.SERVICE; in China some begin with "cn.", and only AWS's list says which.
data "aws_vpc_endpoint_service" "china" {
  for_each = local.partition == "aws-cn" && var.interface_endpoints ? toset(local.interface_services) : []

  service_type = "Interface"
  filter {
    name   = "service-name"
    values = [for start in ["", "cn."] : "${start}com.amazonaws.${var.region}.${each.key}"]
  }
}

resource "aws_vpc_endpoint" "interface" {
  for_each = var.interface_endpoints ? toset(local.interface_services) : []

  vpc_id              = aws_vpc.main.id
  service_name        = local.partition == "aws-cn" ? data.aws_vpc_endpoint_service.china[each.key].service_name : "com.amazonaws.${var.region}.${each.key}"
  vpc_endpoint_type   = "Interface"
  private_dns_enabled = true
  subnet_ids          = local.endpoint_subnets
  security_group_ids  = [aws_security_group.endpoints[0].id]
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = "*"
      Action    = "*"
      Resource  = "*"
      Condition = { StringEquals = { "aws:PrincipalAccount" = local.account_id } }
    }]
  })

  tags = { Name = "${local.name}-${each.key}" }
}
