# EFA needs all traffic from and to the group itself, both ways; a wider egress rule does not replace the second.
# Nothing else may come in: people use Session Manager, which the machine itself opens.
resource "aws_security_group" "node" {
  #checkov:skip=CKV2_AWS_5:Attached by the launch templates of `skytrain launch`, not by Terraform
  name        = "${local.name}-node"
  description = "Machines of Skytrain runs: each other in and out, HTTPS out, nothing else in."
  vpc_id      = aws_vpc.main.id

  tags = merge({ Name = "${local.name}-node" }, local.emr_tag)
}

resource "aws_vpc_security_group_ingress_rule" "node_self" {
  security_group_id            = aws_security_group.node.id
  description                  = "EFA and NCCL: all traffic from machines of this group"
  ip_protocol                  = "-1"
  referenced_security_group_id = aws_security_group.node.id
}

resource "aws_vpc_security_group_egress_rule" "node_self" {
  security_group_id            = aws_security_group.node.id
  description                  = "EFA and NCCL: all traffic to machines of this group"
  ip_protocol                  = "-1"
  referenced_security_group_id = aws_security_group.node.id
}

resource "aws_vpc_security_group_egress_rule" "node_https" {
  count = local.closed_network ? 0 : 1

  security_group_id = aws_security_group.node.id
  description       = "HTTPS to AWS, the Hugging Face Hub and package indexes"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  cidr_ipv4         = "0.0.0.0/0"
}

resource "aws_vpc_security_group_egress_rule" "node_s3" {
  count = local.closed_network ? 1 : 0

  security_group_id = aws_security_group.node.id
  description       = "S3 through its gateway endpoint"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  prefix_list_id    = aws_vpc_endpoint.s3.prefix_list_id
}

resource "aws_vpc_security_group_egress_rule" "node_endpoints" {
  count = local.closed_network ? 1 : 0

  security_group_id            = aws_security_group.node.id
  description                  = "Interface endpoints"
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443
  referenced_security_group_id = aws_security_group.endpoints[0].id
}

resource "aws_security_group" "endpoints" {
  count = var.interface_endpoints ? 1 : 0

  name        = "${local.name}-endpoints"
  description = "Interface endpoints: HTTPS from machines of Skytrain runs."
  vpc_id      = aws_vpc.main.id

  tags = { Name = "${local.name}-endpoints" }
}

resource "aws_vpc_security_group_ingress_rule" "endpoints_https" {
  count = var.interface_endpoints ? 1 : 0

  security_group_id            = aws_security_group.endpoints[0].id
  description                  = "HTTPS from machines of Skytrain runs"
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443
  referenced_security_group_id = aws_security_group.node.id
}
