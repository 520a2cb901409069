resource "aws_vpc" "main" {
  cidr_block           = var.vpc_cidr
  enable_dns_support   = true
  enable_dns_hostnames = true # interface endpoints answer under the services' own names

  tags = merge({ Name = local.name }, local.emr_tag)
}

# Whatever is started without naming a security group can talk to nobody.
resource "aws_default_security_group" "main" {
  vpc_id = aws_vpc.main.id

  tags = { Name = "${local.name}-unused" }
}

resource "aws_subnet" "private" {
  for_each = toset(local.zones)

  vpc_id            = aws_vpc.main.id
  availability_zone = each.key
  cidr_block        = cidrsubnet(var.vpc_cidr, 4, index(local.zones, each.key))

  tags = merge({ Name = "${local.name}-private-${each.key}" }, local.emr_tag)
}

resource "aws_subnet" "public" {
  for_each = toset(local.zones)

  vpc_id                  = aws_vpc.main.id
  availability_zone       = each.key
  cidr_block              = cidrsubnet(var.vpc_cidr, 4, index(local.zones, each.key) + 3)
  map_public_ip_on_launch = false # a launch template asks for an address where one is needed

  tags = merge({ Name = "${local.name}-public-${each.key}" }, local.emr_tag)
}

resource "aws_internet_gateway" "main" {
  count = local.closed_network ? 0 : 1

  vpc_id = aws_vpc.main.id

  tags = { Name = local.name }
}

resource "aws_route_table" "public" {
  vpc_id = aws_vpc.main.id

  tags = { Name = "${local.name}-public" }
}

resource "aws_route" "internet" {
  count = local.closed_network ? 0 : 1

  route_table_id         = aws_route_table.public.id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.main[0].id
}

resource "aws_route_table_association" "public" {
  for_each = aws_subnet.public

  subnet_id      = each.value.id
  route_table_id = aws_route_table.public.id
}

resource "aws_route_table" "private" {
  vpc_id = aws_vpc.main.id

  tags = { Name = "${local.name}-private" }
}

resource "aws_route_table_association" "private" {
  for_each = aws_subnet.private

  subnet_id      = each.value.id
  route_table_id = aws_route_table.private.id
}

# One gateway for three zones: all machines of a run stand in one zone, and data comes through the S3 endpoint,
# so that little crosses zones here.
resource "aws_eip" "nat" {
  count = var.nat_gateway ? 1 : 0

  domain = "vpc"

  tags = { Name = "${local.name}-nat" }
}

resource "aws_nat_gateway" "main" {
  count = var.nat_gateway ? 1 : 0

  allocation_id = aws_eip.nat[0].id
  subnet_id     = aws_subnet.public[local.zones[0]].id

  tags = { Name = local.name }

  depends_on = [aws_internet_gateway.main]
}

resource "aws_route" "nat" {
  count = var.nat_gateway ? 1 : 0

  route_table_id         = aws_route_table.private.id
  destination_cidr_block = "0.0.0.0/0"
  nat_gateway_id         = aws_nat_gateway.main[0].id
}

resource "aws_flow_log" "main" {
  count = var.flow_logs ? 1 : 0

  vpc_id          = aws_vpc.main.id
  traffic_type    = "ALL"
  log_destination = aws_cloudwatch_log_group.main["flow"].arn
  iam_role_arn    = aws_iam_role.flow_logs[0].arn

  tags = { Name = local.name }
}

resource "aws_iam_role" "flow_logs" {
  count = var.flow_logs ? 1 : 0

  name        = "${local.global_name}-flow-logs"
  description = "Writes the flow logs of the Skytrain network."
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "vpc-flow-logs.amazonaws.com" }
      Condition = { StringEquals = { "aws:SourceAccount" = local.account_id } }
    }]
  })
}

resource "aws_iam_role_policy" "flow_logs" {
  count = var.flow_logs ? 1 : 0

  name = "write"
  role = aws_iam_role.flow_logs[0].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect   = "Allow"
      Action   = ["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"]
      Resource = "${aws_cloudwatch_log_group.main["flow"].arn}:*"
    }]
  })
}
